// Goroutines wait for the function of a sync.Once. Prints "ready" when all others wait. Arguments: the kind, and a number.
//
// load: the function waits for a channel. open: the function calls Do of the same sync.Once.
package main

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"
)

type Table struct {
	name string
	once sync.Once
	rows []string
}

var settings sync.Once
var never = make(chan string)
var value string

//go:noinline
func load() string {
	settings.Do(func() { value = <-never })
	return value
}

//go:noinline
func (t *Table) open() {
	t.once.Do(t.read)
	t.rows = append(t.rows, t.name)
}

//go:noinline
func (t *Table) read() {
	t.open()
	t.name = t.rows[0]
}

func main() {
	count, _ := strconv.Atoi(os.Args[2])
	tables := make([]*Table, count)
	for i := range tables {
		tables[i] = &Table{name: strconv.Itoa(i)}
		if os.Args[1] == "load" {
			go load()
		} else {
			go tables[i].open()
		}
	}
	waitForOthers()
	fmt.Println("ready")
	time.Sleep(time.Hour)
	fmt.Println(tables)
}
