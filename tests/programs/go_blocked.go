// Goroutines wait for channels, mutexes, WaitGroups and conditions. Those whose function's name begins with "never" can never continue: no
// other goroutine and no variable can reach what they wait for. 20 goroutines for each function. Prints "ready".
package main

import (
	"os"
	"runtime"
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
func neverNil() { var c chan int; <-c }
func neverSelectNil(a, b chan int) {
	select {
	case result = <-a:
	case b <- 1:
	}
}
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

type Guarded struct {
	name  string
	lock  sync.Mutex
	both  sync.RWMutex
	group sync.WaitGroup
	ready *sync.Cond
}

var guarded = &Guarded{}

func neverLock(g *Guarded)         { g.lock.Lock() }
func neverLockAsHolder(c chan int) { <-c } // it has locked what neverLockOfHolder wants
func neverLockOfHolder(g *Guarded) { g.lock.Lock() }
func neverRead(g *Guarded)         { g.both.RLock() }
func neverWrite(g *Guarded)        { g.both.Lock() }
func neverGroup(g *Guarded)        { g.group.Wait() }
func neverCondition(g *Guarded)    { g.ready.L.Lock(); g.ready.Wait() }
func neverConditions(g *Guarded)   { g.ready.L.Lock(); g.ready.Wait() } // three for each condition
func mayLock(g *Guarded)           { g.lock.Lock() }
func mayLockVariable()             { guarded.lock.Lock() }
func mayGroup(g *Guarded)          { g.group.Wait() }
func mayCondition(g *Guarded)      { g.ready.L.Lock(); g.ready.Wait() }
func mayConditions(g *Guarded)     { g.ready.L.Lock(); g.ready.Wait() }
func mayRead(g *Guarded)           { g.both.RLock() }
func mayLockTimer(g *Guarded)      { g.lock.Lock() }
func mayLockFinalizer(g *Guarded)  { g.lock.Lock() }
func sleepsWith(g *Guarded) {
	time.Sleep(time.Hour)
	g.lock.Unlock()
	g.group.Done()
	g.ready.Signal()
	g.both.Unlock()
}
func waitsWith(g *Guarded)          { <-global; g.lock.Unlock() }
func holder(g *Guarded, c chan int) { g.lock.Lock(); neverLockAsHolder(c); g.lock.Unlock() }
func made() *Guarded {
	g := &Guarded{name: "guarded"}
	g.lock.Lock()
	g.both.Lock()
	g.group.Add(1)
	g.ready = sync.NewCond(&sync.Mutex{})
	return g
}

//go:noinline
func guard() {
	go neverLock(made())
	go neverRead(made())
	go neverWrite(made())
	go neverGroup(made())
	go neverCondition(made())
	one := made()
	go neverConditions(one)
	go neverConditions(one)
	go neverConditions(one)
	one = &Guarded{}
	go holder(one, make(chan int))
	for one.lock.TryLock() { // not yet locked
		one.lock.Unlock()
		time.Sleep(time.Millisecond)
	}
	go neverLockOfHolder(one)
	go mayLockVariable()
	one = made()
	go sleepsWith(one)
	go mayLock(one)
	go mayGroup(one)
	go mayRead(one)
	go mayCondition(one)
	one = made()
	go waitsWith(one)
	go mayLock(one)
	one = made()
	go mayConditions(one)
	go mayConditions(one)
	go mayConditions(one)
	go sleepsWith(one)
	one = made()
	timed := one
	time.AfterFunc(time.Hour, func() { timed.lock.Unlock() })
	go mayLockTimer(one)
	one = made()
	finalized := one
	runtime.SetFinalizer(&Guarded{name: "with a finalizer", ready: one.ready}, func(*Guarded) { finalized.lock.Unlock() })
	go mayLockFinalizer(one)
}

//go:noinline
func start(count int) {
	for i := 0; i < count; i++ {
		go neverSend(make(chan int))
		go neverReceive(make(chan int, 3))
		go neverSelect(make(chan int), make(chan int))
		go neverNil()
		go neverSelectNil(nil, nil)
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
		guard()
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
	guarded.lock.Lock()
	start(20)
	time.Sleep(300 * time.Millisecond)
	os.Stdout.WriteString("ready\n"[clear(60):])
	time.Sleep(time.Hour)
}
