/* Blocks of one size in a row, all filled to their last byte, of which one is written past its end.
 *
 * Usage: overrun_glibc FILL SIZE BYTES VICTIM [-t]
 *   FILL      digits, ones (the digit 1), letters, lower (a to z), A, zeros, pointers, numbers (small ones)
 *   SIZE      what malloc is asked for; the block is filled as far as malloc_usable_size says
 *   BYTES     how many bytes go past the end
 *   VICTIM    what stands behind: used, cached, free (a bin), top
 * -t: in a thread, whose arena is not the main one. It prints, besides what corrupt.h says,
 *
 *   culprit ADDRESS        the block that was written past its end
 *   victim ADDRESS         the block behind it, whose header was written over; of top, where a block of it would begin */
#include <pthread.h>

#include "corrupt.h"

#define ROW 12
#define CULPRIT 5

static int argc_;
static char **argv_;
static char *row[ROW];

static char filler(const char *fill, size_t i) {
    uintptr_t pointer = (uintptr_t)&corrupt_target;
    if (!strcmp(fill, "digits")) return (char)('0' + (i * 7 + 2) % 10);
    if (!strcmp(fill, "ones")) return '1';
    if (!strcmp(fill, "letters")) return TEXT[i % (sizeof TEXT - 1)];
    if (!strcmp(fill, "lower")) return (char)('a' + i % 26);
    if (!strcmp(fill, "A")) return 'A';
    if (!strcmp(fill, "pointers")) return (char)(pointer >> 8 * (i % 8));
    if (!strcmp(fill, "numbers")) return i % 8 ? 0 : (char)(i / 8 + 1);
    return 0;
}

__attribute__((noinline)) static void fill(volatile char *block, size_t from, size_t to) {
    for (size_t i = from; i < to; i++) block[i] = filler(argv_[1], i);
}

static void story(void) {
    size_t size = strtoul(argv_[2], 0, 0), bytes = strtoul(argv_[3], 0, 0);
    const char *kind = argv_[4];
    int last = !strcmp(kind, "top") ? CULPRIT + 1 : ROW;
    void *crowd[8];
    for (int i = 0; i < 8; i++) crowd[i] = keep(size);
    for (int i = 0; i < last; i++) row[i] = keep(size);
    size_t usable = malloc_usable_size(row[0]), step = usable + 8;
    for (int i = 1; i < last; i++)
        if (row[i] != row[i - 1] + step) _exit(5);
    for (int i = 0; i < last; i++) fill(row[i], 0, usable);
    char *behind = row[CULPRIT] + step;
    if (!strcmp(kind, "cached"))
        free(row[CULPRIT + 1]);
    else if (!strcmp(kind, "free")) {
        for (int i = 0; i < 7; i++) free(crowd[i]); /* fill the thread cache's list, so that the next block goes to a bin */
        free(row[CULPRIT + 1]);
    }
    fill(row[CULPRIT], usable, usable + bytes);
    wrote(row[CULPRIT] + usable, bytes, argv_[1]);
    say("culprit %#lx\n", (unsigned long)row[CULPRIT]);
    say("victim %#lx\n", (unsigned long)behind);
    ready();
}

static void *thread(void *unused) {
    (void)unused;
    story();
    return 0;
}

int main(int argc, char **argv) {
    argc_ = argc, argv_ = argv;
    if (argc < 5) return 2;
    if (!strcmp(argv[argc - 1], "-t")) {
        pthread_t id;
        if (pthread_create(&id, 0, thread, 0)) return 1;
        pthread_join(id, 0);
    }
    story();
}
