// Global variables refer to caches, which share COUNT items with 200 bytes each. WAITING goroutines wait. TIMERS timers will each change an
// entry of 600 bytes in a day. Prints "ready".
//
//	go_cache COUNT [CACHES WAITING TIMERS]
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

type Item struct {
	Number int
	Body   *[200]byte
}

// An Entry has a header with its type, as all objects with pointers and more than 512 bytes.
type Entry struct {
	Body [600]byte
	Next *Entry
}

type Cache struct {
	Items []*Item
}

var (
	cache   = &Cache{}
	others  [8]*Cache
	waiting = make(chan int)
)

func wait(ready chan bool) int {
	var stack [6000]byte
	ready <- true
	stack[<-waiting] = 1
	return len(stack)
}

func number(at int) int {
	made := 0
	if at < len(os.Args) {
		made, _ = strconv.Atoi(os.Args[at])
	}
	return made
}

func main() {
	count, caches := number(1), []*Cache{cache}
	for i := 1; i < number(2); i++ {
		others[i] = &Cache{}
		caches = append(caches, others[i])
	}
	for _, one := range caches {
		one.Items = make([]*Item, 0, count/len(caches))
	}
	for i := 0; i < count; i++ {
		one := caches[i%len(caches)]
		one.Items = append(one.Items, &Item{i, new([200]byte)})
	}
	ready := make(chan bool)
	for i := 0; i < number(3); i++ {
		go wait(ready)
		<-ready
	}
	for i := 0; i < number(4); i++ {
		one := &Entry{}
		time.AfterFunc(24*time.Hour, func() { one.Body[0]++ })
	}
	fmt.Println("ready")
	time.Sleep(time.Hour)
}
