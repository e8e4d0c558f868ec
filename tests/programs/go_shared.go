// A shared library for go_shared_host.c. Start(COUNT, KIND) takes COUNT Items of KIND, and starts as many goroutines that wait for ever.
// Writes what pprof says of all goroutines to the file KIND, and figures of runtime.MemStats to the file KIND.figures.
package main

import "C"

import (
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
)

type Item struct {
	name string
	next *Item
	data [600]byte
}

var items []*Item
var never = make(chan *Item)

//go:noinline
func wait(one *Item) { never <- one }

//export Start
func Start(count int, kind *C.char) {
	name := C.GoString(kind)
	for i := 0; i < count; i++ {
		one := &Item{name: name + strconv.Itoa(i)}
		items = append(items, one)
		go wait(one)
	}
	waitForOthers()
	runtime.GC()
	runtime.GC()
	file, _ := os.Create(name)
	pprof.Lookup("goroutine").WriteTo(file, 2)
	file.Close()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	figures := fmt.Sprintf("HeapObjects=%d HeapAlloc=%d\n", m.HeapObjects, m.HeapAlloc)
	os.WriteFile(name+".figures", []byte(figures), 0o644)
}

func main() {}
