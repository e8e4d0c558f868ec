// Maps 1 MiB with syscall.Mmap COUNT times for each of four kinds: only a block of malloc refers to the mapping; only a variable of C; only
// a freed block; nothing. Prints "ready".
package main

/*
#include <stdlib.h>
struct mapped { struct mapped *next; void *base; };
static struct mapped *list;
void *volatile bases[64];
static int count;
static void keep(void *base) {
	struct mapped *one = malloc(sizeof *one);
	one->base = base, one->next = list, list = one;
}
static void note(void *base) { bases[count++ % 64] = base; }
static void forget(void *base) {
	void **one = malloc(4000);
	one[100] = base;
	free(one);
}
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

const size = 1 << 20

//go:noinline
func mapped() unsafe.Pointer {
	data, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		panic(err)
	}
	data[0] = 1
	return unsafe.Pointer(&data[0])
}

//go:noinline
func run(count int) {
	for i := 0; i < count; i++ {
		C.keep(mapped())
		C.note(mapped())
		C.forget(mapped())
		mapped()
	}
}

//go:noinline
func overwrite(depth int) int {
	var words [100]int
	for at := range words {
		words[at] = depth
	}
	if depth > 0 {
		return overwrite(depth-1) + words[depth%100]
	}
	return words[0]
}

func main() {
	runtime.LockOSThread() // the last call of forget overwrites what the others left on the stack
	count, _ := strconv.Atoi(os.Args[1])
	run(count)
	C.forget(nil)
	overwrite(100)
	runtime.GC()
	fmt.Println("ready")
	time.Sleep(time.Hour)
}
