// COUNT strings of C, of 200 bytes, are never freed. COUNT / 50 goroutines have a block of malloc on their stacks only. Prints "ready".
package main

/*
#include <stdlib.h>
*/
import "C"

import (
	"os"
	"strconv"
	"strings"
	"time"
)

type Name struct{ text string }

var total int

//go:noinline
func encode(name *Name) { total += int(*C.CString(name.text)) }

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
	os.Stdout.WriteString("ready\n")
	time.Sleep(time.Hour)
}
