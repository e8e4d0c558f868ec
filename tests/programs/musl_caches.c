/* Blocks of all sizes in every state. Prints what the program and musl's malloc know about them when it stops.
 *
 *   musl_caches [LETTER]
 *
 * writes a line for each block in use, "block ADDRESS USABLE" (hexadecimal); built with -DCONTEXT and linked statically with mallocng also
 * "class NUMBER SLOTS" (decimal) from the allocator's own context. Then "ready", and it waits. LETTER damages something first, and a line
 * "damaged BLOCK PLACE" names the block and where the first wrong byte stands:
 *   o  one byte right behind a block            t  a text that is too long for a block
 *   u  the header right in front of a block     f  a block that was freed (its first two words) */
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCKS 4000

static unsigned char *volatile blocks[BLOCKS];
static size_t asked[BLOCKS];

#ifdef CONTEXT
extern __attribute__((visibility("hidden"))) const char __malloc_context[];
#define USAGE 464 /* of usage_by_class in struct malloc_context, src/malloc/mallocng/meta.h, x86-64 */
#endif

static size_t size_of(unsigned i) {
    static const size_t least[] = {1, 20, 60, 200, 700, 2000, 9000, 40000, 140000};
    uint64_t mixed = (i + 1) * UINT64_C(0x9E3779B97F4A7C15) >> 20;
    unsigned kind = mixed % 100 < 55 ? mixed % 4 : mixed % 100 < 98 ? 4 + mixed % 4 : 8;
    return least[kind] + (mixed >> 8) % least[kind] + 1;
}

static void *checked(void *p) {
    if (!p) abort();
    return p;
}

int main(int argc, char **argv) {
    char letter = argc > 1 ? argv[1][0] : 0;
    for (unsigned i = 0; i < BLOCKS; i++) {
        asked[i] = size_of(i);
        blocks[i] = checked(i % 17 == 5 ? memalign((size_t)64 << i % 8, asked[i]) : malloc(asked[i]));
        memset(blocks[i], 'a' + i % 26, asked[i]);
    }
    uintptr_t freed = 0; /* a freed block whose neighbours stay in use */
    for (unsigned i = 0; i < BLOCKS; i++)
        if (i % 5 == 1 || i % 7 == 3 || (i > 900 && i < 1300)) {
            if (i > 2000 && !freed && asked[i] > 100 && asked[i] < 120) freed = (uintptr_t)blocks[i];
            free(blocks[i]);
            blocks[i] = NULL;
        }
    for (unsigned i = 0; i < BLOCKS; i++)
        if (blocks[i] && i % 11 == 2 && asked[i] > 9000) {
            asked[i] = i % 2 ? asked[i] / 2 + 1 : 3 * asked[i];
            blocks[i] = checked(realloc(blocks[i], asked[i]));
        }
    unsigned victim = 2000;
    while (!blocks[victim] || asked[victim] < 100 || asked[victim] > 120) victim++;
    unsigned char *hurt = blocks[victim], *place = NULL;
    size_t usable = malloc_usable_size(hurt);
    setvbuf(stdout, NULL, _IOFBF, 1 << 12);
    for (unsigned i = 0; i < BLOCKS; i++)
        if (blocks[i]) printf("block %lx %zx\n", (unsigned long)blocks[i], malloc_usable_size(blocks[i]));
#ifdef CONTEXT
    for (unsigned i = 0; i < 48; i++) printf("class %u %zu\n", i, ((const size_t *)(__malloc_context + USAGE))[i]);
#endif
    if (letter == 'o') *(place = hurt + usable) = 'X';
    if (letter == 't') memcpy(place = hurt + usable, "this text is too long for the block it was copied to", 52);
    if (letter == 'u') *(place = hurt - 2) ^= 0x10;
    if (letter == 'f') memset(place = hurt = (unsigned char *)freed, 'F', 16);
    if (place) printf("damaged %lx %lx\n", (unsigned long)hurt, (unsigned long)place);
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
