/* What C programs keep: lists with the link at any place, tables of chains, arrays, in variables of every sort. Prints, of each root and field,
 * "NAME LENGTH BLOCKS BYTES": how many elements it has, and the blocks and usable bytes that only it leads to. */
#include <malloc.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static long blocks, bytes;

static void *take(size_t size) {
    void *made = calloc(1, size);
    if (!made)
        abort();
    blocks++;
    bytes += (long)malloc_usable_size(made);
    return made;
}

static void say(const char *name, long length) {
    printf("%s %ld %ld %ld\n", name, length, blocks, bytes);
    blocks = bytes = 0;
}

struct link {
    struct link *next, *previous;
};
struct job { /* intrusive: the link is in the middle */
    long number;
    char *name;
    struct link link;
    long state;
};
struct entry {
    char *key;
    long value;
    struct entry *next;
};
struct table {
    struct entry **buckets;
    unsigned long size, used;
};
struct item {
    long value[3];
    struct item *next;
};
struct tree {
    struct tree *left, *right;
    long key;
};

struct server {
    long port;
    struct link jobs;
    struct table keys;
    struct item *first, *last;
    long items;
    struct tree *index;
    void **clients;
} server;

static struct entry *cache[256]; /* a table of chains that is a variable itself */
struct item *queue;
__thread struct item *mine;
struct item *shared_a, *shared_b;

static void append(struct link *list, struct link *node) {
    node->next = list;
    node->previous = list->previous;
    list->previous->next = node;
    list->previous = node;
}

static void insert(struct entry **buckets, unsigned long size, long n) {
    struct entry *made = take(sizeof *made);
    char name[32];
    snprintf(name, sizeof name, "key:%ld", n);
    made->key = take(strlen(name) + 1);
    strcpy(made->key, name);
    made->value = n;
    made->next = buckets[(unsigned long)n * 2654435761u % size];
    buckets[(unsigned long)n * 2654435761u % size] = made;
}

static struct item *items(long count) {
    struct item *head = NULL;
    while (count--) {
        struct item *made = take(sizeof *made);
        made->next = head;
        head = made;
    }
    return head;
}

static struct tree *grow(long low, long high) {
    if (low >= high)
        return NULL;
    struct tree *made = take(sizeof *made);
    made->key = (low + high) / 2;
    made->left = grow(low, made->key);
    made->right = grow(made->key + 1, high);
    return made;
}

static pthread_barrier_t barrier;
static long count;

static void *worker(void *nothing) {
    mine = items(count / 2);
    say("mine", count / 2);
    struct item *volatile local = items(count / 4);
    say("local", count / 4);
    pthread_barrier_wait(&barrier);
    while (local) /* reads `local` again, so that it holds its list */
        pause();
    return nothing;
}

int main(int argc, char **argv) {
    count = argc > 1 ? atol(argv[1]) : 1000;
    server.jobs.next = server.jobs.previous = &server.jobs;
    for (long i = 0; i < count; i++) {
        struct job *job = take(sizeof *job);
        job->number = i;
        append(&server.jobs, &job->link);
    }
    say("server.jobs", count);
    server.keys.size = 128;
    server.keys.buckets = take(server.keys.size * sizeof *server.keys.buckets);
    for (long i = 0; i < count; i++, server.keys.used++)
        insert(server.keys.buckets, server.keys.size, i);
    say("server.keys", count);
    server.first = items(count);
    for (struct item *at = server.first; at; at = at->next)
        server.last = at;
    server.items = count;
    say("server.first", count);
    server.index = grow(0, count);
    say("server.index", count);
    server.clients = take(64 * sizeof *server.clients);
    for (int i = 0; i < 50; i++)
        server.clients[i] = take(1000);
    say("server.clients", 50);
    for (long i = 0; i < count; i++)
        insert(cache, 256, i);
    say("cache", count);
    queue = items(count);
    say("queue", count);
    shared_a = shared_b = items(count / 10);
    say("shared", count / 10);
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_t thread;
    if (pthread_create(&thread, NULL, worker, NULL))
        return 1;
    pthread_barrier_wait(&barrier);
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
