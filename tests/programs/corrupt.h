/* What the corrupting programs share: they print what they did, and sleep.
 *
 *   block NAME ADDRESS USABLE STATE     a block of the story; STATE as findleaks calls it: in-use, cached, free
 *   wrote ADDRESS BYTES WHAT            what went where it should not: text, pointers, zero
 *   damage ADDRESS BYTES                the first metadata that is wrong by it, or "damage none"
 *   ready
 *
 * Lines go out by write(2): stdio would allocate. */
#ifndef CORRUPT_H
#define CORRUPT_H
#define _GNU_SOURCE
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT "The quick brown fox jumps over the lazy dog. "

static int corrupt_target[2] = {0x11223344, 0x11223344}; /* the target of planted pointers */

static size_t skipped; /* number of bytes of the text, and of members of corrupt_target, to skip: see differ */

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#include <stdarg.h>
static void say(const char *format, ...) {
    char line[160];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (write(1, line, (size_t)length) != length) _exit(3);
}

__attribute__((unused)) static void block(const char *name, void *address, const char *state) {
    say("block %s %#lx %zu %s\n", name, (unsigned long)address, malloc_usable_size(address), state);
}

/* Write `count` bytes of text or pointers from `at` on. The compiler must not know to which block they belong. */
__attribute__((noinline, unused)) static void scribble(volatile char *at, size_t count, const char *what) {
    for (size_t i = 0; i < count; i++) {
        uintptr_t pointer = (uintptr_t)&corrupt_target[skipped];
        at[i] = !strcmp(what, "text") ? TEXT[(i + skipped) % (sizeof TEXT - 1)] : !strcmp(what, "pointers") ? ((char *)&pointer)[i % sizeof pointer] : 0;
    }
}

/* Let scribble begin with a byte that differs from the byte at `at`, so that each overwritten byte changes. */
__attribute__((unused)) static void differ(const volatile char *at, const char *what) {
    char first = 0;
    skipped = 0;
    scribble(&first, 1, what);
    skipped = first == *at;
}

static void wrote(volatile char *at, size_t count, const char *what) { say("wrote %#lx %zu %s\n", (unsigned long)at, count, what); }

static void *keep(size_t size) {
    void *made = malloc(size);
    if (!made) _exit(4);
    memset(made, 0xa5, size);
    return made;
}

static void ready(void) {
    say("ready\n");
    for (;;) pause();
}
#endif
