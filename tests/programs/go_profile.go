// Global variables hold COUNT items of 2,000 bytes and COUNT buffers of 30,000 bytes, and COUNT more items are garbage that was collected.
// 40 goroutines wait. Writes its own heap profile to FILE, and its profile of goroutines to FILE.goroutines, and prints "ready".
//
//	go_profile COUNT FILE [MemProfileRate]
package main

import (
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"time"
)

type Item struct {
	Body [2000]byte
	Next *Item
}

var items []*Item
var buffers [][]byte
var garbage *Item
var never chan int

func makeItem() *Item { return &Item{} }

//go:noinline
func addItem(list []*Item) []*Item { return append(list, makeItem()) }

//go:noinline
func addBuffer(size int) { buffers = append(buffers, make([]byte, size)) }

//go:noinline
func drop() { garbage = &Item{} }

func inlined() int { return <-never }

//go:noinline
func wait() int { return inlined() }

func write(file, profile string) {
	out, _ := os.Create(file)
	pprof.Lookup(profile).WriteTo(out, 0)
	out.Close()
}

func main() {
	count, _ := strconv.Atoi(os.Args[1])
	if len(os.Args) > 3 {
		runtime.MemProfileRate, _ = strconv.Atoi(os.Args[3])
	}
	items, buffers = make([]*Item, 0, count), make([][]byte, 0, count)
	for i := 0; i < count; i++ {
		items = addItem(items)
		addBuffer(30_000)
		drop()
	}
	for i := 0; i < 40; i++ {
		go wait()
	}
	garbage = nil
	waitForOthers()
	runtime.GC()
	runtime.GC() // returns once the sweep of the one before is complete
	write(os.Args[2], "heap")
	write(os.Args[2]+".goroutines", "goroutine")
	os.Stdout.WriteString("ready\n")
	time.Sleep(time.Hour)
}
