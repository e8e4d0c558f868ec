// Goroutines wait for mutexes. Prints "ready" when all others wait. Arguments: the kind, and a number.
//
// order: pairs of goroutines lock two accounts in different orders. again: a goroutine locks an RWMutex twice, and others wait for it.
// busy: the holder waits for a channel. branch, helper: the holder has locked through a function that the compiler does not inline, so it
// is not known. The function that waits has locked the same mutex on another path (branch), or has unlocked it (helper).
package main

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

type Account struct {
	number  int
	lock    sync.Mutex
	balance int
}

type Settings struct {
	lock   sync.RWMutex
	values map[string]int
}

var accounts []*Account
var settings = &Settings{values: map[string]int{}}
var never = make(chan int)
var registry sync.Mutex

//go:noinline
func transfer(from, to *Account, locked *sync.WaitGroup) {
	from.lock.Lock()
	locked.Done()
	locked.Wait()
	to.lock.Lock()
	to.balance++
	to.lock.Unlock()
	from.lock.Unlock()
}

//go:noinline
func (s *Settings) get(key string) int {
	s.lock.RLock()
	defer s.lock.RUnlock()
	return s.values[key]
}

//go:noinline
func (s *Settings) set(key string) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.values[key] = s.get(key) + 1
}

//go:noinline
func hold(locked chan bool) {
	registry.Lock()
	locked <- true
	<-never
	registry.Unlock()
}

//go:noinline
func register() {
	registry.Lock()
	accounts = nil
	registry.Unlock()
}

//go:noinline
func lockSlowly(a *Account) { a.lock.Lock() }

//go:noinline
func holdSlowly(a *Account, locked chan bool) {
	lockSlowly(a)
	locked <- true
	a.balance = <-never
}

//go:noinline
func branch(a *Account, fast bool) {
	if fast {
		a.lock.Lock()
		defer a.lock.Unlock()
		a.balance++
		return
	}
	deposit(a)
	a.balance--
}

//go:noinline
func deposit(a *Account) {
	a.lock.Lock()
	a.balance++
	a.lock.Unlock()
}

//go:noinline
func helper(a *Account, between func()) {
	a.lock.Lock()
	a.balance++
	a.lock.Unlock()
	between()
	deposit(a)
	a.balance--
}

func main() {
	fmt.Sprint(&Account{}, &Settings{}) // their types are in the program
	count, _ := strconv.Atoi(os.Args[2])
	locked := make(chan bool)
	switch os.Args[1] {
	case "order":
		for i := 0; i < count; i++ {
			one, other := &Account{number: i}, &Account{number: i}
			accounts = append(accounts, one, other)
			both := &sync.WaitGroup{}
			both.Add(2)
			go transfer(one, other, both)
			go transfer(other, one, both)
		}
	case "again":
		go settings.set("a")
		waitForOthers()
		for i := 0; i < count; i++ {
			go settings.get("b")
		}
	case "busy":
		go hold(locked)
		<-locked
		for i := 0; i < count; i++ {
			go register()
		}
	case "branch", "helper":
		for i := 0; i < count; i++ {
			one := &Account{number: i}
			accounts = append(accounts, one)
			if os.Args[1] == "branch" {
				go holdSlowly(one, locked)
				<-locked
				go branch(one, i < 0)
			} else {
				own := make(chan bool)
				go helper(one, func() {
					go holdSlowly(one, own)
					<-own
				})
			}
		}
	}
	waitForOthers()
	fmt.Println("ready")
	time.Sleep(time.Hour)
}
