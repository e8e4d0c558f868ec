/* A server with 300 chunks of talloc of one size, which have 5 different names, and each of which has a block of malloc. The server
   also refers to the first chunk. With an argument: they have so many names, and 50 pools with a chunk are leaked. Prints "ready". */
#include <stdio.h>
#include <stdlib.h>
#include <talloc.h>
#include <unistd.h>

enum { REQUESTS = 300, NAMES = 5, BYTES = 300, POOLS = 50 };

struct request {
    int number;
    void *data;
};

struct server {
    struct request *first;
    const char *name;
};

struct server *server; /* not static: the compiler must store it */

int main(int argc, char **argv) {
    int names = argc > 1 ? atoi(argv[1]) : NAMES;
    for (int number = 0; argc > 1 && number < POOLS; number++)
        talloc_zero(talloc_pool(NULL, 1000), struct request);
    server = talloc_zero(NULL, struct server);
    for (int number = 0; number < REQUESTS; number++) {
        struct request *one = talloc_zero(server, struct request);
        talloc_set_name(one, "request %d", number % names);
        one->data = malloc(BYTES);
        if (!server->first) server->first = one;
    }
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
