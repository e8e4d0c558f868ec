/* Chunks of talloc: a tree that a variable refers to, and 100 lost trees of three chunks each. One chunk of the tree was
   shrunk in place. Prints the number of blocks and bytes that talloc counts for the tree, then "ready". Arguments: the number of sessions
   of the tree; if there is a second argument, the tree is lost. With "listed" or "tracked" as third argument, prints "kept ADDRESS" or
   "lost ADDRESS" for further chunks and blocks of malloc; "tracked" enables talloc's tracking of chunks without a parent. With "freed" or
   "stale", pools are freed while chunks in them are in use. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

static void *say(const char *kind, void *chunk) {
    printf("%s %p\n", kind, chunk);
    return chunk;
}

/* References to chunks: from contexts that are kept, lost, or NULL; words behind the requested bytes of a chunk; a pool. */
static void __attribute__((noinline)) list_chunks(void) {
    void **pool = say("kept", talloc_pool(top, 4000));
    *(void **)talloc_size(pool, 300) = say("kept", malloc(500));
    *(void **)talloc_size(say("lost", talloc_pool(NULL, 4000)), 300) = say("lost", malloc(500));
    for (int number = 0; number < LOST; number++) {
        void *lost = say("lost", talloc_named_const(NULL, 0, "lost context")), *passed = talloc_named_const(NULL, 0, "passed context");
        void *other = say("lost", talloc_named_const(lost, 8, "child of a lost context"));
        void *referenced = say("kept", talloc_named_const(top, 16, "referenced"));
        if (number % 3) talloc_reference(lost, referenced);
        if (number % 3 == 2) talloc_reference(top, referenced);
        if (number % 3 == 0) say("kept", talloc_reference(number % 2 ? NULL : top, referenced) ? referenced : NULL);
        void *moved = say("kept", talloc_named_const(passed, 16, "moved"));
        talloc_reference(top, moved);
        talloc_free(passed);
        (void)other;
        void **shrunk = say("kept", talloc_named_const(top, 200, "shrunk"));
        shrunk[20] = say("lost", malloc(600));
        shrunk[2] = say("kept", malloc(600));
        if (talloc_realloc_size(top, shrunk, 100) != shrunk) abort();
        talloc_set_name_const(shrunk, "shrunk");
    }
}

/* These pools are freed, but the server still uses a chunk in each. */
static void __attribute__((noinline)) free_pools(void) {
    for (int number = 0; number < 1000; number++) {
        void *pool = talloc_pool(NULL, 4000);
        talloc_free(talloc_size(pool, 40));
        talloc_steal(server, talloc_zero(pool, struct session));
        talloc_free(pool);
    }
}

void *buffers[100];

/* Contexts are lost. Each had a pool that is freed, and whose chunk the server still uses. Then other data is in the blocks of pools
 * whose chunks are all freed. */
static void __attribute__((noinline)) free_parts(void) {
    for (int number = 0; number < LOST; number++) {
        void *context = talloc_named_const(NULL, 0, "lost context");
        talloc_zero(context, struct server);
        void *pool = talloc_pool(context, 4000);
        talloc_steal(server, talloc_zero(pool, struct session));
        talloc_free(pool);
    }
    for (int number = 0; number < 100; number++) {
        void *pool = talloc_pool(NULL, 6000);
        talloc_zero(pool, struct session);
        talloc_free(pool);
        buffers[number] = malloc(6128);
    }
}

int main(int argc, char **argv) {
    if (argc > 3 && !strcmp(argv[3], "tracked")) talloc_enable_null_tracking();
    grow(argc > 1 ? atoi(argv[1]) : HELD);
    lose();
    if (argc > 3 && !strcmp(argv[3], "freed")) free_pools();
    else if (argc > 3 && !strcmp(argv[3], "stale")) free_parts();
    else if (argc > 3) list_chunks();
    else if (argc > 2) top = server = NULL;
    sweep();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
