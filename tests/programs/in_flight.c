/* A program that calls malloc and free. At no instruction is any block lost.
 *
 *     in_flight step WHAT     one thread; two breakpoint instructions enclose the calls that WHAT names, for a tracer that steps through
 *     in_flight spin N        N threads that allocate and free until they are killed
 *
 * Every block is in a slot of `held` until it is freed; the argument of free is then the only pointer to it. */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLOTS 512
#define THREADS 64

static void *volatile held[THREADS][SLOTS];

static void put(int thread, int slot, void *block) { held[thread][slot] = block; }

static __attribute__((noinline)) void drop(int thread, int slot) {
    void *block = held[thread][slot];
    held[thread][slot] = NULL;
    free(block);
}

static __attribute__((noinline)) void again(int thread, int slot, size_t size) {
    void *block = held[thread][slot];
    held[thread][slot] = NULL;
    held[thread][slot] = realloc(block, size);
}

static void fill(int first, int count, size_t size) {
    for (int i = 0; i < count; i++) put(0, first + i, malloc(size));
}

static void empty(int first, int count) {
    for (int i = 0; i < count; i++) drop(0, first + i);
}

static void small(void) { /* from the thread's cache and back */
    fill(300, 2, 24);
    empty(300, 2);
}

static void several(void) { /* more blocks than thread caches hold: caches are filled and emptied, chunks are split, freed and merged */
    fill(300, 40, 72);
    empty(300, 40);
    fill(300, 20, 700);
    empty(300, 20);
}

static void large(void) { /* neither cached nor mapped separately */
    fill(300, 3, 40000);
    drop(0, 301);
    drop(0, 300);
    fill(300, 2, 9000);
    empty(300, 3);
}

static void mapped(void) { /* mapped by mmap, moved by mremap, unmapped by munmap */
    fill(300, 1, 1 << 20);
    again(0, 300, 3 << 20);
    drop(0, 300);
}

static void resized(void) {
    fill(300, 1, 24);
    again(0, 300, 100);
    again(0, 300, 3000);
    again(0, 300, 40);
    drop(0, 300);
}

static void cleared(void) {
    put(0, 300, calloc(3, 24));
    put(0, 301, calloc(1, 1500));
    empty(300, 2);
}

static void aligned(void) {
    put(0, 300, aligned_alloc(64, 128));
    put(0, 301, aligned_alloc(4096, 8192));
    empty(300, 2);
}

static void grown(void) { /* extends the heap, and trims it at its end */
    fill(300, 4, 100000);
    empty(300, 4);
}

static const struct {
    const char *name;
    void (*run)(void);
} STEPS[] = {{"small", small},     {"several", several}, {"large", large},     {"mapped", mapped},
             {"resized", resized}, {"cleared", cleared}, {"aligned", aligned}, {"grown", grown}};

static void *spin(void *argument) {
    int thread = (int)(intptr_t)argument;
    uint32_t state = (uint32_t)thread * 2654435761u + 12345;
    for (;;) {
        state = state * 1664525u + 1013904223u;
        int slot = (int)(state >> 20) % SLOTS;
        uint32_t kind = state >> 8 & 255;
        size_t size = kind == 0 ? 1 << 18 : kind < 8 ? 5000 + (state >> 4 & 0xffff) : 1 + (state >> 4 & 0x1ff);
        if (!held[thread][slot]) {
            if (kind & 1) put(thread, slot, malloc(size));
            else if (kind & 2) put(thread, slot, calloc(1, size));
            else if (kind & 4) put(thread, slot, aligned_alloc(64, (size + 63) & ~63ul));
            else put(thread, slot, malloc(size));
        } else if ((kind & 15) == 3) {
            again(thread, slot, size);
        } else {
            drop(thread, slot);
        }
    }
    return NULL;
}

static void say(const char *text) {
    if (write(1, text, strlen(text)) < 0) _exit(2);
}

int main(int count, char **words) {
    if (count == 3 && !strcmp(words[1], "spin")) {
        int threads = atoi(words[2]);
        pthread_t thread;
        for (int i = 0; i < threads && i < THREADS; i++) pthread_create(&thread, NULL, spin, (void *)(intptr_t)i);
        say("ready\n");
        for (;;) pause();
    }
    if (count != 3) return 2;
    for (int i = 0; i < 64; i++) put(0, i, malloc(16 + 24 * (i % 12)));
    fill(64, 40, 72);
    for (int i = 64; i < 104; i += 2) drop(0, i); /* fill thread caches and bins */
    fill(104, 6, 24);
    empty(104, 6);
    fill(104, 12, 700);
    for (int i = 104; i < 116; i += 2) drop(0, i);
    for (unsigned i = 0; i < sizeof STEPS / sizeof *STEPS; i++)
        if (!strcmp(STEPS[i].name, words[2])) {
            char byte;
            say("ready\n");
            if (read(0, &byte, 1) != 1) return 2;
            __asm__ volatile("int3");
            STEPS[i].run();
            __asm__ volatile("int3");
            return 0;
        }
    return 2;
}
