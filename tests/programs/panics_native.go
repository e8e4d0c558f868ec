// Ends in a C function, by a null pointer or by abort(). Argument: "null" or "abort".
package main

/*
#include <stdlib.h>
static int null_it(int *at) { return *at; }
static void abort_it(void) { abort(); }
*/
import "C"
import "os"

//go:noinline
func work(word string) {
	switch word {
	case "null":
		C.null_it(nil)
	case "abort":
		C.abort_it()
	}
}

func main() { work(os.Args[1]) }
