/* Blocks that typed_reused.c and typed_stale.c free and allocate again, and a type that both use. */
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define NOINLINE __attribute__((noinline))
#define NEW(type) ((type *)told(calloc(1, sizeof(type)), #type))
enum { MOST = 4096, CACHED = 7 };
struct label { uint32_t length, flags; char *text; struct label *alias; };
static int leaking;
static NOINLINE void *told(void *block, const char *type) { printf("%lx %s %s\n", (unsigned long)block, leaking ? "leaked" : "reachable", type); return block; }
static NOINLINE struct label *label(void) { struct label *made = NEW(struct label); made->length = 9; made->text = told(malloc(20), "char[]"); strcpy(made->text, "some text"); return made; }
/* Allocate a block, so that the blocks before and after it are not adjacent. */
static NOINLINE void keep_apart(void) { memset(malloc(8), 'x', 8); }
static NOINLINE void *refilled(size_t size) { uint64_t *block = malloc(size); memset(block, 0, size); return block; }
/* Free blocks of `size` bytes, which are not adjacent, so that they are the next blocks that malloc returns for 16 bytes less. The thread
 * cache gets the first ones. */
static NOINLINE void release(void **blocks, unsigned count, size_t size) {
    void *cached[CACHED];
    for (unsigned at = 0; at < CACHED; at++) cached[at] = malloc(size);
    for (unsigned at = 0; at < CACHED; at++) free(cached[at]);
    for (unsigned at = 0; at < count; at++) free(blocks[at]);
    memset(cached, 0, sizeof cached);
    __asm__ volatile("" ::"r"(cached) : "memory");
}
