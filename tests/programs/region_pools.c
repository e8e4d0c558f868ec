/* Pools in blocks of malloc: a server with 100 requests, each with 4 chunks of 25,000 bytes. Prints "NAME POOLS BYTES", where BYTES are the
   usable bytes of the chunks of all pools of this name, then "ready". */
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REQUESTS = 100, CHUNKS = 4, BYTES = 25000 };

struct chunk {
    struct chunk *next;
    char data[BYTES];
};

struct region {
    char magic[8];
    const char *name;
    struct region *parent;
    struct chunk *chunks;
    struct region *next;
};

static struct region *server;

static struct region *create(const char *name, struct region *parent, int chunks, size_t *bytes) {
    struct region *made = calloc(1, sizeof *made);
    memcpy(made->magic, "REGIONv1", 8);
    made->name = name;
    made->parent = parent;
    if (parent) {
        made->next = parent->next;
        parent->next = made;
    }
    for (int number = 0; number < chunks; number++) {
        struct chunk *chunk = malloc(sizeof *chunk);
        memset(chunk->data, 'd', BYTES);
        chunk->next = made->chunks;
        made->chunks = chunk;
        *bytes += malloc_usable_size(chunk);
    }
    return made;
}

int main(void) {
    size_t mine = 0, theirs = 0;
    server = create("server", NULL, 1, &mine);
    for (int number = 0; number < REQUESTS; number++) create("request", server, CHUNKS, &theirs);
    printf("server 1 %zu\nrequest %d %zu\nready\n", mine, REQUESTS, theirs);
    fflush(stdout);
    for (;;) pause();
}
