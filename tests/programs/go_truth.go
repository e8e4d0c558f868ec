// Global variables hold 10 * COUNT Sessions, COUNT closures, a map that had 40,000 entries and has one, and a map of COUNT Users; COUNT Drops are garbage of the
// last moment. COUNT Holders have
// 4,096 bytes each and share 8,192 bytes. COUNT goroutines, each with a Session, wait on channels, 7 on a mutex, 3 on a sync.WaitGroup, one on a nil channel. Writes what
// pprof says of all goroutines to FILE, and prints figures of runtime.MemStats as NAME=VALUE,
// then addresses of objects in the same form.
package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"sync"
	"time"
	"unsafe"
)

type Session struct {
	User  string
	Token [200]byte
	Next  *Session
}

type Holder struct {
	Number int
	Data   *[4096]byte
	Shared *[8192]byte
}

type User struct{ Name string }

type Drop struct {
	Session *Session
	Data    [40]byte
}

var sessions []*Session
var functions []func() int
var holders []*Holder
var sparse = map[uint64][12]uint64{}
var users = map[string]*User{}
var drop *Drop
var waiting, dropped uintptr // addresses of the last waiting goroutine's Session, and of a Drop
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
		s := &Session{User: "user" + strconv.Itoa(i)}
		waiting = uintptr(unsafe.Pointer(s))
		go waitOn(c, s)
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
	shared := new([8192]byte)
	holders = make([]*Holder, 0, count) // an array that append outgrew could have stale references
	for i := 0; i < count; i++ {
		holders = append(holders, &Holder{Number: i, Data: new([4096]byte), Shared: shared})
	}
	for i := 0; i < count; i++ {
		users["user"+strconv.Itoa(i)] = &User{}
	}
	for i := 0; i < 40000; i++ {
		sparse[uint64(i)] = [12]uint64{}
	}
	for i := 1; i < 40000; i++ {
		delete(sparse, uint64(i))
	}
}

//go:noinline
func addresses() string {
	one := holders[5]
	place := func(of unsafe.Pointer) uintptr { return uintptr(of) }
	return fmt.Sprintf("holder=%#x data=%#x shared=%#x waiting=%#x dropped=%#x", place(unsafe.Pointer(one)), place(unsafe.Pointer(one.Data)),
		place(unsafe.Pointer(one.Shared)), waiting, dropped)
}

//go:noinline
func forget(count int) {
	for i := 0; i < count; i++ {
		drop = &Drop{Session: sessions[i]}
		if i == count/2 { // a stale word may refer to the last one
			dropped = uintptr(unsafe.Pointer(drop))
		}
	}
	drop = nil
}

func main() {
	count, _ := strconv.Atoi(os.Args[1])
	fill(count)
	kept := start(count)
	waitForOthers()
	debug.SetGCPercent(-1) // otherwise, Go may collect again, at the latest after two minutes
	runtime.GC()
	runtime.GC() // returns once the sweep of the one before is complete
	forget(count)
	file, _ := os.Create(os.Args[2])
	pprof.Lookup("goroutine").WriteTo(file, 2)
	file.Close()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	text := fmt.Sprintf("HeapSys=%d HeapInuse=%d StackInuse=%d MSpanSys=%d MCacheSys=%d BuckHashSys=%d GCSys=%d OtherSys=%d NumGC=%d NumForcedGC=%d HeapObjects=%d HeapAlloc=%d",
		m.HeapSys, m.HeapInuse, m.StackInuse, m.MSpanSys, m.MCacheSys, m.BuckHashSys, m.GCSys, m.OtherSys, m.NumGC, m.NumForcedGC, m.HeapObjects, m.HeapAlloc)
	os.Stdout.WriteString(fmt.Sprintf("goroutines=%d %s\n%s\nready\n", runtime.NumGoroutine(), text, addresses()))
	<-time.After(time.Hour)
	runtime.KeepAlive(kept)
	runtime.KeepAlive(functions)
}
