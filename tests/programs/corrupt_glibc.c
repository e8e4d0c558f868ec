/* Heaps of glibc damaged in the ways that programs damage them.
 *
 * Usage: corrupt_glibc SCENARIO [BYTES [WHAT [VICTIM]]] [-t]
 *   overrun BYTES text|pointers used|cached|fast|unsorted|small|large     past the end of the block in front of the victim
 *   null                   a string's end one byte past the block
 *   underrun BYTES WHAT    before the start of a block
 *   double | triangle      freed twice into the thread cache, the mark cleared in between; with another block in between
 *   key                    the mark of a cached block cleared, no more
 *   uaf BYTES WHAT cached|fast|unsorted|small|large      written to after it was freed
 *   top                    the size of top set to -1
 *   mapped                 the header of a block that was mapped by itself
 *   none
 * -t: in a thread, whose arena is not the main one. See corrupt.h for what it prints. */
#include "corrupt.h"

#include <pthread.h>

#define WORD ((long)sizeof(size_t))
#define USABLE (48 - sizeof(size_t)) /* usable bytes of a chunk of 48 bytes, which end where the size word of the next chunk begins */

static int argc_;
static char **argv_;
static void *hold[64];

static void *own(int index, size_t size) { return hold[index] = keep(size); }

/* A chunk with the requested state between two chunks that stay in use; `before` is the first of these. */
static char *victim(const char *kind, char **before) {
    size_t size = !strcmp(kind, "large") || !strcmp(kind, "unsorted") ? 2000 : !strcmp(kind, "small") ? 208 - sizeof(size_t) : USABLE;
    void *fill[40];
    int fills = 0;
    if (!strcmp(kind, "fast") || !strcmp(kind, "small")) /* fill the thread cache's list first */
        for (; fills < 40; fills++) fill[fills] = keep(size);
    *before = own(0, USABLE);
    char *made = own(1, size);
    own(2, USABLE);
    if (made != *before + 48) _exit(5);
    char *other = own(3, size); /* a second chunk in the same list, so that links refer to a chunk */
    own(4, USABLE);
    if (!strcmp(kind, "used")) return made;
    for (int i = 0; i < fills; i++) own(10, 24), own(11, 24);
    for (int i = 0; i < fills && i < 16; i++) free(fill[i]);
    free(made);
    free(other);
    if (!strcmp(kind, "small") || !strcmp(kind, "large")) own(5, 5000); /* moves chunks from the unsorted bin to their bins */
    return made;
}

static const char *state_of(const char *kind) { return !strcmp(kind, "used") ? "in-use" : !strcmp(kind, "cached") ? "cached" : "free"; }

static void story(void) {
    const char *scenario = argv_[1];
    size_t bytes = argc_ > 2 ? strtoul(argv_[2], 0, 0) : 0;
    const char *what = argc_ > 3 ? argv_[3] : "text", *kind = argc_ > 4 ? argv_[4] : "used";
    char *before, *made;
    own(20, 100);
    if (!strcmp(scenario, "overrun")) {
        made = victim(kind, &before);
        block("before", before, "in-use");
        say("block victim %#lx 0 %s\n", (unsigned long)made, state_of(kind));
        scribble(before, malloc_usable_size(before), what);
        scribble(before + USABLE, bytes, what);
        wrote(before + USABLE, bytes, what);
        say("damage %#lx 8\n", (unsigned long)(made - WORD));
    } else if (!strcmp(scenario, "null")) {
        before = own(0, 0x100 - sizeof(size_t));
        made = own(1, 0x100 - sizeof(size_t));
        block("before", before, "in-use");
        block("victim", made, "in-use");
        scribble(before, 0x100 - sizeof(size_t), "text");
        scribble(before + 0x100 - WORD, 1, "zero");
        wrote(before + 0x100 - WORD, 1, "zero");
        say("damage %#lx 8\n", (unsigned long)(made - WORD));
    } else if (!strcmp(scenario, "underrun")) {
        made = victim("used", &before);
        block("before", before, "in-use");
        block("victim", made, "in-use");
        scribble(made - bytes, bytes, what);
        wrote(made - bytes, bytes, what);
        say("damage %#lx 8\n", (unsigned long)(made - WORD));
    } else if (!strcmp(scenario, "double") || !strcmp(scenario, "triangle")) {
        made = own(0, USABLE);
        char *other = own(1, USABLE);
        own(2, USABLE);
        free(made);
        if (!strcmp(scenario, "triangle")) free(other);
        scribble(made + WORD, sizeof(size_t), "zero");
        wrote(made + WORD, sizeof(size_t), "zero");
        free(made);
        say("block victim %#lx %zu cached\n", (unsigned long)made, USABLE);
        say("damage %#lx 8\n", (unsigned long)(!strcmp(scenario, "double") ? made : other));
    } else if (!strcmp(scenario, "key")) {
        void *blocks[5];
        for (int i = 0; i < 5; i++) blocks[i] = own(i, USABLE);
        for (int i = 0; i < 5; i++) free(blocks[i]);
        made = blocks[2];
        say("block victim %#lx %zu cached\n", (unsigned long)made, USABLE);
        scribble(made + WORD, sizeof(size_t), "zero");
        wrote(made + WORD, sizeof(size_t), "zero");
        say("damage %#lx 8\n", (unsigned long)(made + WORD));
    } else if (!strcmp(scenario, "uaf")) {
        if (!strcmp(kind, "cached")) {
            own(3, USABLE), own(4, USABLE), own(5, USABLE);
            made = hold[4];
            free(hold[3]), free(hold[4]), free(hold[5]);
        } else
            made = victim(kind, &before);
        say("block victim %#lx 0 %s\n", (unsigned long)made, state_of(kind));
        scribble(made, bytes, what);
        wrote(made, bytes, what);
        say("damage %#lx 8\n", (unsigned long)made);
    } else if (!strcmp(scenario, "top")) {
        made = own(0, USABLE);
        block("before", made, "in-use");
        scribble(made, USABLE, "text");
        memset(made + USABLE, 0xff, sizeof(size_t)); /* written relative to the last block, which is before top */
        wrote(made + USABLE, sizeof(size_t), "pattern");
        say("damage %#lx 8\n", (unsigned long)(made + USABLE));
    } else if (!strcmp(scenario, "mapped")) {
        char *first = own(0, 200000), *second = own(1, 300000); /* the second block is mapped directly below the first */
        made = second < first ? first : second;
        before = second < first ? second : first;
        block("before", before, "in-use");
        block("victim", made, "in-use");
        scribble(made - 2 * WORD, 2 * sizeof(size_t), "text");
        wrote(made - 2 * WORD, 2 * sizeof(size_t), "text");
        say("damage %#lx 8\n", (unsigned long)(made - 2 * WORD));
    } else {
        for (int i = 0; i < 40; i++) own(i, 24 + 40 * (size_t)i);
        for (int i = 0; i < 40; i += 2) free(hold[i]), hold[i] = 0;
        say("damage none\n");
    }
    ready();
}

static void *thread(void *unused) {
    (void)unused;
    story();
    return 0;
}

int main(int argc, char **argv) {
    argc_ = argc, argv_ = argv;
    if (argc < 2) return 2;
    if (!strcmp(argv[argc - 1], "-t")) {
        pthread_t id;
        argc_--;
        if (pthread_create(&id, 0, thread, 0)) return 1;
        pthread_join(id, 0);
    }
    story();
}
