// A program with arrays of which slices include little. Arguments: the kind, and a number (COUNT). Kinds: "queue" (q = q[1:] of a global
// variable, until 10 of COUNT messages are left), "queues" (the same in COUNT / 200 structures), "cleared" (q = q[:0]), "headers" (the
// first 40 bytes of COUNT documents of 4,000 bytes, in structures), "keys" (substrings of lines as keys of a map), "tail" (the last 100
// bytes of COUNT bytes, in a global variable), "full" (a slice of all COUNT messages), "steady" (a queue to which messages are added).
// Prints "ready".
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

type Message struct {
	number int
	next   *Message
	data   [1000]byte
}

type Queue struct {
	name     string
	messages []*Message
}

type Document struct {
	header []byte
	number int
}

var queue []*Message
var queues = map[string]*Queue{}
var documents = map[int]*Document{}
var keys = map[string]int{}
var tail []byte

//go:noinline
func fill(to []*Message, count int) []*Message {
	for i := 0; i < count; i++ {
		to = append(to, &Message{number: i})
	}
	return to
}

//go:noinline
func line(number int) string { return fmt.Sprintf("%020d", number) + strings.Repeat("x", 3980) }

//go:noinline
func run(kind string, count int) {
	switch kind {
	case "queue":
		for queue = fill(nil, count); len(queue) > 10; {
			queue = queue[1:]
		}
	case "queues":
		for i := 0; i < count/200; i++ {
			one := &Queue{name: fmt.Sprint("queue ", i), messages: fill(nil, 200)}
			one.messages = one.messages[198:]
			queues[one.name] = one
		}
	case "cleared":
		queue = fill(nil, count)[:0]
	case "headers":
		for i := 0; i < count; i++ {
			documents[i] = &Document{make([]byte, 4000)[:40], i}
		}
	case "keys":
		for i := 0; i < count; i++ {
			keys[line(i)[:20]] = i
		}
	case "tail":
		tail = make([]byte, count)[count-100:]
	case "full":
		queue = fill(nil, count)
	case "steady":
		for queue = fill(nil, count/2); queue[len(queue)-1].number < count; {
			queue = append(queue[1:], &Message{number: queue[len(queue)-1].number + 1})
		}
		queue = append([]*Message(nil), queue...)
	}
}

func main() {
	count, _ := strconv.Atoi(os.Args[2])
	run(os.Args[1], count)
	runtime.GC()
	fmt.Println("ready")
	time.Sleep(time.Hour)
}
