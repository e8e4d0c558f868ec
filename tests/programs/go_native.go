// C code that Go calls allocates blocks of 3,000 bytes, one every 10 ms: main.main, main.handle, main.load, C parse. Go objects refer to them;
// a global variable refers to every tenth object. Prints "ready".
package main

/*
#include <stdlib.h>
#include <string.h>
__attribute__((noinline)) static void *parse(int n) { char *p = malloc(n); memset(p, 'x', n); return p; }
*/
import "C"
import (
	"os"
	"strconv"
	"time"
	"unsafe"
)

type Doc struct {
	Name string
	p    unsafe.Pointer
}

var docs []*Doc
var total int

//go:noinline
func load(i int) *Doc { return &Doc{Name: "doc" + strconv.Itoa(i), p: C.parse(3000)} }

//go:noinline
func handle(i int) {
	d := load(i)
	if i%10 == 0 {
		docs = append(docs, d)
	}
	total += len(d.Name)
}

func main() {
	os.Stdout.WriteString("ready\n")
	for i := 0; ; i++ {
		handle(i)
		time.Sleep(10 * time.Millisecond)
	}
}
