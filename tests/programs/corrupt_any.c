/* Damage that any malloc can suffer, by way of nothing but malloc and free; run it with LD_PRELOAD.
 *
 * Usage: corrupt_any SCENARIO [SIZE [BYTES [WHAT]]]
 *   overrun SIZE BYTES text|pointers      a block of SIZE is written BYTES past its usable end, into the next one of its kind
 *   header SIZE BYTES text|pointers       BYTES in front of a block are written
 *   uaf SIZE BYTES text|pointers          the first BYTES of a block are written after it was freed
 *   double SIZE                           freed, other blocks freed, freed again: where the allocator lets it pass
 *   none [SIZE]
 * WIDTH blocks of SIZE are made, every other one of the first half is freed, so that lists are not empty. See corrupt.h for what it
 * prints; "damage" is where the writing began: what of it the allocator keeps there differs. */
#include "corrupt.h"

enum { WIDTH = 400 };

static char *all[WIDTH];
static char *chosen, *next_to;

/* The block before the chosen one must be in use: an allocator stores nothing before a block if the block before it is free. */
static void choose(size_t size) {
    uintptr_t places[WIDTH], closest = UINTPTR_MAX;
    for (int i = 0; i < WIDTH; i++) places[i] = (uintptr_t)(all[i] = keep(size));
    for (int i = 0; i < WIDTH / 2; i += 2) free(all[i]), all[i] = 0;
    for (int i = WIDTH * 3 / 4; i < WIDTH - 4; i++)
        for (int j = 1; j < WIDTH; j += j < WIDTH / 2 ? 2 : 1)
            if (places[j] < places[i] && places[i] - places[j] < closest) closest = places[i] - places[j], chosen = all[i];
    for (int i = 0; i < WIDTH; i++)
        if (all[i] > chosen && (!next_to || all[i] < next_to)) next_to = all[i];
    if (!next_to) _exit(5);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    const char *scenario = argv[1], *what = argc > 4 ? argv[4] : "text";
    size_t size = argc > 2 ? strtoul(argv[2], 0, 0) : 64, bytes = argc > 3 ? strtoul(argv[3], 0, 0) : 8;
    choose(size);
    size_t usable = malloc_usable_size(chosen);
    char *at = 0;
    if (!strcmp(scenario, "overrun")) {
        block("before", chosen, "in-use");
        block("victim", next_to, "in-use");
        at = chosen + usable;
        differ(at, what);
        scribble(chosen, usable, what);
    } else if (!strcmp(scenario, "header")) {
        block("victim", chosen, "in-use");
        at = chosen - bytes;
        differ(at, what);
    } else if (!strcmp(scenario, "uaf")) {
        say("block victim %#lx %zu freed\n", (unsigned long)chosen, usable);
        free(all[WIDTH - 2]);
        free(chosen);
        free(all[WIDTH - 4]);
        at = chosen;
    } else if (!strcmp(scenario, "double")) {
        say("block victim %#lx %zu freed\n", (unsigned long)chosen, usable);
        free(chosen);
        scribble(chosen + sizeof(void *), sizeof(void *), "zero"); /* glibc's mark that detects double frees */
        free(all[WIDTH - 2]);
        free(chosen);
        say("damage %#lx %zu\n", (unsigned long)chosen, usable);
    }
    if (at) {
        scribble(at, bytes, what);
        wrote(at, bytes, what);
        say("damage %#lx %zu\n", (unsigned long)at, bytes);
    } else if (!strcmp(scenario, "none"))
        say("damage none\n");
    ready();
}
