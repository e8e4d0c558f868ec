// COUNT objects refer to images of C, of 24 and 2000 bytes, which nothing frees. If the first argument is "kept", a map refers to the
// objects; with "some", to an eighth of them; otherwise nothing does. Prints "ready".
package main

/*
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned char *pixels; int width, height; } image;

static image *image_new(int width, int height) {
    image *made = malloc(sizeof *made);
    made->pixels = memset(malloc(width * height), 1, width * height);
    return made;
}

static int image_width(image *one) { return one->width; }
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"
)

// Since Go 1.22, the block of such a large object begins with a header.
type Image struct {
	name   string
	handle *C.image
	counts [80]int
}

var images = map[string]*Image{}
var total int

//go:noinline
func open(name string, keep bool) {
	one := &Image{name: name, handle: C.image_new(40, 50)}
	if keep {
		images[name] = one
	}
}

//go:noinline
func size(name string) {
	block := C.malloc(8)
	total += len(name) + int(C.image_width((*C.image)(block)))
	C.free(block)
}

//go:noinline
func clear(depth int) int {
	var words [512]int
	if depth == 0 {
		return words[depth]
	}
	return clear(depth-1) + words[depth]
}

func main() {
	count, _ := strconv.Atoi(os.Args[2])
	for i := 0; i < count; i++ {
		open("image "+strconv.Itoa(i), os.Args[1] == "kept" || (os.Args[1] == "some" && i%8 == 0))
	}
	size("")
	total += clear(100)
	runtime.GC()
	runtime.GC()
	fmt.Println("ready")
	time.Sleep(time.Hour)
}
