/* Keeps some blocks, churns others and loses others, by size, over several rounds; prints after each, and waits for a line.
 * Arguments: blocks of each size, rounds, a file's name. Sizes are those of malloc_usable_size.
 *   keep   made once, never freed
 *   churn  all freed and made anew between two rounds, at other addresses, as the old ones are freed last
 *   cache  a ring: half of it is replaced each round
 *   leak   as many again each round; never freed
 * After each round the file NAME.ROUND has "SIZE ADDRESS" of every one of these blocks, and a line "round N" is printed. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

enum { KEEP = 104, CHURN = 200, CACHE = 312, LEAK = 72, KINDS = 4 };
static const size_t sizes[KINDS] = {KEEP, CHURN, CACHE, LEAK};

typedef struct {
    void **items;
    size_t count;
} list;

static list kinds[KINDS];

static void add(int kind) { kinds[kind].items[kinds[kind].count++] = malloc(sizes[kind]); }

static void print(FILE *out) {
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t at = 0; at < kinds[kind].count; at++)
            fprintf(out, "%zu %p\n", malloc_usable_size(kinds[kind].items[at]), kinds[kind].items[at]);
}

int main(int argc, char **argv) {
    size_t blocks = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000, rounds = argc > 2 ? strtoul(argv[2], NULL, 10) : 4;
    const char *truth = argc > 3 ? argv[3] : "/dev/null";
    mallopt(M_MMAP_THRESHOLD, 64 << 20);
    for (int kind = 0; kind < KINDS; kind++)
        kinds[kind].items = malloc((kind == 3 ? rounds : 2) * blocks * sizeof(void *));
    for (size_t round = 0; round < rounds; round++) {
        char name[4096];
        for (size_t n = 0; n < blocks; n++) {
            if (!round) {
                add(0);
                add(2);
            }
            add(1);
            add(3);
        }
        if (round) { /* the blocks of the previous round are freed after the new ones are allocated */
            for (size_t n = 0; n < blocks; n++) {
                free(kinds[1].items[n]);
                kinds[1].items[n] = kinds[1].items[blocks + n];
            }
            kinds[1].count = blocks;
            for (size_t n = round % 2; n < blocks; n += 2) {
                void *new = malloc(CACHE);
                free(kinds[2].items[n]);
                kinds[2].items[n] = new;
            }
        }
        snprintf(name, sizeof name, "%s.%zu", truth, round);
        FILE *out = fopen(argc > 3 ? name : "/dev/null", "w");
        if (!out)
            return 1;
        print(out);
        fclose(out);
        printf("round %zu\n", round);
        fflush(stdout);
        if (getchar() == EOF)
            return 0;
    }
    return 0;
}
