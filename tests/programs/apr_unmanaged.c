/* APR's pools without a parent: 100 that own their allocator, and 500 with the allocator of all of them, to which nothing refers; and some
 * that were destroyed. Prints "ready". */
#include <apr_allocator.h>
#include <apr_general.h>
#include <apr_pools.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static apr_allocator_t *shared;

static apr_pool_t *create(apr_allocator_t *allocator, const char *tag, int count) {
    apr_pool_t *pool;
    if (apr_pool_create_unmanaged_ex(&pool, NULL, allocator) != APR_SUCCESS) return NULL;
    apr_pool_tag(pool, tag);
    for (int number = 0; number < count; number++) memset(apr_palloc(pool, 1000), 'x', 1000);
    return pool;
}

static void __attribute__((noinline)) create_all(void) {
    apr_pool_t *ended[50];
    for (int number = 0; number < 500; number++) create(shared, "shared", 20);
    for (int number = 0; number < 100; number++) create(NULL, "own", 20);
    for (int number = 0; number < 50; number++) ended[number] = create(shared, "ended", 1);
    for (int number = 0; number < 50; number++) apr_pool_destroy(ended[number]);
}

static void __attribute__((noinline)) sweep(void) {
    volatile char waste[1 << 16];
    for (unsigned i = 0; i < sizeof waste; i++) waste[i] = 0;
}

int main(void) {
    if (apr_initialize() != APR_SUCCESS || apr_allocator_create(&shared) != APR_SUCCESS) return 1;
    create_all();
    sweep();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
