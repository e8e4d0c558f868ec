// Part of each program in Go.
package main

import (
	"bytes"
	"runtime"
	"time"
)

// Wait until no other goroutine runs or can run.
func waitForOthers() {
	for text := make([]byte, 1<<20); ; time.Sleep(time.Millisecond) {
		length := runtime.Stack(text, true)
		if length == len(text) { // the text is cut
			text = make([]byte, 2*length)
		} else if bytes.Count(text[:length], []byte(" [run")) == 1 { // "running", "runnable"
			return
		}
	}
}
