// Keeps objects to which only variables, stacks and closures refer: small maps, slices, closures, and arguments of goroutines. Prints "ready".
package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

type Item struct {
	Key  string
	Next *Item
	Size int
}

type Cache struct {
	lock  sync.Mutex
	items map[string]*Item
	order []*Item
}

type Order struct {
	Number int
	Names  [3]*Item
}

type Job struct {
	events chan int
	order  *Order
	done   bool
}

type Shape interface{ Area() int }
type Square struct{ side, more, other *int }
type Circle struct{ radius, more, other *int }

// No Triangle is live: variables that referred to one refer to a Rhombus.
type Triangle struct{ side, more, other *int }
type Rhombus struct{ side, more, other *int }
type Drawing struct {
	sizes [4]int
	shape Shape
}

func (t *Triangle) Area() int { return *t.side }
func (r *Rhombus) Area() int  { return *r.side }

func (s *Square) Area() int { return *s.side }
func (c *Circle) Area() int { return *c.radius }

var (
	small  = map[string]*Item{}
	names  = map[int]struct{}{}
	cache  *Cache
	head   *Item
	tasks  []func() int
	shape  Shape
	timers []*time.Timer
	raw    unsafe.Pointer
)

//go:noinline
func newCache(count int) *Cache {
	if count < 0 {
		return nil
	}
	one := &Cache{items: make(map[string]*Item)}
	for i := 0; i < 12; i++ {
		item := &Item{Key: strconv.Itoa(i)}
		one.items[item.Key] = item
		one.order = append(one.order, item)
	}
	return one
}

//go:noinline
func task(number int) func() int {
	item := &Item{Key: "task" + strconv.Itoa(number)}
	return func() int { number++; return len(item.Key) + number }
}

//go:noinline
func newOrder(number int) *Order { return &Order{Number: number} }

//go:noinline
func newShape(number int) Shape {
	if number > 1 {
		return &Square{side: &number}
	}
	return &Circle{radius: &number}
}

//go:noinline
func (j *Job) run() {
	<-j.events
	fmt.Println(j.order.Number)
}

func wait(order *Order, events chan int) {
	<-events
	fmt.Println(order.Number)
}

//go:noinline
func newRhombus() *Rhombus { return &Rhombus{side: new(int)} }

//go:noinline
func change(drawing *Drawing, number int) {
	if number >= 0 {
		drawing.shape = newRhombus()
	}
}

func waitChanged(number int, events chan int) {
	var drawing Drawing
	drawing.shape = &Triangle{side: &number}
	change(&drawing, number)
	<-events
	fmt.Println(drawing.shape.Area(), drawing.sizes[number&3])
}

//go:noinline
func newDrawing() *Drawing { return &Drawing{shape: newRhombus()} }

func waitCopied(number int, events chan int) {
	var drawing Drawing
	if number < 0 {
		drawing.shape = &Triangle{side: &number}
	} else {
		drawing = *newDrawing()
	}
	<-events
	fmt.Println(drawing.shape.Area(), drawing.sizes[number&3])
}

func waitArray(number int, events chan int) {
	var shapes [4]Shape
	shapes[0] = &Triangle{side: &number}
	shapes[number&0] = newRhombus()
	<-events
	fmt.Println(shapes[number&3])
}

func waitDeferred(number int, events chan int) (shape Shape) {
	defer func() { recover(); shape = newRhombus(); <-events }()
	shape = &Triangle{side: &number}
	if number >= 0 {
		panic(1)
	}
	return shape
}

//go:noinline
func useMany(a, b, c, d, e, f, g, h, i, j, k, l *Triangle) { fmt.Fprint(io.Discard, a == l) }

//go:noinline
func newMany() (a, b, c, d, e, f, g, h, i, j, k, l *Rhombus) {
	one := newRhombus()
	return one, one, one, one, one, one, one, one, one, one, one, one
}

//go:noinline
func newTriangle() *Triangle { return &Triangle{side: new(int)} }

func waitResults(number int, events chan int) {
	one := newTriangle()
	useMany(one, one, one, one, one, one, one, one, one, one, one, one)
	a, b, c, d, e, f, g, h, i, j, k, l := newMany()
	<-events
	fmt.Println(a == b, c == d, e == f, g == h, i == j, k.Area(), l.Area())
}

//go:noinline
func storeTriangle() { raw = unsafe.Pointer(&Triangle{side: new(int)}) }

//go:noinline
func storeRhombus() { atomic.StorePointer(&raw, unsafe.Pointer(newRhombus())) }

func waitAll(number int) {
	storeTriangle()
	storeRhombus()
	go waitChanged(number, make(chan int))
	go waitCopied(number, make(chan int))
	go waitArray(number, make(chan int))
	go func() { shape = waitDeferred(number, make(chan int)) }()
	go waitResults(number, make(chan int))
}

func main() {
	count, _ := strconv.Atoi(os.Args[1])
	for i := 0; i < 5; i++ {
		small[strconv.Itoa(i)] = &Item{}
		names[i] = struct{}{}
	}
	cache = newCache(count)
	for i := 0; i < count; i++ {
		head = &Item{Next: head}
		tasks = append(tasks, task(i))
		job := &Job{events: make(chan int), order: newOrder(i)}
		go job.run()
		order := newOrder(i)
		go func() { wait(order, make(chan int)) }()
		last := newOrder(i)
		time.AfterFunc(time.Hour, func() { fmt.Println(last) })
	}
	shape = newShape(count)
	waitAll(count)
	time.Sleep(200 * time.Millisecond)
	runtime.GC()
	fmt.Println("ready")
	for {
		time.Sleep(time.Hour)
		fmt.Println(len(small), len(names), cache, head, tasks[0](), shape.Area(), timers, raw)
	}
}
