// Two variables of a package refer to the same sessions. The argument is their number.
package main

import (
	"fmt"
	"os"
	"strconv"
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
	fmt.Println("ready")
	time.Sleep(time.Hour)
	fmt.Println(len(byID), len(recent))
}
