// Two variables of a package refer to the same sessions. Arguments: their number, and the MiB of a mapping beside Go's heap, if any. The package
// syscall knows of the mapping if there is a third argument.
package main

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

type Session struct {
	number int
	data   [500]byte
}

var (
	byID   = map[int]*Session{}
	recent []*Session
)

func main() {
	count, _ := strconv.Atoi(os.Args[1])
	for number := 0; number < count; number++ {
		session := &Session{number: number}
		byID[number] = session
		recent = append(recent, session)
	}
	if len(os.Args) > 2 {
		size, _ := strconv.Atoi(os.Args[2])
		const access, how = syscall.PROT_READ | syscall.PROT_WRITE, syscall.MAP_PRIVATE | syscall.MAP_ANON | syscall.MAP_POPULATE
		if len(os.Args) > 3 {
			syscall.Mmap(-1, 0, size<<20, access, how)
		} else {
			syscall.Syscall6(syscall.SYS_MMAP, 0, uintptr(size<<20), access, how, ^uintptr(0), 0)
		}
	}
	fmt.Println("ready")
	time.Sleep(time.Hour)
	fmt.Println(len(byID), len(recent))
}
