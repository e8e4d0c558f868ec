/* Blocks that begin with the address of other memory, whose bytes are printable: 0x5a5a5a5a4040 is "@@ZZZZ". Heaps have such addresses
 * where nothing is at random places; here the memory is mapped where it is wanted. One block is held, another lost, and a string is text.
 * Prints their addresses. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void **volatile held;
static char *volatile text;

static void **block(char *first) {
    void **made = calloc(3, sizeof *made);
    made[0] = first;
    return made;
}

int main(void) {
    char *memory = mmap((void *)0x5a5a5a5a4000, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    memory[0] = 1;
    held = block(memory + 0x40);
    void **lost = block(memory + 0x50);
    text = strdup("a string, which is text");
    printf("%p %p %p\n", (void *)held, (void *)lost, (void *)text);
    lost = NULL;
    puts("ready");
    fflush(stdout);
    pause();
    return 0;
}
