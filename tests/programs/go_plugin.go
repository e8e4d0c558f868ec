// A plugin for go_plugin_host.go. Its variable refers to COUNT Items, and each of COUNT goroutines to another one.
package main

import "C"

import "strconv"

type Item struct {
	name string
	next *Item
	data [600]byte
}

var items []*Item
var never = make(chan *Item)

//go:noinline
func wait(one *Item) { never <- one }

func Start(count int) {
	for i := 0; i < count; i++ {
		one := &Item{name: "item" + strconv.Itoa(i)}
		items = append(items, one)
		go wait(&Item{name: "waits", next: one})
	}
}
