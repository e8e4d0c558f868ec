// Global variables hold 10 * COUNT Sessions, COUNT closures, and a map that had 40,000 entries and has one; COUNT Drops are garbage of the
// last moment. COUNT goroutines, each with a Session, wait on channels, 7 on a mutex, 3 on a sync.WaitGroup, one on a nil channel. Writes what
// pprof says of all goroutines to FILE, and prints figures of runtime.MemStats as NAME=VALUE.
package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"sync"
	"time"
)

type Session struct {
	User  string
	Token [200]byte
	Next  *Session
}

type Drop struct {
	Session *Session
	Data    [40]byte
}

var sessions []*Session
var functions []func() int
var sparse = map[uint64][12]uint64{}
var drop *Drop
var mutex sync.Mutex
var never chan int

//go:noinline
func waitOn(c chan *Session, s *Session) {
	<-c
	fmt.Println(s.User)
}

func lock() {
	mutex.Lock()
	fmt.Println("never")
}

func inlined(w *sync.WaitGroup) { w.Wait() }

func start(count int) (kept []chan *Session) {
	for i := 0; i < count; i++ {
		c := make(chan *Session, 4)
		kept = append(kept, c)
		go waitOn(c, &Session{User: "user" + strconv.Itoa(i)})
	}
	mutex.Lock()
	for i := 0; i < 7; i++ {
		go lock()
	}
	var w sync.WaitGroup
	w.Add(1)
	for i := 0; i < 3; i++ {
		go func() { inlined(&w) }()
	}
	go func() { <-never }()
	return kept
}

func fill(count int) {
	for i := 0; i < 10*count; i++ {
		sessions = append(sessions, &Session{User: "kept" + strconv.Itoa(i)})
	}
	for i := 0; i < count; i++ {
		number := i
		functions = append(functions, func() int { number++; return number })
	}
	for i := 0; i < 40000; i++ {
		sparse[uint64(i)] = [12]uint64{}
	}
	for i := 1; i < 40000; i++ {
		delete(sparse, uint64(i))
	}
}

func main() {
	count, _ := strconv.Atoi(os.Args[1])
	fill(count)
	kept := start(count)
	for runtime.NumGoroutine() < count+12 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond)
	runtime.GC()
	runtime.GC() // returns once the sweep of the one before is complete
	for i := 0; i < count; i++ {
		drop = &Drop{Session: sessions[i]}
	}
	drop = nil
	file, _ := os.Create(os.Args[2])
	pprof.Lookup("goroutine").WriteTo(file, 2)
	file.Close()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	text := fmt.Sprintf("HeapSys=%d HeapInuse=%d StackInuse=%d MSpanSys=%d MCacheSys=%d BuckHashSys=%d GCSys=%d OtherSys=%d NumGC=%d NumForcedGC=%d HeapObjects=%d HeapAlloc=%d",
		m.HeapSys, m.HeapInuse, m.StackInuse, m.MSpanSys, m.MCacheSys, m.BuckHashSys, m.GCSys, m.OtherSys, m.NumGC, m.NumForcedGC, m.HeapObjects, m.HeapAlloc)
	os.Stdout.WriteString(fmt.Sprintf("goroutines=%d %s\nready\n", runtime.NumGoroutine(), text))
	<-time.After(time.Hour)
	runtime.KeepAlive(kept)
	runtime.KeepAlive(functions)
}
