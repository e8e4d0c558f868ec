/* Obstacks in a variable, in a struct of a block, and on the stack; chunks of the default size, small ones, and large ones. Blocks whose
   only references are in memory that obstack_free() released are lost. Prints "chunk NAME USED BYTES" for each obstack, and "lost ADDRESS"
   or "held ADDRESS" for each block. */
#include <obstack.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define obstack_chunk_alloc malloc
#define obstack_chunk_free free
#define ROUNDS 50

struct record {
    struct record *next;
    void *payload;
};
struct context {
    long number;
    struct obstack objects;
    struct record *first;
};

struct text { /* begins with an address inside itself, and a length that is 0, like an empty std::string */
    char *start;
    size_t length;
    char inside[16];
    long more[5];
};

struct text *texts[ROUNDS];
static struct obstack names;
static struct context *contexts[ROUNDS];
static struct obstack former, *dropped;
static uintptr_t hidden[8 * ROUNDS];
static int hidden_count;

static void report(const char *name, struct obstack *of) {
    size_t chunks = 0, bytes = 0;
    for (struct _obstack_chunk *one = of->chunk; one; one = one->prev, chunks++)
        bytes += one->limit - (char *)one;
    printf("obstack %s %#lx %zu %zu %zu\n", name, (unsigned long)of, chunks, bytes, (size_t)(of->chunk_limit - of->next_free));
}

static void *keep(struct obstack *in, size_t size) {
    struct record *made = obstack_alloc(in, sizeof *made);
    made->next = NULL;
    made->payload = calloc(1, size);
    printf("held %#lx\n", (unsigned long)made->payload);
    return made;
}

static void lose(struct obstack *in, int count, size_t size) { /* the references stay behind next_free */
    void *mark = obstack_alloc(in, 1);
    for (int number = 0; number < count; number++) {
        void **made = obstack_alloc(in, 16);
        made[0] = made[1] = calloc(1, size);
        hidden[hidden_count++] = ~(uintptr_t)made[0];
    }
    obstack_free(in, mark);
}

static __attribute__((noinline)) void make(struct obstack *local) {
    obstack_init(&names);
    for (int number = 0; number < 1000; number++)
        keep(&names, 40);
    lose(&names, ROUNDS, 72);
    for (int number = 0; number < ROUNDS; number++) {
        struct context *one = contexts[number] = calloc(1, sizeof *one);
        obstack_begin(&one->objects, 40 + 5 * number);
        one->first = keep(&one->objects, 56);
        lose(&one->objects, 1, 88);
        texts[number] = calloc(1, sizeof *texts[number]);
        texts[number]->start = texts[number]->inside;
        printf("held %#lx\n", (unsigned long)texts[number]);
    }
    obstack_begin(local, 20000);
    keep(local, 104);
    lose(local, ROUNDS, 120);
    obstack_blank(local, 5); /* an object that is not finished */
    /* The blocks of an obstack that was freed are used by another one, which has more objects. */
    dropped = malloc(sizeof *dropped);
    obstack_begin(&former, 10000);
    obstack_free(&former, NULL);
    obstack_begin(dropped, 10000);
    for (int number = 0; number < 100; number++)
        keep(dropped, 136);
    lose(dropped, ROUNDS, 152);
    printf("reused %d\n", dropped->chunk == former.chunk);
}

static __attribute__((noinline)) void clear(void) {
    char page[16384];
    memset(page, 0, sizeof page);
    __asm__ volatile("" : : "r"(page) : "memory");
}

static __attribute__((noinline)) void drop(void) { /* 40 chunks of 20 obstacks, which nothing refers to */
    for (int number = 0; number < 20; number++) {
        struct obstack local;
        obstack_init(&local);
        obstack_alloc(&local, 3000);
        obstack_alloc(&local, 3000);
        memset(&local, 0, sizeof local);
        __asm__ volatile("" : : "r"(&local) : "memory");
    }
}

int main(int count, char **words) {
    struct obstack local;
    (void)words;
    setvbuf(stdout, NULL, _IONBF, 0);
    if (count > 1) { /* one large obstack */
        drop();
        obstack_init(&names);
        for (int number = 0; number < 3000; number++)
            memset(obstack_alloc(&names, 1000), 'x', 1000);
        clear();
        puts("ready");
        for (;;)
            pause();
    }
    make(&local);
    clear();
    report("names", &names);
    report("local", &local);
    report("dropped", dropped);
    for (int number = 0; number < ROUNDS; number++)
        report("context", &contexts[number]->objects);
    for (int number = 0; number < hidden_count; number++)
        printf("lost %#lx\n", (unsigned long)~hidden[number]);
    clear();
    puts("ready");
    for (;;)
        pause();
}
