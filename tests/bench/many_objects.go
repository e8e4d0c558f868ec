// Keeps lists of items with names and values, by key in maps: at least the given number of objects, of about 50 bytes each.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
)

const ofMap = 1000

type item struct {
	name  *string
	value *value
	last  *item
	owner map[string]*item
	count int
}

type value struct {
	bytes  []byte
	number any
}

var maps []map[string]*item

func main() {
	objects, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	for count := 0; count < objects; {
		made := make(map[string]*item)
		var last *item
		for at := 0; at < ofMap; at++ {
			// A key's characters, an item, its name, a value, the value's bytes and number
			key := "key " + strconv.Itoa(count+at)
			last = &item{&key, &value{make([]byte, 100), 1000 + count}, last, made, count}
			made[key] = last
			count += 6
		}
		maps = append(maps, made)
	}
	runtime.GC()
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadString('\n')
	runtime.KeepAlive(maps)
}
