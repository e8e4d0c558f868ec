/* A program that passes a wrong pointer to free() or realloc(), in the way that its argument selects. It prints the pointer, and the
 * address of the structure from which the pointer is loaded, to stderr.
 * twice: a block that is already free; the caller got it as an argument.
 * interior: an address in the middle of a block, loaded from a structure.
 * static: the address of a variable.
 * local: the address of a local variable.
 * loop: an element of an array, in a loop.
 * jumped: an argument of a function that jumps to free().
 * loaded: loaded by a function that jumps to free().
 * cleared: like loaded, but the function sets the member to null before the jump.
 * emptied: loaded by the caller of a function; this function sets the member to null, and then calls free().
 * grown: like interior, passed to realloc(). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEPARATE __attribute__((noinline, noclone))

struct holder { long id; char *data; };
char static_buffer[64];
struct holder *holder;
void *volatile grown;
volatile int calls;

SEPARATE static void release(void *block) { free(block); calls++; }
SEPARATE static void release_member(struct holder *one) { free(one->data); calls++; }
SEPARATE static void grow_member(struct holder *one) { grown = realloc(one->data, 4000); calls++; }
SEPARATE static void release_all(char **blocks, int count) {
    for (int at = 0; at < count; at++) free(blocks[at]);
    calls++;
}
SEPARATE static void jump(void *block) { free(block); }
SEPARATE static void jump_loaded(struct holder *one) { free(one->data); }
SEPARATE static void jump_cleared(struct holder *one) {
    char *data = one->data;
    one->data = NULL;
    free(data);
}
SEPARATE static void release_and_empty(void *block, struct holder *one) {
    one->data = NULL;
    free(block);
    calls++;
}

int main(int count, char **words) {
    const char *word = words[count - 1];
    char local[64], *block = malloc(2000), *blocks[4];
    for (int at = 0; at < 4; at++) blocks[at] = malloc(2000);
    holder = calloc(1, sizeof *holder);
    memset(local, calls, sizeof local);
    char *pointer = block + 16;
    if (!strcmp(word, "twice")) release(pointer = block);
    else if (!strcmp(word, "static")) pointer = static_buffer + 16;
    else if (!strcmp(word, "local")) pointer = local + 16;
    holder->data = pointer;
    blocks[2] = pointer;
    fprintf(stderr, "pointer=%p block=%p holder=%p\n", (void *)pointer, (void *)block, (void *)holder);
    if (!strcmp(word, "interior")) release_member(holder);
    else if (!strcmp(word, "grown")) grow_member(holder);
    else if (!strcmp(word, "loop")) release_all(blocks, 4);
    else if (!strcmp(word, "jumped")) jump(pointer);
    else if (!strcmp(word, "cleared")) jump_cleared(holder);
    else if (!strcmp(word, "emptied")) release_and_empty(holder->data, holder);
    else if (!strcmp(word, "loaded")) jump_loaded(holder);
    else release(pointer);
    return calls;
}
