/* Fills tcmalloc's size classes from several threads, frees part of it again, and prints as its last act what tcmalloc says of itself:
 * lines "property NAME VALUE", then MallocExtension_GetStats's text, then "ready". */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void MallocExtension_GetStats(char *buffer, int length);
int MallocExtension_GetNumericProperty(const char *name, size_t *value);

#define THREADS 4
#define BLOCKS 3000
static void *kept[THREADS + 1][BLOCKS];
static pthread_barrier_t done;

static uint64_t draw(uint64_t *state, uint64_t below) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (*state >> 11) % below;
}

static void work(unsigned index) {
    uint64_t state = 0x9e3779b97f4a7c15u * (index + 1);
    for (int i = 0; i < BLOCKS; i++) {
        size_t most = i % 100 == 0 ? 900000 : i % 10 == 0 ? 60000 : i % 3 ? 300 : 3000;
        kept[index][i] = malloc(1 + draw(&state, most));
    }
    for (int i = 0; i < BLOCKS; i++)
        if (draw(&state, 3)) {
            free(kept[index][i]);
            kept[index][i] = NULL;
        }
}

static void *worker(void *argument) {
    work((unsigned)(uintptr_t)argument);
    pthread_barrier_wait(&done);
    for (;;) pause();
    return NULL;
}

static char text[1 << 20];

static char *put(char *at, const char *what) {
    while (*what) *at++ = *what++;
    return at;
}

static char *put_number(char *at, size_t value) {
    char digits[24];
    int n = 0;
    do digits[n++] = (char)('0' + value % 10); while (value /= 10);
    while (n) *at++ = digits[--n];
    return at;
}

int main(void) {
    static const char *const names[] = {
        "generic.current_allocated_bytes", "generic.heap_size", "tcmalloc.slack_bytes", "tcmalloc.central_cache_free_bytes",
        "tcmalloc.transfer_cache_free_bytes", "tcmalloc.thread_cache_free_bytes", "tcmalloc.pageheap_free_bytes",
        "tcmalloc.pageheap_unmapped_bytes", "tcmalloc.pageheap_committed_bytes", "tcmalloc.pageheap_commit_count",
        "tcmalloc.pageheap_total_commit_bytes", "tcmalloc.pageheap_decommit_count", "tcmalloc.pageheap_total_decommit_bytes",
        "tcmalloc.pageheap_reserve_count", "tcmalloc.pageheap_total_reserve_bytes", "tcmalloc.current_total_thread_cache_bytes", "tcmalloc.cpu_free", "tcmalloc.central_cache_free", "tcmalloc.sharded_transfer_cache_free", "tcmalloc.transfer_cache_free"};
    pthread_t threads[THREADS];
    pthread_barrier_init(&done, NULL, THREADS + 1);
    for (unsigned i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, worker, (void *)(uintptr_t)i)) abort();
    work(THREADS);
    pthread_barrier_wait(&done);
    char *at = text;
    MallocExtension_GetStats(text, sizeof text); /* once for what it may allocate the first time */
    memset(text, 0, sizeof text);
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        size_t value;
        if (!MallocExtension_GetNumericProperty(names[i], &value)) continue;
        at = put_number(put(put(put(at, "property "), names[i]), " "), value);
        *at++ = '\n';
    }
    MallocExtension_GetStats(at, (int)(text + sizeof text - 16 - at));
    at = put(at + strlen(at), "ready\n");
    for (char *from = text; from < at;) {
        ssize_t done_now = write(1, from, (size_t)(at - from));
        if (done_now <= 0) abort();
        from += done_now;
    }
    for (;;) pause();
}
