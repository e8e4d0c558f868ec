// COUNT goroutines lock a mutex, unlock it in a way that is hard to see in the code, and wait for it. Meanwhile, another goroutine has locked
// it, through a function that the compiler does not inline. Prints "ready" when all wait. The test adds a function `unlock`, which unlocks,
// and a function `set`, which prepares an account. Each way needs a program of its own, because each would be a reason not to trust the
// others.
package main

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

type Inner struct {
	count int
	lock  sync.Mutex
}

type Account struct {
	number   int
	name     string
	inner    Inner
	balance  int
	any      interface{}
	call     func()
	callLock func(*sync.Mutex)
	unlocker interface{ Unlock() }
	locker   sync.Locker
	group    sync.WaitGroup
}

var accounts []*Account
var never = make(chan int)

//go:noinline
func lockSlowly(a *Account) { a.inner.lock.Lock() }

//go:noinline
func hold(a *Account, locked chan bool) {
	lockSlowly(a)
	locked <- true
	a.balance = <-never
}

//go:noinline
func deposit(a *Account) {
	a.inner.lock.Lock()
	a.balance++
	a.inner.lock.Unlock()
}

//go:noinline
func wait(a *Account) {
	locked := make(chan bool)
	go hold(a, locked)
	<-locked
	deposit(a)
}

func main() {
	count, _ := strconv.Atoi(os.Args[1])
	for i := 0; i < count; i++ {
		a := &Account{number: i}
		set(a)
		accounts = append(accounts, a)
		go use(a)
	}
	waitForOthers()
	fmt.Println("ready")
	time.Sleep(time.Hour)
}
