// Goroutines wait for mutexes that they have locked and unlocked before, and that another goroutine holds, which has locked them through a
// function that the compiler does not inline. Prints "ready" when all wait. Each kind unlocks in another way that is hard to see in the
// code of the function that locks, and may unlock once more later, so that the function looks as if it still held the lock.
package main

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

type Releaser interface{ Release() bool }

type Account struct {
	number  int
	lock    sync.Mutex
	shared  sync.RWMutex
	balance int
	hook    func() bool
	locker  sync.Locker
	other   Releaser
}

type release struct{ a *Account }

func (r *release) Release() bool { return finish(r.a) }

var accounts []*Account
var never = make(chan int)
var work = make(chan *Account)

//go:noinline
func lockSlowly(a *Account) { a.lock.Lock() }

//go:noinline
func holdSlowly(a *Account, locked chan bool) {
	lockSlowly(a)
	locked <- true
	a.balance = <-never
}

// wait lets another goroutine lock an account, and waits for it.
//
//go:noinline
func wait(a *Account) {
	locked := make(chan bool)
	go holdSlowly(a, locked)
	<-locked
	deposit(a)
}

//go:noinline
func deposit(a *Account) {
	a.lock.Lock()
	a.balance++
	a.lock.Unlock()
}

//go:noinline
func finish(a *Account) bool {
	a.lock.Unlock()
	return a.number < 1000
}

//go:noinline
func finishTwice(a *Account) bool { return finish(a) && a.balance == 0 }

//go:noinline
func finishBySwitch(a *Account) bool {
	switch a.number % 16 {
	case 0:
		a.balance += 2
	case 1:
		a.balance *= 3
	case 2:
		a.balance ^= 4
	case 3:
		a.balance -= 5
	case 4:
		a.balance = 6
	case 5:
		a.balance /= 7
	case 6:
		a.balance %= 8
	case 7:
		a.balance |= 9
	case 8:
		a.balance &= 10
	}
	a.lock.Unlock()
	return true
}

//go:noinline
func call(f func()) { f() }

//go:noinline
func lockWriting(a *Account) { a.shared.Lock() }

//go:noinline
func holdWriting(a *Account, locked chan bool) {
	lockWriting(a)
	locked <- true
	a.balance = <-never
}

//go:noinline
func finishReading(a *Account) bool { return finishReadingTwice(a) || a.balance > 3 }

//go:noinline
func finishReadingTwice(a *Account) bool {
	a.shared.RUnlock()
	return a.number < 1000
}

func worker() {
	for a := range work {
		finish(a)
	}
}

var kinds = []func(a *Account){
	func(a *Account) {
		a.lock.Lock()
		done := a.hook()
		wait(a)
		if !done {
			a.lock.Unlock()
		}
	},
	func(a *Account) {
		a.lock.Lock()
		done := a.other.Release()
		wait(a)
		if !done {
			a.lock.Unlock()
		}
	},
	func(a *Account) {
		a.lock.Lock()
		done := finishTwice(a)
		wait(a)
		if !done {
			a.lock.Unlock()
		}
	},
	func(a *Account) {
		a.lock.Lock()
		done := finishBySwitch(a)
		wait(a)
		if !done {
			a.lock.Unlock()
		}
	},
	func(a *Account) {
		a.lock.Lock()
		ended := make(chan bool)
		go func() {
			a.lock.Unlock()
			ended <- true
		}()
		done := <-ended
		wait(a)
		if !done {
			a.lock.Unlock()
		}
	},
	func(a *Account) {
		a.lock.Lock()
		done := true
		select {
		case work <- a:
		case <-never:
			done = false
		}
		wait(a)
		if !done {
			a.lock.Unlock()
		}
	},
	func(a *Account) {
		a.lock.Lock()
		locked := true
		defer func() {
			if locked {
				a.lock.Unlock()
			}
		}()
		call(func() {
			a.lock.Unlock()
			locked = false
		})
		wait(a)
	},
	func(a *Account) {
		a.lock.Lock()
		locked := true
		defer func() {
			if locked {
				a.lock.Unlock()
			}
		}()
		var once sync.Once
		once.Do(func() {
			a.lock.Unlock()
			locked = false
		})
		wait(a)
	},
	func(a *Account) {
		a.lock.Lock()
		done := a.number < 1000
		a.locker.Unlock()
		wait(a)
		if !done {
			a.lock.Unlock()
		}
	},
	func(a *Account) {
		a.shared.RLock()
		done := finishReading(a)
		locked := make(chan bool)
		go holdWriting(a, locked)
		<-locked
		a.shared.RLock()
		a.balance++
		a.shared.RUnlock()
		if !done {
			a.shared.RUnlock()
		}
	},
}

func main() {
	count, _ := strconv.Atoi(os.Args[1])
	go worker()
	for i := 0; i < count*len(kinds); i++ {
		a := &Account{number: i % 100}
		a.hook, a.locker, a.other = func() bool { return finish(a) }, &a.lock, &release{a}
		accounts = append(accounts, a)
		go kinds[i%len(kinds)](a)
	}
	waitForOthers()
	fmt.Println("ready")
	time.Sleep(time.Hour)
}
