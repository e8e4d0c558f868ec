// Only words on stacks of goroutines refer to blocks of C, whose size depends on the state of the goroutine. Prints "ready".
//
// unused: 0 B more, below the stack pointer. waiting: 1 step more, for a channel; call: 2, in C; syscall: 3; callback: 4, in a function that
// C calls; handler: 5, interrupted by a signal whose handler does not return. A step is 64 B.
package main

/*
#cgo CFLAGS: -O2 -fomit-frame-pointer -fno-asynchronous-unwind-tables
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern void enter(void);
// The frame of this function cannot be unwound.
static void stay(int number) {
    volatile char frame[200];
    for (frame[0] = number;;)
        pause();
}
static void call(void) { stay(0); }
static void call_back(void) { enter(); }

static void handle(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = stay;
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR2, &action, 0);
}
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"
)

const count = 300
const base = 1024
const step = 64

const kinds = 6

var masked [kinds][count]uintptr // not the addresses themselves, so that nothing else refers to the blocks
var never = make(chan int)
var arrived int32
var total uintptr

//export enter
func enter() { keep(4, func() { wait() }) }

func wait() { atomic.AddInt32(&arrived, 1); <-never }

// keep has the addresses of blocks in an array on its stack while it calls a function.
//
//go:noinline
func keep(number int, inside func()) {
	var words [count]uintptr
	for i := range words {
		words[i] = ^masked[number][i]
	}
	inside()
	for _, one := range words {
		total += one
	}
}

// descend calls a function deep in the stack, so that no later call overwrites its frame.
//
//go:noinline
func descend(depth int, inside func()) {
	var words [512]byte
	if depth == 0 {
		inside()
	} else {
		descend(depth-1, inside)
	}
	total += uintptr(words[depth&511])
}

func main() {
	debug.SetGCPercent(-1) // the collector shrinks stacks
	runtime.GC()
	C.handle()
	for number := range masked {
		for i := range masked[number] {
			masked[number][i] = ^uintptr(C.malloc(C.size_t(base + step*number)))
		}
	}
	done := make(chan bool)
	go func() {
		descend(100, func() { keep(0, func() {}) })
		done <- true
		wait()
	}()
	<-done
	go keep(1, wait)
	go keep(2, func() { atomic.AddInt32(&arrived, 1); C.call() })
	go keep(3, func() {
		var ends [2]int
		syscall.Pipe(ends[:])
		atomic.AddInt32(&arrived, 1)
		syscall.Read(ends[0], make([]byte, 1))
	})
	go C.call_back()
	go func() {
		runtime.LockOSThread()
		descend(100, func() {})      // the stack grows
		time.Sleep(time.Millisecond) // the runtime saves this stack pointer
		keep(5, func() {
			atomic.AddInt32(&arrived, 1)
			syscall.RawSyscall(syscall.SYS_TGKILL, uintptr(os.Getpid()), uintptr(syscall.Gettid()), uintptr(syscall.SIGUSR2))
		})
	}()
	for atomic.LoadInt32(&arrived) < kinds-1 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond)
	fmt.Println("ready")
	time.Sleep(time.Hour)
}
