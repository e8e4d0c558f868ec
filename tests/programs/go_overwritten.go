// Go objects refer to blocks of C. After a collection, the program overwrites the references to all blocks but every tenth: the others
// are leaked, although the collector's buffers still have their addresses. Prints "ready".
package main

/*
#include <stdlib.h>
#include <string.h>
__attribute__((noinline)) static void *load(int n) { char *p = malloc(n); memset(p, 'x', n); return p; }
*/
import "C"
import (
	"os"
	"runtime"
	"strconv"
	"time"
	"unsafe"
)

type Image struct {
	pixels        unsafe.Pointer
	width, height int
}

var images []*Image
var total int

//go:noinline
func fill(count int) {
	for i := 0; i < count; i++ {
		images = append(images, &Image{C.load(3000), 30, 100})
	}
}

//go:noinline
func overwrite() {
	for i, one := range images {
		if i%10 != 0 {
			one.pixels = nil
		}
	}
}

func main() {
	count, _ := strconv.Atoi(os.Args[1])
	fill(count)
	runtime.GC()
	overwrite()
	os.Stdout.WriteString("ready\n")
	time.Sleep(time.Hour)
}
