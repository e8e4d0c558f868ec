// Goroutines lock a mutex and then again. Prints "ready" when all wait. Meanwhile, they have called functions that call others through
// interfaces, closures and channels. No function of the program unlocks what another one has locked, except a deferred one.
package main

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

type Logger interface{ Log(line string) }

type lines struct{ count int }

func (l *lines) Log(line string) { l.count += len(line) }

type Account struct {
	number  int
	lock    sync.Mutex
	log     Logger
	convert func(int) int
}

var accounts []*Account

//go:noinline
func deposit(a *Account) {
	a.lock.Lock()
	defer a.lock.Unlock()
	a.number++
}

var kinds = []func(a *Account){
	func(a *Account) {
		a.lock.Lock()
		defer a.lock.Unlock()
		a.log.Log(fmt.Sprintf("%v", a.number))
		deposit(a)
	},
	func(a *Account) {
		a.lock.Lock()
		defer func() {
			a.number++
			a.lock.Unlock()
		}()
		a.number = a.convert(a.number)
		deposit(a)
	},
	func(a *Account) {
		for i := 0; i < 3; i++ {
			a.lock.Lock()
			done := make(chan int)
			go func() { done <- i }()
			if <-done == 1 {
				deposit(a)
			}
			a.lock.Unlock()
		}
	},
}

func main() {
	count, _ := strconv.Atoi(os.Args[1])
	for i := 0; i < count*len(kinds); i++ {
		a := &Account{number: i, log: &lines{}, convert: func(n int) int { return n + 1 }}
		accounts = append(accounts, a)
		go kinds[i%len(kinds)](a)
	}
	waitForOthers()
	fmt.Println("ready")
	time.Sleep(time.Hour)
}
