// Caches that only a goroutine of each still refers to ("goroutines"), or a map that was emptied ("map"). The second argument is the number
// of caches, or of former entries. Prints "ready".
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"
)

type Session struct {
	ID   uint64
	Data [200]byte
}

type Cache struct {
	items map[uint64]*Session
	done  chan struct{}
}

var registry = map[uint64]Session{}

func expire(cache *Cache) {
	ticker := time.NewTicker(time.Hour)
	for {
		select {
		case <-ticker.C:
			clear(cache.items)
		case <-cache.done:
			return
		}
	}
}

func drop(count int) {
	for i := 0; i < count; i++ {
		cache := &Cache{items: map[uint64]*Session{}, done: make(chan struct{})}
		for k := uint64(0); k < 20; k++ {
			cache.items[k] = &Session{ID: k}
		}
		go expire(cache)
	}
}

func main() {
	count, _ := strconv.Atoi(os.Args[2])
	if os.Args[1] == "goroutines" {
		drop(count)
	} else {
		for i := 0; i < count; i++ {
			registry[uint64(i)] = Session{ID: uint64(i)}
		}
		for i := 1; i < count; i++ {
			delete(registry, uint64(i))
		}
	}
	runtime.GC()
	time.Sleep(100 * time.Millisecond)
	fmt.Println("ready")
	time.Sleep(time.Hour)
	runtime.KeepAlive(registry)
}
