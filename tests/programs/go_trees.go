// Trees and lists whose only roots are global variables: code stores the objects through pointers, or returns them from functions. Prints the
// number of objects of each type, then "ready".
package main

import (
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strconv"
	"time"
	"unsafe"
)

type Looped struct {
	key         int
	name        string
	left, right *Looped
}
type Recursive struct {
	key         int
	name        string
	left, right *Recursive
}
type Returned struct {
	key         int
	name        string
	left, right *Returned
}
type Listed struct {
	key  int
	name string
	next *Listed
}
type Owned struct {
	name        string
	left, right *Owned
}
type List struct {
	head, tail *Listed
	count      int
}
type Hidden struct {
	key         int
	name        string
	left, right *Hidden
}
type Pointed struct {
	key  int
	name string
	next *Pointed
}
type HiddenTree struct {
	count int
	root  *Hidden
}
type PointedList struct {
	name       string
	head, tail *Pointed
}
type Nested struct {
	key  int
	next *Nested
}
type Store struct {
	name  string
	first *Nested
}
type Application struct {
	name  string
	store *Store
	ready bool
}
type Left struct{ name, other string }
type Right struct{ first, last string }
type ToLeft struct {
	name string
	To   *Left
}
type ToRight struct {
	name string
	To   *Right
}
type Maker interface{ make() *Left }
type LeftMaker struct{}

func (LeftMaker) make() *Left { return &Left{name: fmt.Sprint("left", os.Getpid())} }

// Since Go 1.22, the block of such a large object begins with a header.
type Wide struct {
	counts [80]int
	name   string
	next   *Wide
	key    int
}

type Tree struct {
	count int
	root  *Owned
}
type Odd struct{ name, other string }
type Even struct{ first, last string }

var looped *Looped
var recursive *Recursive
var returned *Returned
var list List
var wide *Wide
var tree Tree
var hidden = &HiddenTree{}
var pointed = &PointedList{name: "pointed"}
var application = &Application{name: "application", store: &Store{name: "store"}}
var either any = &ToLeft{}
var maker Maker = LeftMaker{}
var mixed [64]unsafe.Pointer

//go:noinline
func loop(at **Looped, key int) {
	for *at != nil {
		if key < (*at).key {
			at = &(*at).left
		} else {
			at = &(*at).right
		}
	}
	*at = &Looped{key: key, name: fmt.Sprint("looped", key)}
}

func recurse(at **Recursive, key int) {
	if *at == nil {
		*at = &Recursive{key: key, name: fmt.Sprint("recursive", key)}
	} else if key < (*at).key {
		recurse(&(*at).left, key)
	} else {
		recurse(&(*at).right, key)
	}
}

func insert(one *Returned, key int) *Returned {
	if one == nil {
		return &Returned{key: key, name: fmt.Sprint("returned", key)}
	}
	if key < one.key {
		one.left = insert(one.left, key)
	} else {
		one.right = insert(one.right, key)
	}
	return one
}

//go:noinline
func (list *List) push(key int) {
	one := &Listed{key: key, name: fmt.Sprint("listed", key)}
	if list.tail == nil {
		list.head = one
	} else {
		list.tail.next = one
	}
	list.tail = one
	list.count++
}

//go:noinline
func (tree *Tree) insert(name string) {
	tree.count++
	at := &tree.root
	for *at != nil {
		if name < (*at).name {
			at = &(*at).left
		} else {
			at = &(*at).right
		}
	}
	*at = &Owned{name: name}
}

//go:noinline
func hide(tree *HiddenTree, key int) {
	tree.count++
	at := &tree.root
	for *at != nil {
		if key < (*at).key {
			at = &(*at).left
		} else {
			at = &(*at).right
		}
	}
	*at = &Hidden{key: key, name: fmt.Sprint("hidden", key)}
}

//go:noinline
func point(key int) {
	one := &Pointed{key: key, name: fmt.Sprint("pointed", key)}
	if pointed.tail == nil {
		pointed.head = one
	} else {
		pointed.tail.next = one
	}
	pointed.tail = one
}

//go:noinline
func nest(key int) {
	application.store.first = &Nested{key: key, next: application.store.first}
}

// Objects of both types are stored where the pointer points.
//
//go:noinline
func mix(at *unsafe.Pointer, number int) {
	if number%2 == 1 {
		*at = unsafe.Pointer(&Odd{name: fmt.Sprint("odd", number)})
	} else {
		*at = unsafe.Pointer(&Even{last: fmt.Sprint("even", number)})
	}
}

// It runs only if the value of the interface is a ToRight, but it never is.
//
//go:noinline
func store() {
	either.(*ToRight).To = &Right{last: fmt.Sprint("right", os.Getpid())}
}

//go:noinline
func choose() {
	if _, is := either.(*ToRight); is {
		store()
	} else {
		reflect.ValueOf(either).Elem().Field(1).Set(reflect.ValueOf(maker.make()))
	}
}

func fill(count int) {
	for number := 0; number < count; number++ {
		key := number * 7919 % 100003
		loop(&looped, key)
		recurse(&recursive, key)
		returned = insert(returned, key)
		list.push(key)
		tree.insert(fmt.Sprint("owned", key))
		hide(hidden, key)
		point(key)
		nest(key)
		wide = &Wide{key: key, name: fmt.Sprint("wide", key), next: wide}
	}
	choose()
	mix(&mixed[0], 1)
	mix(&mixed[1], 2)
	mix(&mixed[2], 4)
}

func main() {
	count, _ := strconv.Atoi(os.Args[1])
	fill(count)
	runtime.GC()
	for _, name := range []string{"Looped", "Recursive", "Returned", "Listed", "Owned", "Hidden", "Pointed", "Nested", "Wide"} {
		fmt.Println("main."+name, count)
	}
	waitForOthers()
	fmt.Println("ready")
	time.Sleep(time.Hour)
	fill(1)
}
