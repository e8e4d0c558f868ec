// A Go program takes blocks from C's malloc: KEPT of them are held by Go objects only, by a list, by a goroutine's stack and by a map; LOST
// are forgotten. Prints "kept" or "lost" and the address of each.
package main

/*
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *take(size_t size, int letter) { return memset(malloc(size), letter, size); }
static void forget(size_t size, int letter) { printf("lost %p\n", take(size, letter)); fflush(stdout); }
static void ready(void) { puts("ready"); fflush(stdout); }
static void say(void *block) { printf("kept %p\n", block); fflush(stdout); }
*/
import "C"

import (
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

type holder struct {
	next  *holder
	block unsafe.Pointer
}

var first *holder
var named = map[int]unsafe.Pointer{}

//go:noinline
func onStack(waiting *sync.WaitGroup, never chan int) {
	block := C.take(100, 's')
	C.say(block)
	waiting.Done()
	<-never
	C.free(block)
}

// A thread that waits in a system call does so on the goroutine's stack, which lies in Go's heap.
//
//go:noinline
func waits(deep int, end int) int {
	var room [4096]byte
	if deep > 0 {
		return waits(deep-1, end) + int(room[deep])
	}
	count, _ := syscall.Read(end, room[:1])
	return count
}

//go:noinline
func scrub(left int) int {
	var room [4096]byte
	room[left%4096] = byte(left)
	if left == 0 {
		return 0
	}
	return scrub(left-1) + int(room[left%4096])
}

func main() {
	kept, _ := strconv.Atoi(os.Args[1])
	lost, _ := strconv.Atoi(os.Args[2])
	var waiting sync.WaitGroup
	never := make(chan int)
	for i := 0; i < kept; i++ {
		first = &holder{first, C.take(200, 'h')}
		C.say(first.block)
		named[i] = C.take(300, 'm')
		C.say(named[i])
		waiting.Add(1)
		go onStack(&waiting, never)
	}
	waiting.Wait()
	for i := 0; i < lost; i++ {
		C.forget(400, 'l')
	}
	scrub(20)
	for i := 0; i < 50; i++ { // what is left in registers and on the stacks of threads is another's then
		C.free(C.take(400, 'f'))
	}
	runtime.GC()
	runtime.GC()
	for i := 0; i < 3; i++ {
		var ends [2]int
		syscall.Pipe(ends[:])
		go waits(20, ends[0])
	}
	time.Sleep(50 * time.Millisecond)
	C.ready()
	<-time.After(time.Hour)
	close(never) // else the goroutines are blocked for good
}
