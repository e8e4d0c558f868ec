// Objects with memory of C and a finalizer, which nothing refers to. The argument is their number. The collector does not run, because
// Go's own heap is small. Prints "ready".
package main

// #include <stdlib.h>
// #include <string.h>
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"
	"unsafe"
)

const size = 8000

type Buffer struct {
	memory unsafe.Pointer
	name   string
	next   *Buffer
}

//go:noinline
func open(number int) *Buffer {
	buffer := &Buffer{memory: C.malloc(size), name: "b"}
	C.memset(buffer.memory, C.int(number), size)
	runtime.SetFinalizer(buffer, func(one *Buffer) { C.free(one.memory) })
	return buffer
}

func main() {
	debug.SetGCPercent(-1)
	count, _ := strconv.Atoi(os.Args[1])
	for i := 0; i < count; i++ {
		open(i)
	}
	waitForOthers()
	fmt.Println("ready")
	time.Sleep(time.Hour)
}
