/* Creates pools of APR: a server pool and 50 connection pools below it, 20 of which it destroys. Prints the bytes that were
   requested from each connection pool, and "ready". Arguments: the number of requests from each connection pool; "unmanaged" if
   the server pool shall not be below the global pool. In this case, the variable `table` refers to memory of one more pool, which
   has no tag. */
#include <apr_general.h>
#include <apr_pools.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { CONNECTIONS = 50, ENDED = 20, REQUESTS = 100, BYTES = 1000 };

char *table; /* not static: the compiler must store it */

static apr_pool_t *create_server(int unmanaged) {
    apr_pool_t *server, *untagged;
    if ((unmanaged ? apr_pool_create_unmanaged(&server) : apr_pool_create(&server, NULL)) != APR_SUCCESS) return NULL;
    if (unmanaged && apr_pool_create(&untagged, server) == APR_SUCCESS) table = apr_palloc(untagged, BYTES);
    return server;
}

int main(int argc, char **argv) {
    int requests = argc > 1 ? atoi(argv[1]) : REQUESTS;
    apr_pool_t *server, *connections[CONNECTIONS];
    if (apr_initialize() != APR_SUCCESS || !(server = create_server(argc > 2))) return 1;
    apr_pool_tag(server, "server");
    for (int number = 0; number < CONNECTIONS; number++) {
        if (apr_pool_create(&connections[number], server) != APR_SUCCESS) return 1;
        apr_pool_tag(connections[number], "connection");
        for (int request = 0; request < requests; request++) apr_palloc(connections[number], BYTES);
    }
    for (int number = 0; number < ENDED; number++) apr_pool_destroy(connections[number]);
    printf("%d\n", requests * BYTES);
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
