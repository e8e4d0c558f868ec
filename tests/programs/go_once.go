// Goroutines wait for the function of a sync.Once. Prints "ready" when all others wait. Arguments: the kind, and a number.
//
// load: the function waits for a channel. open: the function calls Do of the same sync.Once. withdraw: each goroutine waits for the mutex
// at the start of an account, which a function has not unlocked.
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

type Account struct {
	mu      sync.Mutex
	balance int
	history [600]byte
}

//go:noinline
func (a *Account) withdraw(amount int) error {
	a.mu.Lock()
	if amount > a.balance {
		return fmt.Errorf("%d is missing", amount-a.balance)
	}
	a.balance -= amount
	a.mu.Unlock()
	return nil
}

func main() {
	count, _ := strconv.Atoi(os.Args[2])
	tables := make([]*Table, count)
	for i := range tables {
		tables[i] = &Table{name: strconv.Itoa(i)}
		switch os.Args[1] {
		case "load":
			go load()
		case "open":
			go tables[i].open()
		default:
			account := &Account{balance: i}
			account.withdraw(count)
			go account.withdraw(1)
		}
	}
	waitForOthers()
	fmt.Println("ready")
	time.Sleep(time.Hour)
	fmt.Println(tables)
}
