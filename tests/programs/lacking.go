// Go with the mapping of lacking.c, which is its C part.
package main

// #include "lacking.c"
import "C"

import (
	"fmt"
	"time"
)

var kept [][]byte

func main() {
	for i := 0; i < 2000; i++ {
		kept = append(kept, make([]byte, 1000))
		_ = make([]byte, 100000)
	}
	fmt.Println("ready")
	time.Sleep(time.Hour)
}
