// Creates COUNT handles of runtime/cgo and deletes none. Prints "ready".
package main

/*
static void receive(unsigned long handle) { (void)handle; }
*/
import "C"

import (
	"os"
	"runtime/cgo"
	"strconv"
	"time"
)

type Session struct {
	number int
	data   [512]byte
}

//go:noinline
func pass(number int) { C.receive(C.ulong(cgo.NewHandle(&Session{number: number}))) }

func main() {
	count, _ := strconv.Atoi(os.Args[1])
	for i := 0; i < count; i++ {
		pass(i)
	}
	os.Stdout.WriteString("ready\n")
	time.Sleep(time.Hour)
}
