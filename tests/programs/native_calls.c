/* A function that interpreters call. Its blocks are lost. */

#include <stdlib.h>

__attribute__((noinline)) void probed(size_t size)
{
	char *volatile block = malloc(size);
	*block = 1;
	block = NULL;
}

typedef void callback(void);

/* Call a function of the interpreter from C. */
__attribute__((noinline)) void call_back(callback *function)
{
	function();
	__asm__ volatile("");
}
