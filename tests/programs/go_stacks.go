// GOROUTINES goroutines wait, each with a stack of more than 8 KiB; OBJECTS slices of 64 KiB are kept. Prints what runtime.MemStats says:
// HeapInuse, StackInuse, HeapSys.
package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"time"
)

//go:noinline
func deep(left int, waiting *sync.WaitGroup, never chan int) int {
	var room [1024]byte
	room[left] = byte(left)
	if left == 0 {
		waiting.Done()
		<-never
		return int(room[0])
	}
	return deep(left-1, waiting, never) + int(room[left])
}

func main() {
	goroutines, _ := strconv.Atoi(os.Args[1])
	objects, _ := strconv.Atoi(os.Args[2])
	never := make(chan int)
	var waiting sync.WaitGroup
	for i := 0; i < goroutines; i++ {
		waiting.Add(1)
		go deep(8, &waiting, never)
	}
	waiting.Wait()
	var kept [][]byte
	for i := 0; i < objects; i++ {
		kept = append(kept, make([]byte, 64<<10))
		for at := range kept[i] {
			kept[i][at] = byte(i)
		}
	}
	debug.SetGCPercent(-1)
	runtime.GC()
	runtime.GC() // returns once the sweep of the one before is complete
	var said runtime.MemStats
	runtime.ReadMemStats(&said)
	os.Stdout.WriteString(fmt.Sprintf("%d %d %d\nready\n", said.HeapInuse, said.StackInuse, said.HeapSys))
	<-time.After(time.Hour)
	runtime.KeepAlive(kept)
}
