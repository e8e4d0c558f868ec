/* Chunks of talloc: a tree that a variable refers to, and 100 lost trees of three chunks each. One chunk of the tree was
   shrunk in place. Prints the number of blocks and bytes that talloc counts for the tree, then "ready". Arguments: the number of sessions
   of the tree; if there is a second argument, the tree is lost. */
#include <stdio.h>
#include <stdlib.h>
#include <talloc.h>
#include <unistd.h>

struct session { int id; char *name; int *data; };
struct server { struct session **sessions; int count; };

enum { HELD = 500, LOST = 100 };
TALLOC_CTX *top;
struct server *server;

static struct session *session(void *context, int id) {
    struct session *made = talloc_zero(context, struct session);
    made->id = id;
    made->name = talloc_asprintf(made, "session number %d", id);
    made->data = talloc_array(made, int, 8);
    return made;
}

static void __attribute__((noinline)) lose(void) {
    for (int id = 0; id < LOST; id++) session(NULL, id);
}

static void __attribute__((noinline)) sweep(void) {
    volatile char waste[1 << 16];
    for (unsigned i = 0; i < sizeof waste; i++) waste[i] = 0;
}

static void __attribute__((noinline)) grow(int held) {
    top = talloc_named_const(NULL, 0, "top context");
    char *shrunk = talloc_named_const(top, 1000, "shrunk");
    if (talloc_realloc_size(top, shrunk, 100) != shrunk) abort();
    talloc_set_name_const(shrunk, "shrunk");
    server = talloc_zero(top, struct server);
    server->sessions = talloc_array(server, struct session *, held);
    for (int id = 0; id < held; id++) server->sessions[id] = session(server, id);
    printf("%zu %zu\n", talloc_total_blocks(top), talloc_total_size(top));
}

int main(int argc, char **argv) {
    grow(argc > 1 ? atoi(argv[1]) : HELD);
    lose();
    if (argc > 2) top = server = NULL;
    sweep();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
