/* Creates pools of APR: a server pool and 50 connection pools below it, 20 of which it destroys. Prints the bytes that were
   requested from each connection pool, and "ready". Arguments: the number of requests from each connection pool; "unmanaged" if
   the server pool shall not be below the global pool. In this case, the variable `table` refers to memory of one more pool, which
   has no tag. With "stale" as third argument, prints "lost ADDRESS" for blocks of malloc to which only cleared or destroyed pools
   refer, and "kept ADDRESS" for those to which pools refer. With "texts" as second argument, a pool with the tag "lookup" contains
   texts that differ in a number, and equal ones. */
#include <apr_general.h>
#include <apr_pools.h>
#include <apr_strings.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONNECTIONS = 50, ENDED = 20, REQUESTS = 100, BYTES = 1000 };

char *table; /* not static: the compiler must store it */

static apr_pool_t *create_server(int unmanaged) {
    apr_pool_t *server, *untagged;
    if ((unmanaged ? apr_pool_create_unmanaged(&server) : apr_pool_create(&server, NULL)) != APR_SUCCESS) return NULL;
    if (unmanaged && apr_pool_create(&untagged, server) == APR_SUCCESS) table = apr_palloc(untagged, BYTES);
    return server;
}

/* Store the address of a block in a pool, after other memory. */
static void put(apr_pool_t *pool, const char *kind) {
    apr_pcalloc(pool, 300);
    void **member = apr_palloc(pool, sizeof(void *));
    printf("%s %p\n", kind, *member = malloc(500));
}

static void __attribute__((noinline)) leave_stale_words(apr_pool_t *server) {
    apr_pool_t *cleared, *pool;
    apr_pool_create(&cleared, server);
    for (int number = 0; number < CONNECTIONS; number++) {
        for (int nodes = 0; nodes < 30; nodes++) put(cleared, "lost");
        apr_pool_clear(cleared);
        apr_pool_create(&pool, server);
        put(pool, number % 2 ? "kept" : "lost");
        if (number % 2 == 0) apr_pool_destroy(pool);
    }
    put(cleared, "kept");
}

static void add_texts(apr_pool_t *server) {
    apr_pool_t *lookup;
    if (apr_pool_create(&lookup, server) != APR_SUCCESS) return;
    apr_pool_tag(lookup, "lookup");
    for (int number = 0; number < 80000; number++) {
        apr_psprintf(lookup, "/users/%d/orders", number);
        apr_pstrdup(lookup, "Content-Type");
        apr_palloc(lookup, 24);
    }
}

static void __attribute__((noinline)) sweep(void) {
    volatile char waste[1 << 16];
    for (unsigned i = 0; i < sizeof waste; i++) waste[i] = 0;
}

int main(int argc, char **argv) {
    int requests = argc > 1 ? atoi(argv[1]) : REQUESTS;
    apr_pool_t *server, *connections[CONNECTIONS];
    if (apr_initialize() != APR_SUCCESS || !(server = create_server(argc == 3 && !strcmp(argv[2], "unmanaged")))) return 1;
    apr_pool_tag(server, "server");
    for (int number = 0; number < CONNECTIONS; number++) {
        if (apr_pool_create(&connections[number], server) != APR_SUCCESS) return 1;
        apr_pool_tag(connections[number], "connection");
        for (int request = 0; request < requests; request++) apr_palloc(connections[number], BYTES);
    }
    for (int number = 0; number < ENDED; number++) apr_pool_destroy(connections[number]);
    if (argc == 3 && !strcmp(argv[2], "texts")) add_texts(server);
    if (argc > 3) leave_stale_words(server);
    sweep();
    printf("%d\n", requests * BYTES);
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
