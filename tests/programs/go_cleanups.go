// COUNT objects with a cleanup are garbage. The first cleanup that runs waits for a lock, so the others do not run. Each has an array of 3,000 bytes
// as its argument. Prints "ready". With a second argument, each object has a second cleanup, which uses the object, so no cleanup runs.
package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"time"
)

type Handle struct{ name *string }

var lock sync.Mutex
var total int
var stacks [1 << 16]byte

//go:noinline
func release(buffer []byte) {
	lock.Lock()
	total += len(buffer)
	lock.Unlock()
}

//go:noinline
func open() {
	runtime.AddCleanup(&Handle{}, release, make([]byte, 3000))
}

// waits returns whether a cleanup waits for the lock.
func waits() bool {
	text := stacks[:runtime.Stack(stacks[:], true)]
	return bytes.Contains(text, []byte("main.release")) && bytes.Contains(text, []byte("[sync.Mutex.Lock"))
}

func main() {
	count, _ := strconv.Atoi(os.Args[1])
	lock.Lock()
	for i := 0; i < count && len(os.Args) == 2; i++ {
		open()
	}
	if len(os.Args) > 2 {
		openForever(count)
	}
	debug.SetGCPercent(-1)
	runtime.GC()
	runtime.GC()
	for len(os.Args) == 2 && !waits() {
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println("ready")
	time.Sleep(time.Hour)
	fmt.Println(total)
}

//go:noinline
func openForever(count int) {
	for i := 0; i < count; i++ {
		handle := new(Handle)
		runtime.AddCleanup(handle, func(use func()) { use() }, func() { handle.name = nil })
		runtime.AddCleanup(handle, release, make([]byte, 3000))
	}
}
