// Keeps objects of which only the runtime, a stack or code shows the type. Arguments: KIND COUNT. Kinds: "local" (a map that is a local
// variable, from which all entries but one were deleted), "hooks" (functions in a list), "waiting" (goroutines that wait for channels
// without pointers), "tree" (nodes that a method returns), "weak" (weak pointers to blobs, every second of which is freed, handles of
// package unique, and cleanups). "weak" is in source that the test adds, because package weak is new. Prints "ready".
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"
)

type request struct {
	number int
	body   [700]byte
}

type hub struct {
	name  string
	hooks []func()
}

var other = map[string]func(int){}
var listeners hub
var total int

//go:noinline
func work(count int) {
	seen := map[int64][30]byte{}
	for i := 0; i < count; i++ {
		seen[int64(i)] = [30]byte{1}
	}
	for i := 1; i < count; i++ {
		delete(seen, int64(i))
	}
	ready()
	total += len(seen)
}

//go:noinline
func (h *hub) listen(one *request) { h.hooks = append(h.hooks, func() { one.body[0]++ }) }

//go:noinline
func wait(done chan int) { total += <-done }

type node struct {
	left, right *node
	key         int
	data        [64]byte
}

func (n *node) insert(key int) *node {
	if n == nil {
		return &node{key: key}
	}
	if key < n.key {
		n.left = n.left.insert(key)
	} else {
		n.right = n.right.insert(key)
	}
	return n
}

var tree *node

func ready() {
	runtime.GC()
	runtime.GC()
	waitForOthers()
	fmt.Println("ready")
	time.Sleep(time.Hour)
}

func main() {
	count, _ := strconv.Atoi(os.Args[2])
	switch os.Args[1] {
	case "local":
		work(count)
	case "hooks":
		for i := 0; i < count; i++ {
			listeners.listen(&request{number: i})
		}
	case "waiting":
		for i := 0; i < count; i++ {
			go wait(make(chan int))
		}
	case "tree":
		for i := 0; i < count; i++ {
			tree = tree.insert(i * 7919 % 10007)
		}
	default:
		other[os.Args[1]](count)
	}
	ready()
	fmt.Println(total, len(listeners.hooks), tree)
}

// Kind "whole": goroutines wait in a method of the first field of their objects, which have a slot of the same size as the field alone.
type waiter interface{ wait(done chan int) }

type part struct {
	next *part
	data [8]*int
}

type whole struct {
	part
	more *int
}

//go:noinline
func (p *part) wait(done chan int) { total += <-done + *p.data[0] }

//go:noinline
func drive(one waiter, done chan int) {
	one.wait(done)
	total++
}

//go:noinline
func newWhole() waiter { return &whole{} }

func init() {
	other["whole"] = func(count int) {
		for i := 0; i < count; i++ {
			go func() { drive(newWhole(), make(chan int)) }()
		}
	}
}
