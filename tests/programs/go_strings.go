// COUNT strings of C, of 200 bytes, are never freed. COUNT / 50 goroutines have a block of malloc on their stacks only. COUNT objects refer to
// a block of 152 bytes each: one in ten is kept, the collector has freed the others, but not their blocks. Prints "ready".
package main

/*
#include <stdlib.h>
*/
import "C"

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unsafe"
)

type Name struct{ text string }

var total int

//go:noinline
func encode(name *Name) { total += int(*C.CString(name.text)) }

type Record struct {
	number int
	block  unsafe.Pointer
}

var records []*Record

//go:noinline
func load(number int) {
	one := &Record{number, C.calloc(1, 152)}
	if number%10 == 0 {
		records = append(records, one)
	}
	total += one.number
}

//go:noinline
func hold(started chan bool) {
	block := C.calloc(1, 320)
	started <- true
	time.Sleep(time.Hour)
	total += int(*(*byte)(block))
}

func main() {
	count, _ := strconv.Atoi(os.Args[1])
	started := make(chan bool)
	for i := 0; i < count; i++ {
		if i%50 == 0 {
			go hold(started)
			<-started
		}
		encode(&Name{strings.Repeat("n", 199)})
	}
	for i := 0; i < count; i++ {
		load(i)
	}
	runtime.GC()
	runtime.GC() // the second collection sweeps what the first one found
	os.Stdout.WriteString("ready\n")
	time.Sleep(time.Hour)
}
