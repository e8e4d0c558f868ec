// A Go library for a program in another language. Start(COUNT) creates COUNT Items, each with a malloc block of 700 bytes, leaks COUNT
// blocks of 900 bytes, and starts COUNT goroutines that wait for ever.
package main

/*
#include <stdlib.h>
*/
import "C"

import (
	"runtime"
	"unsafe"
)

type Item struct {
	native unsafe.Pointer
	data   [600]byte
}

var items []*Item
var never = make(chan *Item)

//go:noinline
func wait() { never <- nil }

//go:noinline
func load() *Item { return &Item{native: C.calloc(1, 700)} }

//go:noinline
func drop() { C.calloc(1, 900) }

//export Start
func Start(count C.long) {
	for i := 0; i < int(count); i++ {
		items = append(items, load())
		drop()
		go wait()
	}
	waitForOthers()
	runtime.GC()
}

func main() {}
