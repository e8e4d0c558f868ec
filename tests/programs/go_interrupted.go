// Four goroutines count without calling functions, and Go's scheduler interrupts them. Once each has counted, the main goroutine reads
// through a nil pointer, and the runtime prints the stacks. Tests compare the line of each frame. Interrupted instructions are no calls.
package main

import (
	"runtime"
	"time"
)

type item struct{ padding, number int }

var counts [4]int
var none *item

//go:noinline
func count(at int) {
	for {
		counts[at]++
		counts[at] ^= 5
	}
}

//go:noinline
func number(one *item) int {
	return one.number
}

//go:noinline
func sum(deep int) int {
	if deep == 0 {
		return number(none)
	}
	return sum(deep-1) + deep
}

func main() {
	runtime.GOMAXPROCS(1)
	for at := range counts {
		go count(at)
	}
	for at := range counts {
		for counts[at] == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	println(sum(3))
}
