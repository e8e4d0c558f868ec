// Loads the plugin FILE, and calls its function Start(COUNT). Writes what pprof says of all goroutines to the file "goroutines", and prints
// figures of runtime.MemStats as NAME=VALUE.
package main

import (
	"fmt"
	"os"
	"plugin"
	"runtime"
	"runtime/pprof"
	"strconv"
	"time"
)

func main() {
	loaded, err := plugin.Open(os.Args[1])
	if err != nil {
		panic(err)
	}
	start, err := loaded.Lookup("Start")
	if err != nil {
		panic(err)
	}
	count, _ := strconv.Atoi(os.Args[2])
	start.(func(int))(count)
	waitForOthers()
	runtime.GC()
	runtime.GC()
	file, _ := os.Create("goroutines")
	pprof.Lookup("goroutine").WriteTo(file, 2)
	file.Close()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	os.Stdout.WriteString(fmt.Sprintf("HeapObjects=%d HeapAlloc=%d\nready\n", m.HeapObjects, m.HeapAlloc))
	time.Sleep(time.Hour)
}
