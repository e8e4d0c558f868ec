// A thread waits in C code that Go called, called by Go code that C code called: main.main, C outer, main.callback, C inner. Prints "ready".
package main

/*
#include <stdio.h>
#include <unistd.h>

extern int callback(int);

__attribute__((noinline)) static int inner(int number) {
	puts("ready");
	fflush(stdout);
	for (;;)
		pause();
	return number;
}

__attribute__((noinline)) static int outer(int number) { return callback(number) + 1; }
*/
import "C"

//export callback
func callback(number C.int) C.int { return enter(number) + 1 }

//go:noinline
func enter(number C.int) C.int { return C.inner(number) + 1 }

func main() {
	println(C.outer(3))
}
