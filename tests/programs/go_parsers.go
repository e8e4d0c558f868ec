// A Go program makes COUNT parsers in C, of 64 and 4000 bytes each. It keeps a tenth of the Go objects that refer to them, and another tenth
// has finalizers. Go's collector is off. Prints "ready".
package main

/*
#include <stdlib.h>
#include <string.h>

typedef struct { void *buffer; char rest[56]; } parser;

static parser *make(void) {
    parser *made = calloc(1, sizeof *made);
    made->buffer = memset(malloc(4000), 'b', 4000);
    return made;
}

static void destroy(parser *one) {
    free(one->buffer);
    free(one);
}
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"
)

type Parser struct {
	number int
	inner  *C.parser
	next   *Parser
}

var kept *Parser

//go:noinline
func work(count int) {
	for i := 0; i < count; i++ {
		one := &Parser{number: i, inner: C.make()}
		if i%10 == 0 {
			one.next, kept = kept, one
		} else if i%10 == 1 {
			runtime.SetFinalizer(one, func(one *Parser) { C.destroy(one.inner) })
		}
	}
}

func main() {
	debug.SetGCPercent(-1)
	count, _ := strconv.Atoi(os.Args[1])
	work(count)
	fmt.Println("ready")
	time.Sleep(time.Hour)
}
