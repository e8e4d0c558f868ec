// A program of which one kind of memory or of goroutines is the most: the kind and the number are arguments. Kinds: "fragments" (every
// hundredth of many records is kept), "uncollected" (garbage, and GOGC is off), "semaphore" (goroutines that wait for places in a channel),
// "polls" (goroutines that wait for a ticker or the end of a session), "results" (goroutines that send a pointer, an interface value or a
// structure, and nobody receives), "templates" (structures with one name in two packages), "letters", "times". Prints "ready".
package main

import (
	"fmt"
	html "html/template"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	text "text/template"
	"time"
)

type Record struct {
	name  string
	count int
	data  [64]byte
}

type Session struct {
	user  string
	state []byte
	quit  chan struct{}
}

type Order struct {
	number int
	lines  []Line
}

type Line struct {
	item   string
	amount int
}

type Failure struct {
	code int
	text string
	data [100]byte
}

type Reply struct {
	number int
	record *Record
}

func (f *Failure) Error() string { return f.text }

var kept []*Record
var sink *Record

func fragments(count int) {
	every := make([]*Record, 0, count)
	for i := 0; i < count; i++ {
		every = append(every, &Record{name: "r", count: i})
	}
	for i := 0; i < count; i += 100 {
		kept = append(kept, every[i])
	}
}

func uncollected(count int) {
	debug.SetGCPercent(-1)
	for i := 0; i < count; i++ {
		sink = &Record{name: "r", count: i}
	}
}

var places = make(chan struct{}, 4)

func acquire() { places <- struct{}{} }

func semaphore(count int) {
	for i := 0; i < count; i++ {
		go acquire()
	}
}

func (s *Session) poll() {
	ticker := time.NewTicker(time.Hour)
	for {
		select {
		case <-ticker.C:
			s.state[0]++
		case <-s.quit:
			return
		}
	}
}

func polls(count int) {
	for i := 0; i < count; i++ {
		session := &Session{user: strconv.Itoa(i), state: make([]byte, 2000), quit: make(chan struct{})}
		go session.poll()
	}
}

//go:noinline
func query(number int) int {
	orders, failures, replies := make(chan *Order), make(chan error), make(chan Reply)
	go func() { orders <- &Order{number, make([]Line, 4)} }()
	go func() { failures <- &Failure{code: number} }()
	go func() { replies <- Reply{number, &Record{count: number}} }()
	return number
}

func results(count int) {
	for i := 0; i < count; i++ {
		query(i)
	}
}

var pages []*html.Template
var letters []*text.Template

func templates(count int) {
	for i := 0; i < count; i++ {
		pages = append(pages, html.New("page")) // this also makes a text template
		letters = append(letters, text.New("letter"))
	}
}

func main() {
	count, _ := strconv.Atoi(os.Args[2])
	map[string]func(int){
		"fragments": fragments, "uncollected": uncollected, "semaphore": semaphore, "polls": polls, "results": results,
		"templates": templates, "times": times, "letters": write,
	}[os.Args[1]](count)
	if os.Args[1] != "uncollected" {
		runtime.GC()
		runtime.GC()
	}
	waitForOthers()
	fmt.Println("ready")
	time.Sleep(time.Hour)
	fmt.Println(sink, len(kept), pages, letters)
}

//go:noinline
func await() {
	times, quit := make(chan time.Time), make(chan struct{})
	go func() {
		select {
		case <-times:
		case <-quit:
		}
	}()
}

func times(count int) {
	for i := 0; i < count; i++ {
		await()
	}
}

// Structures of which those of another package with the same name have no objects.
func write(count int) {
	for i := 0; i < count; i++ {
		letters = append(letters, text.New("letter"))
	}
}
