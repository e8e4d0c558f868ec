/* A server with 300 chunks of talloc of one size, which have 5 different names, and each of which has a block of malloc. The server
   also refers to the first chunk. Prints "ready". */
#include <stdio.h>
#include <stdlib.h>
#include <talloc.h>
#include <unistd.h>

enum { REQUESTS = 300, NAMES = 5, BYTES = 300 };

struct request {
    int number;
    void *data;
};

struct server {
    struct request *first;
    const char *name;
};

struct server *server; /* not static: the compiler must store it */

int main(void) {
    server = talloc_zero(NULL, struct server);
    for (int number = 0; number < REQUESTS; number++) {
        struct request *one = talloc_zero(server, struct request);
        talloc_set_name(one, "request %d", number % NAMES);
        one->data = malloc(BYTES);
        if (!server->first) server->first = one;
    }
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
