// Keeps objects to which only variables, stacks and closures refer: small maps, slices, closures, and arguments of goroutines. Prints "ready".
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"
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
	time.Sleep(200 * time.Millisecond)
	runtime.GC()
	fmt.Println("ready")
	for {
		time.Sleep(time.Hour)
		fmt.Println(len(small), len(names), cache, head, tasks[0](), shape.Area(), timers)
	}
}
