// Goroutines wait for channels. Those whose function's name begins with "never" can never continue: no other goroutine and no variable can
// reach their channels. 20 goroutines for each function. Prints "ready".
package main

import (
	"os"
	"sync"
	"time"
)

var global = make(chan int)
var result int

func neverSend(c chan int)    { c <- 1 }
func neverReceive(c chan int) { result = <-c }
func neverSelect(a, b chan int) {
	select {
	case result = <-a:
	case b <- 1:
	}
}
func neverNil()                     { var c chan int; <-c }
func neverHolds(c, held chan int)   { <-c; close(held) }
func neverHeldByBlocked(c chan int) { <-c }
func mayReceive()                   { <-global }
func maySelect(a chan int) {
	select {
	case <-a:
	case <-global:
	}
}
func mayHeldBySleeper(c chan int) { <-c }
func mayHeldByWaiting(c chan int) { <-c }
func sleeps(c chan int)           { time.Sleep(time.Hour); close(c) }
func waits(held chan int)         { <-global; close(held) }
func mayTick(c <-chan time.Time)  { <-c }
func mayHeldByDefer(c chan int)   { <-c }
func defers(c chan int)           { defer close(c); time.Sleep(time.Hour) }
func mayLock(m *sync.Mutex)       { m.Lock() }

//go:noinline
func start(count int) {
	for i := 0; i < count; i++ {
		go neverSend(make(chan int))
		go neverReceive(make(chan int, 3))
		go neverSelect(make(chan int), make(chan int))
		go neverNil()
		held := make(chan int)
		go neverHolds(make(chan int), held)
		go neverHeldByBlocked(held)
		go mayReceive()
		go maySelect(make(chan int))
		held = make(chan int)
		go mayHeldBySleeper(held)
		go sleeps(held)
		held = make(chan int)
		go mayHeldByWaiting(held)
		go waits(held)
		go mayTick(time.NewTicker(time.Hour).C)
		held = make(chan int)
		go mayHeldByDefer(held)
		go defers(held)
		m := &sync.Mutex{}
		m.Lock()
		go mayLock(m)
	}
}

// Overwrites what the calls before left on the stack.
//
//go:noinline
func clear(deep int) int {
	var room [512]int
	if deep > 0 {
		room[deep] = clear(deep - 1)
	}
	return room[deep%7]
}

func main() {
	start(20)
	time.Sleep(300 * time.Millisecond)
	os.Stdout.WriteString("ready\n"[clear(60):])
	time.Sleep(time.Hour)
}
