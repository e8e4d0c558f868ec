// Ends in the way its argument names. What the runtime prints is the truth.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
)

type refused struct{ code int }

func (r refused) Error() string { return fmt.Sprintf("refused with code %d", r.code) }

type plain struct{ a, b int }

//go:noinline
func deeper(n int) int {
	var frame [64]int
	frame[n%64] = n
	return deeper(n+1) + frame[5]
}

//go:noinline
func parse(word string) int {
	switch word {
	case "text":
		panic("a plain text")
	case "error":
		panic(errors.New("no route to host 17"))
	case "wrapped":
		panic(fmt.Errorf("dial: %w", refused{3}))
	case "own":
		panic(&refused{4})
	case "nothing":
		panic(nil)
	case "bool":
		panic(len(word) == 4)
	case "late":
		defer func() {
			var m sync.Mutex
			m.Unlock()
		}()
		panic("before the fatal error")
	case "index":
		return int(os.Args[0][len(word)+500])
	case "nil":
		var m map[string]int
		m[word] = 1
	case "number":
		panic(42)
	case "struct":
		panic(plain{1, 2})
	case "null":
		var p *plain
		return p.b
	case "deadlock":
		var w sync.WaitGroup
		w.Add(1)
		w.Wait()
	case "deep":
		debug.SetMaxStack(1 << 20)
		return deeper(1)
	case "unlock":
		var m sync.Mutex
		m.Unlock()
	case "maps":
		m := map[int]int{}
		for n := 0; n < 8; n++ {
			go func() {
				for i := 0; ; i++ {
					m[i%4] = i
				}
			}()
		}
		select {}
	}
	return 1
}

func main() { fmt.Println(parse(os.Args[1])) }
