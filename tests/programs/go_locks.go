// Goroutines wait for mutexes. Prints "ready" when all others wait. Arguments: the kind, and a number.
//
// again: a goroutine locks an RWMutex twice, and others wait for it. branch, helper: the holder has locked through a function that the
// compiler does not inline, so it is not known. The function that waits has locked the same mutex on another path (branch), or has unlocked
// it (helper). healthy: see there.
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
	case "again":
		go settings.set("a")
		waitForOthers()
		for i := 0; i < count; i++ {
			go settings.get("b")
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
	default:
		for _, kind := range healthyKinds {
			healthy(kind, count)
		}
		healthy("asleep", 6*count) // enough for a finding
	}
	waitForOthers()
	fmt.Println("ready")
	time.Sleep(time.Hour)
}

// take makes another goroutine lock a mutex, through a function that the compiler does not inline.
func take(a *Account) {
	locked := make(chan bool)
	go holdSlowly(a, locked)
	<-locked
}

//go:noinline
func (a *Account) await(flag *bool, condition *sync.Cond, waits chan bool) {
	a.lock.Lock()
	waits <- true
	for !*flag {
		condition.Wait()
	}
	a.lock.Unlock()
}

//go:noinline
func (a *Account) fail(times int) {
	defer func() {
		recover()
		take(a)
		a.lock.Lock()
		a.balance++
		a.lock.Unlock()
	}()
	a.lock.Lock()
	defer a.lock.Unlock()
	a.balance /= times
}

//go:noinline
func (a *Account) later(times int) {
	for i := 0; i < times; i++ {
		defer func() {
			take(a)
			a.lock.Lock()
			a.balance++
			a.lock.Unlock()
		}()
	}
	a.lock.Lock()
	defer a.lock.Unlock()
	a.balance++
}

//go:noinline
func (a *Account) release() {
	a.lock.Unlock()
	take(a)
	a.lock.Lock()
	a.balance++
}

//go:noinline
func (a *Account) around() {
	a.lock.Lock()
	a.release()
	a.lock.Unlock()
}

//go:noinline
func (a *Account) finish() {
	a.balance++
	a.lock.Unlock()
}

//go:noinline
func (a *Account) finishIndirectly(fast bool) {
	if fast {
		a.finish()
	} else {
		a.finish()
		a.balance++
	}
}

//go:noinline
func (a *Account) end(fast bool) {
	a.lock.Lock()
	a.finishIndirectly(fast)
	take(a)
	deposit(a)
	a.balance++
}

//go:noinline
func (a *Account) call(unlock func()) {
	a.lock.Lock()
	unlock()
	take(a)
	deposit(a)
	a.balance++
}

//go:noinline
func (a *Account) recovered() {
	defer func() {
		take(a)
		deposit(a)
	}()
	a.lock.Lock()
	defer a.lock.Unlock()
	defer func() { recover() }()
	panic("expected")
}

type pause struct{ locker sync.Locker }

//go:noinline
func (p *pause) await(a *Account) {
	p.locker.Unlock()
	take(a)
	p.locker.Lock()
}

//go:noinline
func (a *Account) pause() {
	a.lock.Lock()
	one := pause{&a.lock}
	one.await(a)
	a.lock.Unlock()
}

// both locks one account and uses another one.
//
//go:noinline
func both(one, other, third *Account, locked, wait chan bool) {
	one.lock.Lock()
	locked <- true
	<-wait
	deposit(third)
	other.balance++
	one.lock.Unlock()
}

var healthyKinds = []string{"condition", "asleep", "panic", "recovered", "deferred", "released", "ended", "called", "pointers", "locker"}

// healthy starts goroutines that wait for mutexes whose holder is not known: they have unlocked what they locked before.
func healthy(kind string, count int) {
	for i := 0; i < count; i++ {
		one := &Account{number: i}
		accounts = append(accounts, one)
		switch kind {
		case "condition", "asleep":
			flag, waits, condition := false, make(chan bool), sync.NewCond(&one.lock)
			go one.await(&flag, condition, waits)
			<-waits
			take(one)
			if flag = true; kind == "condition" {
				condition.Signal()
			} else {
				go deposit(one)
			}
		case "panic":
			go one.fail(0)
		case "recovered":
			go one.recovered()
		case "deferred":
			go one.later(12)
		case "released":
			go one.around()
		case "ended":
			go one.end(i%2 == 0)
		case "locker":
			go one.pause()
		case "called":
			go one.call(one.lock.Unlock)
		case "pointers":
			other, third := &Account{number: i}, &Account{number: i}
			accounts = append(accounts, other, third)
			locked, waits := make(chan bool), [2]chan bool{make(chan bool), make(chan bool)}
			take(other)
			go both(one, other, third, locked, waits[0])
			<-locked
			go both(third, one, other, locked, waits[1])
			<-locked
			close(waits[0])
			close(waits[1])
		}
	}
}
