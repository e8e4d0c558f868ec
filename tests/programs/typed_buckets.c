/* A cache of pages. The program prints the true type of each of its blocks, as typed_truth.c does. Each page is in one block with its
 * descriptor, which follows the page. Only the buckets of a hash table, and other descriptors, refer to a descriptor.
 *
 *   typed_buckets PAGES SEED */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PAGE 512

struct owner {
    unsigned long number;
    struct owner *parent;
    char *name;
};
struct descriptor {
    void *bytes;
    struct descriptor *collision;
    struct owner *owner;
    unsigned long number;
};
struct cache {
    unsigned long bucket_count, page_count;
    struct descriptor **buckets;
    struct mark **marks;
};
/* The pointers to marks also refer to the middle of a block, but the words there are numbers, not a mark. */
struct mark {
    struct owner *owner;
    struct mark *next;
};

static struct cache *cache;

static void *made(unsigned long size, const char *type) {
    void *p = calloc(1, size);
    printf("%lx reachable %s\n", (unsigned long)p, type);
    return p;
}

static struct owner *owner(unsigned long number) {
    struct owner *o = made(sizeof *o, "struct owner");
    o->number = number;
    o->parent = number % 3 ? NULL : owner(number + 1);
    return o;
}

static struct descriptor *page(unsigned long number) {
    char *bytes = made(PAGE + sizeof(struct descriptor), "struct descriptor");
    struct descriptor *d = (struct descriptor *)(void *)(bytes + PAGE);
    for (unsigned at = 0; at < PAGE; at++)
        bytes[at] = (char)(number * 31 + at * 7 % 251);
    *d = (struct descriptor){bytes, NULL, owner(number), number};
    return d;
}

int main(int argc, char **argv) {
    unsigned long count = argc > 1 ? strtoul(argv[1], NULL, 0) : 300;
    cache = made(sizeof *cache, "struct cache");
    cache->bucket_count = count * 4 / 3;
    cache->page_count = count;
    cache->buckets = made(cache->bucket_count * sizeof *cache->buckets, "struct descriptor *[]");
    cache->marks = made(count * sizeof *cache->marks, "struct mark *[]");
    for (unsigned long at = 0; at < count; at++) {
        struct descriptor *d = page(at), **bucket = &cache->buckets[at * 7 % cache->bucket_count];
        d->collision = *bucket;
        *bucket = d;
        unsigned long *numbers = made(15 * sizeof *numbers, "unsigned long[]");
        for (unsigned word = 0; word < 15; word++)
            numbers[word] = at << 20 | word;
        cache->marks[at] = (struct mark *)(void *)(numbers + 6);
    }
    puts("ready");
    fflush(stdout);
    pause();
}
