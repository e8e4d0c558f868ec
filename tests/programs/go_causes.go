// A program that leaks: the kind and the number are arguments. Kinds: "heartbeats" (time.AfterFunc, beside a ticker that a variable refers
// to), "after" (time.After in a loop), "tickers" (structures with tickers that are never stopped), "defers" (deferred calls in a loop),
// "closures" (finalizers that use the object), "subscribers" (a map in a structure, of channels), "queue" (a channel from which nobody
// receives), "buffers" (large buffers in a sync.Pool), "versions" (a list of which sync/atomic.Value has the last), "handlers" (HTTP
// handlers that wait), "clients" (an HTTP client for each request), "bodies" (responses that are compressed, of which only a part is read),
// "syncmap" (a sync.Map in a structure), "mappings" (syscall.Mmap without Munmap), "loops" (goroutines that receive from tickers),
// "deadlines" (contexts with a timeout, children of one that can be cancelled), "ballast" (an array of 512 MiB, of which the number in MiB
// is used), "beside" (such an array and a sync.Map), "unused" (goroutines with arrays of 1 MiB that they never use), "sized" (a map that
// was created for 4 million entries). Prints "ready".
package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

type Session struct {
	number int
	tick   *time.Ticker
	data   [1000]byte
}

var heartbeat = time.NewTicker(time.Hour)
var total int

func heartbeats(count int) {
	go func() {
		for range heartbeat.C {
			total++
		}
	}()
	for i := 0; i < count; i++ {
		session := &Session{number: i}
		time.AfterFunc(time.Hour, func() { session.number++ })
	}
}

func poll(events chan int) {
	for {
		select {
		case <-events:
		case <-time.After(time.Hour):
			return
		}
	}
}

func after(count int) {
	events := make(chan int)
	go poll(events)
	for i := 0; i < count; i++ {
		events <- i
	}
}

var sessions []*Session

func tickers(count int) {
	for i := 0; i < count; i++ {
		sessions = append(sessions, &Session{tick: time.NewTicker(time.Hour)})
	}
}

func (s *Session) loop() {
	for range s.tick.C {
		s.number++
	}
}

func loops(count int) {
	for i := 0; i < count; i++ {
		go (&Session{tick: time.NewTicker(time.Hour)}).loop()
	}
}

var base, end = context.WithCancel(context.Background())

func deadlines(count int) {
	for i := 0; i < count; i++ {
		context.WithTimeout(context.WithValue(base, &total, &Session{number: i}), time.Hour)
	}
}

func process(count int, done chan bool) {
	for i := 0; i < count; i++ {
		session := &Session{number: i}
		defer func() { session.number = 0 }()
	}
	done <- true
	time.Sleep(time.Hour)
}

func defers(count int) {
	done := make(chan bool)
	go process(count, done)
	<-done
}

//go:noinline
func open(number int) {
	session := &Session{number: number}
	runtime.SetFinalizer(session, func(*Session) { session.number = -1 })
}

func closures(count int) {
	for i := 0; i < count; i++ {
		open(i)
	}
}

type Event struct{ name string }

type Broker struct {
	lock sync.Mutex
	all  map[chan Event]struct{}
}

var broker = Broker{all: map[chan Event]struct{}{}}

//go:noinline
func (b *Broker) subscribe() {
	b.lock.Lock()
	b.all[make(chan Event, 64)] = struct{}{}
	b.lock.Unlock()
}

func subscribers(count int) {
	for i := 0; i < count; i++ {
		broker.subscribe()
	}
}

var jobs chan *Session

func queue(count int) {
	jobs = make(chan *Session, count)
	for i := 0; i < count; i++ {
		jobs <- &Session{number: i}
	}
}

var pool = sync.Pool{New: func() interface{} { return new(bytes.Buffer) }}

//go:noinline
func buffers(count int) {
	var every []*bytes.Buffer
	for i := 0; i < count; i++ {
		every = append(every, pool.Get().(*bytes.Buffer))
		every[i].Write(make([]byte, 1<<20))
	}
	for _, one := range every {
		pool.Put(one)
	}
}

type Version struct {
	before *Version
	data   [1000]byte
}

var current atomic.Value

func versions(count int) {
	for i := 0; i < count; i++ {
		before, _ := current.Load().(*Version)
		current.Store(&Version{before: before})
	}
}

var never = make(chan bool)
var connections []net.Conn

func report(http.ResponseWriter, *http.Request) {
	var large [4000]byte
	large[total] = 1
	<-never
	total += int(large[1])
}

func listen(handler http.HandlerFunc) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go http.Serve(listener, handler)
	return listener.Addr().String()
}

func handlers(count int) {
	address := listen(report)
	for i := 0; i < count; i++ {
		connection, err := net.Dial("tcp", address)
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(connection, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		connections = append(connections, connection)
	}
}

func clients(count int) {
	address := listen(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "done") })
	for i := 0; i < count; i++ {
		client := &http.Client{Transport: &http.Transport{}}
		response, err := client.Get("http://" + address)
		if err != nil {
			panic(err)
		}
		io.Copy(io.Discard, response.Body)
		response.Body.Close()
	}
}

func bodies(count int) {
	var packed bytes.Buffer
	writer, block, state := gzip.NewWriter(&packed), make([]byte, 1<<16), uint32(1)
	for at := range block { // it cannot be compressed
		state = state*1664525 + 1013904223
		block[at] = byte(state >> 24)
	}
	writer.Write(block)
	writer.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go func() {
		for request := make([]byte, 4096); ; {
			connection, err := listener.Accept()
			if err != nil {
				panic(err)
			}
			connection.Read(request)
			fmt.Fprintf(connection, "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1000000\r\n\r\n")
			connection.Write(packed.Bytes())
			connections = append(connections, connection)
		}
	}()
	for i := 0; i < count; i++ {
		response, err := http.Get("http://" + listener.Addr().String())
		if err != nil {
			panic(err)
		}
		response.Body.Read(block[:100])
	}
}

type Registry struct {
	name string
	all  sync.Map
}

var registry = &Registry{name: "registry"}

func syncmap(count int) {
	for i := 0; i < count; i++ {
		registry.all.Store(i, &Session{number: i})
	}
}

//go:noinline
func mappings(count int) {
	for i := 0; i < count; i++ {
		data, err := syscall.Mmap(-1, 0, 1<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
		if err != nil {
			panic(err)
		}
		data[0] = 1
	}
	used, _ := syscall.Mmap(-1, 0, 8<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	kept = used[100:200]
}

var kept []byte

var reserve []byte

func ballast(count int) {
	reserve = make([]byte, 512<<20)
	for at := 0; at < count<<20; at += 4096 {
		reserve[at] = 1
	}
}

func beside(count int) {
	ballast(4)
	syncmap(count)
}

func hold(events chan int) {
	buffer := make([]byte, 1<<20)
	<-events
	total += int(buffer[cap(buffer)-1])
}

func unused(count int) {
	events := make(chan int)
	for i := 0; i < count; i++ {
		go hold(events)
	}
	total += <-events
}

var entries map[int]*Session

func sized(count int) {
	entries = make(map[int]*Session, 4<<20)
	for i := 0; i < count; i++ {
		entries[i] = &Session{number: i}
	}
}

func main() {
	count, _ := strconv.Atoi(os.Args[2])
	map[string]func(int){
		"heartbeats": heartbeats, "after": after, "tickers": tickers, "defers": defers, "closures": closures, "queue": queue,
		"subscribers": subscribers, "buffers": buffers, "versions": versions, "handlers": handlers, "clients": clients, "bodies": bodies,
		"syncmap": syncmap, "mappings": mappings, "loops": loops, "deadlines": deadlines, "ballast": ballast, "beside": beside,
		"unused": func(count int) { go unused(count) }, "sized": sized, "called": called,
	}[os.Args[1]](count)
	if os.Args[1] != "buffers" {
		runtime.GC()
	}
	time.Sleep(500 * time.Millisecond)
	fmt.Println("ready")
	time.Sleep(time.Hour)
	fmt.Println(total, kept[0], len(connections))
}

// The goroutine is in a system call, so a thread refers to it.
func processInCall(count int, done chan bool) {
	for i := 0; i < count; i++ {
		session := &Session{number: i}
		defer func() { session.number = 0 }()
	}
	ends := make([]int, 2)
	syscall.Pipe(ends)
	done <- true
	syscall.Read(ends[0], make([]byte, 1))
}

func called(count int) {
	done := make(chan bool)
	go processInCall(count, done)
	<-done
}
