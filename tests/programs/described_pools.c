/* Pools of a program's own inside malloc's blocks, and what is lost in them: for `--pools`.
 *
 * It prints the address and the state of each chunk ("in-use", "free", "lost"), the number of bytes that a program may use in each, then
 * "ready", and waits for ever. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Sessions: chunks of one size in slabs, with a list of free ones. The variable session_pool is the pool. */
struct slab {
    struct slab *next;
    size_t bytes;
};
struct session {
    struct session *next;
    char user[40];
};
static struct {
    struct slab *slabs;
    struct session *free;
    size_t chunk;
} session_pool = {.chunk = sizeof(struct session)};
enum { SLAB = 4096 };

static struct session *new_session(void) {
    if (!session_pool.free) {
        struct slab *slab = calloc(1, SLAB);
        slab->bytes = SLAB;
        slab->next = session_pool.slabs;
        session_pool.slabs = slab;
        for (char *at = (char *)(slab + 1); at + session_pool.chunk <= (char *)slab + SLAB; at += session_pool.chunk) {
            ((struct session *)at)->next = session_pool.free;
            session_pool.free = (struct session *)at;
        }
    }
    struct session *made = session_pool.free;
    session_pool.free = made->next;
    memset(made, 0, sizeof *made);
    return made;
}

static void end_session(struct session *one) {
    one->next = session_pool.free;
    session_pool.free = one;
}

/* Arenas: chunks of different sizes one behind the other, each with a header {size with the header | bit 0 if in use}. An arena begins
 * with the word "ARENAv1". */
struct arena {
    char magic[8];
    struct arena *next;
    char *end;
    char *limit;
};
static struct arena *arenas;

static void *arena_alloc(size_t size) {
    size_t whole = 16 + (size + 15) / 16 * 16;
    if (!arenas || (size_t)(arenas->limit - arenas->end) < whole) {
        struct arena *made = calloc(1, 8192);
        memcpy(made->magic, "ARENAv1", 8);
        made->next = arenas;
        made->end = (char *)(made + 1);
        made->limit = (char *)made + 8192;
        arenas = made;
    }
    char *chunk = arenas->end;
    arenas->end += whole;
    *(size_t *)chunk = whole | 1;
    return chunk + 16;
}

static void arena_free(void *p) { *(size_t *)((char *)p - 16) &= ~(size_t)1; }

static void say(const char *pool, const void *p, size_t size, const char *state) {
    printf("%s %#zx %zu %s\n", pool, (size_t)(uintptr_t)p, size, state);
}

static struct session *volatile sessions[100];
static void *volatile messages[100];

static __attribute__((noinline)) void make(void) {
    for (int i = 0; i < 300; i++) {
        struct session *one = new_session();
        snprintf(one->user, sizeof one->user, "user %d", i);
        if (i % 3 == 0) {
            sessions[i / 3] = one;
            say("session-pool", one, sizeof *one, "in-use");
        } else if (i % 3 == 1) {
            say("session-pool", one, sizeof *one, "lost");
        }
        if (i % 3 == 2) end_session(one);
    }
    for (int i = 0; i < 300; i++) {
        size_t size = 16 + (size_t)(i * 37 % 400) / 16 * 16;
        char *one = arena_alloc(size);
        snprintf(one, size, "message %d", i);
        if (i % 3 == 0) messages[i / 3] = one;
        if (i % 3 == 2) arena_free(one);
        say("messages", one, size, i % 3 == 0 ? "in-use" : i % 3 == 1 ? "lost" : "free");
    }
    for (struct session *free_ = session_pool.free; free_; free_ = free_->next) say("session-pool", free_, sizeof *free_, "free");
}

/* Overwrite what make() has left on the stack. */
static __attribute__((noinline)) void clear(void) {
    volatile char space[16384];
    for (size_t i = 0; i < sizeof space; i++) space[i] = 0;
}

int main(void) {
    static char buffer[65536];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    make();
    clear();
    printf("ready\n");
    fflush(stdout);
    memset(buffer, 0, sizeof buffer);
    for (;;) pause();
}
