/* A program that prints the true type of each of its blocks: blocks that were freed and allocated again. glibc does not split a free
 * chunk if the rest would be smaller than a chunk, so blocks are one size class larger than their types. The words after the type are
 * those of the former content.
 *
 *   typed_reused OBJECTS SEED */
#include "typed_former.h"
struct list { struct list *next, *prev; };
struct hash { struct hash *next, **link; };
/* Both begin with a list. A block of struct page that was not split has the size of struct session. */
struct page { struct list lru; struct hash hash; uint64_t key; struct label *label; uint64_t hits; };
struct session { struct list all; uint64_t started; struct label *user, *host; struct entry *entry; uint64_t sent, received; struct label *group; };
/* A node that was not split has room for one level more. The word there may be the address of a former node. */
struct entry { struct label *label; double score; struct entry *back; struct level { struct entry *forward; uint64_t span; } levels[]; };
struct order { uint64_t number; struct label *customer; struct session *session; uint64_t total, paid; struct order *next; uint64_t weight; };
static struct list sessions = {&sessions, &sessions}, pages = {&pages, &pages};
static struct hash *buckets[32];
static struct entry *first;
static struct order *orders;
static void push(struct list *head, struct list *one) { one->next = head->next; one->prev = head; head->next->prev = one; head->next = one; }
static NOINLINE struct session *session(void) { struct session *made = NEW(struct session); made->started = 1700000000; made->user = label(); made->host = label(); made->sent = 4000; return made; }
static NOINLINE void add_sessions(unsigned count) {
    for (unsigned at = 0; at < count; at++) {
        leaking = at % 5 == 4;
        struct session *made = session();
        if (!leaking) push(&sessions, &made->all);
    }
    leaking = 0;
}
static NOINLINE void add_pages(unsigned count) {
    static void *former[MOST];
    for (unsigned at = 0; at < count; at++) {
        struct session *one = former[at] = malloc(sizeof *one);
        *one = (struct session){.started = 1, .user = label(), .group = (struct label *)(uintptr_t)sessions.next};
        keep_apart();
    }
    release(former, count, sizeof(struct session));
    for (unsigned at = 0; at < count; at++) {
        struct page *made = told(refilled(sizeof *made), "struct page");
        struct hash **bucket = &buckets[at % 32];
        made->key = at * 7919; made->label = label(); made->hits = at;
        push(&pages, &made->lru);
        made->hash = (struct hash){*bucket, bucket};
        if (*bucket) (*bucket)->link = &made->hash.next;
        *bucket = &made->hash;
    }
    memset(former, 0, sizeof former);
}
static NOINLINE void add_entries(unsigned count) {
    static struct entry *former[MOST];
    for (unsigned at = 0; at < count; at++) {
        struct entry *one = former[at] = calloc(1, sizeof *one + 2 * sizeof one->levels[0]);
        one->levels[1].forward = at ? former[at - 1] : NULL;
        keep_apart();
    }
    /* Half of the former entries become entries with one level, the others become orders. */
    void *even[MOST], *odd[MOST];
    for (unsigned at = 0; at < count; at += 2) { even[at / 2] = former[at]; odd[at / 2] = former[at + 1]; }
    release(even, count / 2, sizeof(struct entry) + 2 * sizeof(struct level));
    for (unsigned at = 0; at < count / 2; at++) {
        struct entry *made = told(malloc(sizeof *made + sizeof made->levels[0]), "struct entry");
        *made = (struct entry){.label = label(), .score = at / 3.0};
        made->levels[0] = (struct level){first, at};
        if (first) first->back = made;
        first = made;
    }
    for (unsigned at = 0; at < count / 2; at++) free(odd[at]);
    for (unsigned at = 0; at < count / 2; at++) {
        struct order *made = told(refilled(sizeof *made), "struct order");
        *made = (struct order){.number = 100000 + at, .customer = label(), .total = 9, .next = orders};
        orders = made;
    }
    memset(former, 0, sizeof former);
    memset(even, 0, sizeof even);
    memset(odd, 0, sizeof odd);
    __asm__ volatile("" ::"r"(even), "r"(odd) : "memory");
}
static NOINLINE void clear_stack(void) { volatile char space[65536]; for (size_t at = 0; at < sizeof space; at++) space[at] = 0; }
int main(int argc, char **argv) {
    unsigned count = argc > 1 ? (unsigned)atoi(argv[1]) & ~1u : 200;
    mallopt(M_MXFAST, 0);
    count = count < MOST ? count : MOST;
    add_pages(count);
    add_entries(count);
    add_sessions(count);
    clear_stack();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
