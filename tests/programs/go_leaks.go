// Leaks of kinds that users report. Arguments: KIND COUNT. Kinds: "bodies" (HTTP responses that are not closed), "timers" (time.AfterFunc),
// "tickers" (goroutines with time.Tick), "senders" (goroutines that send to a channel from which nobody receives), "history" (a map of
// slices that grow), "finalizers" (one waits for a lock, so that no other runs), "handles" (the same, of small objects), "cached" (the same, and a
// large cache), "headers" (slices of 16 bytes, each in a large array), "documents" (slices of half a large array each), "contexts" and "deadlines" (contexts that are not cancelled),
// "syncmap" (a sync.Map that grows), "list" (a linked list). Prints "ready".
package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

type Session struct {
	number int
	data   [512]byte
}

type Event struct {
	at   time.Time
	name string
}

var history = map[string][]Event{}
var total int
var lock sync.Mutex
var kept [][]byte

//go:noinline
func fetch(client *http.Client, url string) {
	response, err := client.Get(url)
	if err != nil {
		panic(err)
	}
	total += response.StatusCode
}

func bodies(count int) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	text := []byte(strings.Repeat("x", 64<<10))
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write(text) }))
	client := &http.Client{}
	for i := 0; i < count; i++ {
		fetch(client, "http://"+listener.Addr().String())
	}
}

func timers(count int) {
	for i := 0; i < count; i++ {
		session := &Session{number: i}
		time.AfterFunc(time.Hour, func() { total += session.number })
	}
}

func (s *Session) refresh() {
	for range time.Tick(time.Hour) {
		s.data[0]++
	}
}

func tickers(count int) {
	for i := 0; i < count; i++ {
		go (&Session{number: i}).refresh()
	}
}

//go:noinline
func query(ctx context.Context, number int) *Session {
	found := make(chan *Session)
	go func() { found <- &Session{number: number} }()
	select {
	case one := <-found:
		return one
	case <-ctx.Done():
		return nil
	}
}

func senders(count int) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for i := 0; i < count; i++ {
		query(ctx, i)
	}
}

//go:noinline
func record(user string, number int) {
	history[user] = append(history[user], Event{time.Now(), "event " + strconv.Itoa(number)})
}

func (s *Session) close() {
	lock.Lock()
	total++
	lock.Unlock()
}

//go:noinline
func finalizers(count int) {
	for i := 0; i < count; i++ {
		runtime.SetFinalizer(&Session{number: i}, (*Session).close)
	}
}

type node struct {
	other *node
	data  [1000]byte
}

var pages []*[4096]byte

type Handle struct{ owner *Session }

func (h *Handle) close() {
	lock.Lock()
	total++
	lock.Unlock()
}

//go:noinline
func handles(count int) {
	for i := 0; i < count; i++ {
		runtime.SetFinalizer(&Handle{}, (*Handle).close)
	}
}

//go:noinline
func cycles(count int) {
	for i := 0; i < count; i++ {
		one := &node{other: &node{}}
		one.other.other = one
		runtime.SetFinalizer(one, func(*node) { total++ })
	}
}

//go:noinline
func read(length int) {
	document := make([]byte, 256<<10)
	document[length-1] = 1
	kept = append(kept, document[:length])
}

//go:noinline
func serve(ctx context.Context, number int) {
	ctx, _ = context.WithCancel(context.WithValue(ctx, "session", &Session{number: number}))
	total += len(ctx.Value("session").(*Session).data)
}

//go:noinline
func call(ctx context.Context, number int) {
	ctx, _ = context.WithTimeout(context.WithValue(ctx, "session", &Session{number: number}), time.Hour)
	total += len(ctx.Value("session").(*Session).data)
}

var sessions sync.Map

//go:noinline
func store(number int) { sessions.Store(number, &Session{number: number}) }

type entry struct {
	next *entry
	data [100]byte
}

var last *entry

//go:noinline
func push() { last = &entry{next: last} }

func main() {
	count, _ := strconv.Atoi(os.Args[2])
	switch os.Args[1] {
	case "bodies":
		bodies(count)
	case "timers":
		timers(count)
	case "tickers":
		tickers(count)
	case "senders":
		senders(count)
	case "history":
		for i := 0; i < count; i++ {
			record("user"+strconv.Itoa(i%5000), i)
		}
	case "headers":
		for i := 0; i < count; i++ {
			read(16)
		}
	case "documents":
		for i := 0; i < count; i++ {
			read(128 << 10)
		}
	case "contexts":
		parent, cancel := context.WithCancel(context.Background())
		defer cancel()
		for i := 0; i < count; i++ {
			serve(parent, i)
		}
	case "deadlines":
		for i := 0; i < count; i++ {
			call(context.Background(), i)
		}
	case "syncmap":
		for i := 0; i < count; i++ {
			store(i)
		}
	case "list":
		for i := 0; i < count; i++ {
			push()
		}
	case "cycles":
		cycles(count)
		runtime.GC()
		runtime.GC()
	case "handles", "cached":
		if os.Args[1] == "cached" {
			pages = make([]*[4096]byte, 8000)
			for i := range pages {
				pages[i] = new([4096]byte)
			}
		}
		lock.Lock()
		handles(count)
		runtime.GC()
		runtime.GC()
	case "finalizers":
		lock.Lock()
		finalizers(count)
		runtime.GC()
		runtime.GC()
	}
	time.Sleep(500 * time.Millisecond)
	fmt.Println("ready")
	time.Sleep(time.Hour)
	fmt.Println(total)
}
