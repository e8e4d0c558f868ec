// Goroutines wait for mutexes. Prints "ready" when all others wait. Arguments: the kind, and a number. Each mutex is unlocked by the function
// that locks it.
//
// order: pairs of goroutines lock two accounts in different orders. busy: the holder waits for a channel.
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

var accounts []*Account
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

func main() {
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
	case "busy":
		go hold(locked)
		<-locked
		for i := 0; i < count; i++ {
			go register()
		}
	}
	waitForOthers()
	fmt.Println("ready")
	time.Sleep(time.Hour)
}
