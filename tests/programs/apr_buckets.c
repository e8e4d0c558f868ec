/* Buckets of two connections, each with a pool and a bucket allocator, after others that are destroyed. Prints
 * "held|lost|freed SIZE ADDRESS" for blocks of the bucket allocators, then "ready". SIZE: the least size. */
#include <apr_buckets.h>
#include <apr_general.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 300 };
static uintptr_t hidden[3 * BLOCKS]; /* complemented addresses */
static apr_size_t sizes[3 * BLOCKS];
static void **volatile table; /* in a pool */

static void __attribute__((noinline)) use(apr_pool_t *pool, int connection) {
    apr_bucket_alloc_t *list = apr_bucket_alloc_create(pool);
    void **kept = apr_pcalloc(pool, (BLOCKS + 1) * sizeof *kept);
    for (int number = 0; number < BLOCKS; number++) {
        apr_size_t size = number % 30 > 27 ? 9000 + number * 50 : 16 + number % 40;
        void *block = apr_bucket_alloc(size, list);
        memset(block, 0, size < 9000 ? 128 : size); /* the whole block, without stale words */
        if (number % 3 == 0) kept[number] = block;
        hidden[connection * BLOCKS + number] = ~(uintptr_t)block;
        sizes[connection * BLOCKS + number] = size;
    }
    for (int number = 2; number < BLOCKS; number += 3) apr_bucket_free((void *)~hidden[connection * BLOCKS + number]);
    kept[BLOCKS] = table;
    table = kept;
}

static void __attribute__((noinline)) clear_stack(void) {
    volatile char room[64 << 10];
    for (unsigned at = 0; at < sizeof room; at++) room[at] = 0;
}

/* A bucket allocator at the address of one that was destroyed. The pool takes the nodes of the latter, and does not overwrite their beginning. */
static void __attribute__((noinline)) replace(apr_pool_t *pool) {
    apr_bucket_alloc_t *list = apr_bucket_alloc_create(pool), *former = list;
    for (int number = 0; number < BLOCKS; number++) memset(apr_bucket_alloc(16, list), 0, 128);
    apr_bucket_alloc_destroy(list);
    list = apr_bucket_alloc_create(pool);
    if (list != former) abort();
    for (int number = 0; number < 4; number++) memset((char *)apr_palloc(pool, 7000) + 800, 0, 8);
}

int main(void) {
    static const char *states[] = {"held", "lost", "freed"};
    apr_pool_t *pools[4];
    apr_initialize();
    for (int number = 0; number < 4; number++) apr_pool_create(&pools[number], NULL);
    replace(pools[3]);
    use(pools[2], 2);
    apr_pool_destroy(pools[2]);
    table = NULL;
    for (int number = 0; number < 2; number++) use(pools[number], number);
    clear_stack();
    for (int number = 0; number < 2 * BLOCKS; number++)
        printf("%s %zu %#zx\n", states[number % 3], sizes[number], (size_t)~hidden[number]);
    puts("ready");
    fflush(stdout);
    clear_stack();
    pause();
}
