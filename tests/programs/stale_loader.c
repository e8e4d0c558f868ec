/* Frees a block full of pointers to a lost block, and then loads a library: ld.so puts a table and names into this memory, and does not
 * clear it. Prints the same list as truth.c.
 *
 *   cc -shared -fPIC -DLIBRARY stale_loader.c -o lib.so;  cc stale_loader.c -o program -ldl;  program ./lib.so */
#ifdef LIBRARY

int loaded = 1;

#else

#include "truth.h"
#include "truth_stop.h"
#include <dlfcn.h>

static NOINLINE void leave_stale_words(void) {
    enum { SIZE = 100000 };
    struct block lost = {malloc(200), 200, 0};
    memset(lost.p, 0, 200);
    void *volatile *stale = malloc(SIZE);
    for (size_t i = 0; i < SIZE / sizeof *stale; i++) stale[i] = lost.p;
    free((void *)stale);
    note_definite(lost, "stale");
}

int main(int argc, char **argv) {
    static hidden none[9];
    leave_stale_words();
    if (argc < 2 || !dlopen(argv[1], RTLD_NOW)) return 2;
    scrub();
    stop(none, 1);
}

#endif
