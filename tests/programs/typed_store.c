/* A program that prints the true type of each of its blocks: a database with a script language. Objects begin with members that a macro
 * declares. Nodes of a B-tree have a union of pointers to nodes and void pointers. Arguments of timers are void pointers to structs that
 * are distinguished by a function, or refer to a variable. Blocks contain stale words: memory is not cleared, and some blocks are freed.
 *
 *   typed_store RECORDS SEED */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/mman.h>
#define NOINLINE __attribute__((noinline))
static uint64_t state = 1; static int leaking;
static unsigned roll(unsigned below) { state = state * 6364136223846793005ul + 1442695040888963407ul; return (unsigned)((state >> 33) % below); }
struct said { uintptr_t at; const char *type; };
static struct said *said; static size_t nsaid;
static NOINLINE void *told(void *block, const char *type) { said[nsaid++] = (struct said){~(uintptr_t)block, type}; return block; }
static NOINLINE void forget(void *block) { for (size_t at = nsaid; at-- > 0;) if (said[at].at == ~(uintptr_t)block) { said[at].at = 0; break; } free(block); }
#define NEW(type) ((type *)told(malloc(sizeof(type)), #type))
#define ARRAY(type, n) ((type *)told(malloc(sizeof(type) * (n)), #type "[]"))
static NOINLINE char *text(void) { unsigned n = 1 + roll(40); char *s = malloc(n + 1); for (unsigned i = 0; i < n; i++) s[i] = (char)('a' + roll(26)); s[n] = 0; return s; }
#define OBJECT_HEAD int kind; unsigned refs; struct object *gc_next
struct object { OBJECT_HEAD; };
struct strobj { OBJECT_HEAD; size_t len; char *bytes; };
struct listobj { OBJECT_HEAD; struct object **items; unsigned used, room; };
struct pairobj { OBJECT_HEAD; struct object *first, *second; };
struct funobj { OBJECT_HEAD; char *name; struct proto *proto; struct upval **ups; unsigned n; };
struct numobj { OBJECT_HEAD; double value; };
struct proto { char *source; unsigned char *code; unsigned ncode, nconst; struct object **consts; struct proto **inner; unsigned ninner; int *lines; };
struct upval { struct object *value; struct upval *next; unsigned slot; };
/* skip list */
struct skipnode { char *key; void *value; unsigned level; struct skipnode *next[]; };
struct skiplist { struct skipnode *head; unsigned count; void (*drop)(void *); };
/* B-tree */
struct btnode { struct btnode *up; uint16_t used, leaf; uint64_t keys[5]; union { struct btnode *child[6]; void *data[6]; } u; };
struct btree { struct btnode *root; unsigned count; };
struct record { uint64_t id; char *name; struct record *older; struct blob *blob; };
struct blob { unsigned size, flags; unsigned char bytes[]; };
/* LRU with hlist and list */
struct list_head { struct list_head *next, *prev; };
struct hnode { struct hnode *next, **pprev; };
struct page { struct hnode hash; unsigned long no; struct list_head lru; void *frame; struct record *pinned; };
struct lru { struct hnode **buckets; unsigned mask; struct list_head used; unsigned n; };
/* timers */
struct timer { uint64_t due; void (*fire)(void *); void *arg; unsigned slot; };
struct wheel { struct timer **heap; unsigned used, room; };
struct retry { struct conn *conn; unsigned tries; char *reason; };
struct expiry { struct record *record; struct skiplist *from; uint64_t when; };
struct tick { unsigned long count; struct wheel *wheel; };
/* connections */
struct iov { void *base; size_t len; };
struct conn { struct list_head all; int fd; char *peer; struct iov *iov; unsigned niov; struct cmd *queue, **tail; union { struct tx *tx; struct sub *sub; uint64_t cursor; } mode; unsigned char state; };
struct cmd { struct cmd *next; struct arg *argv; unsigned argc; const struct verb *verb; };
struct arg { unsigned type; union { long number; char *string; struct listobj *list; struct record *record; } v; };
struct verb { const char *name; int (*run)(struct conn *, struct cmd *); };
struct tx { struct cmd *pending; unsigned n; struct record **locked; };
struct sub { char *channel; struct conn *next_in_channel; struct sub *more; };
/* trie */
struct trie { struct trie *child[8]; struct record *here; };
static struct { struct skiplist *index; struct btree tree; struct lru lru; struct wheel wheel; struct list_head conns; struct trie *trie; struct object *gc; struct listobj *globals; } db;
static int run_get(struct conn *c, struct cmd *m) { return c && m; } static int run_set(struct conn *c, struct cmd *m) { return c == (void *)m; }
static const struct verb verbs[] = {{"get", run_get}, {"set", run_set}};
static void list_add(struct list_head *h, struct list_head *n) { n->next = h; n->prev = h->prev; h->prev->next = n; h->prev = n; }
static NOINLINE struct blob *blob(void) { unsigned n = 8 + roll(100); struct blob *b = told(malloc(sizeof *b + n), "struct blob"); b->size = n; b->flags = roll(4); for (unsigned i = 0; i < n; i++) b->bytes[i] = (unsigned char)roll(256); return b; }
static NOINLINE struct record *record(int depth) { struct record *r = NEW(struct record); r->id = roll(1 << 30); r->name = text(); r->older = depth > 0 && roll(2) ? record(depth - 1) : NULL; r->blob = roll(2) ? blob() : NULL; return r; }
static NOINLINE void *objinit(void *o, int kind) { struct object *b = o; b->kind = kind; b->refs = 1 + roll(3); b->gc_next = NULL; if (!leaking) { b->gc_next = db.gc; db.gc = b; } return o; }
static NOINLINE struct object *object(int depth);
static NOINLINE struct proto *proto(int depth) { struct proto *p = NEW(struct proto); p->source = text(); p->ncode = 4 + roll(40); p->code = malloc(p->ncode); memset(p->code, 0x91, p->ncode); p->nconst = 1 + roll(5); p->consts = ARRAY(struct object *, p->nconst); for (unsigned i = 0; i < p->nconst; i++) p->consts[i] = object(depth - 1); p->ninner = depth > 0 ? roll(3) : 0; p->inner = NULL; if (p->ninner) { p->inner = ARRAY(struct proto *, p->ninner); for (unsigned i = 0; i < p->ninner; i++) p->inner[i] = proto(depth - 1); } p->lines = told(malloc(p->ncode * 4), "int[]"); for (unsigned i = 0; i < p->ncode; i++) p->lines[i] = (int)i; return p; }
static NOINLINE struct object *object(int depth) {
    switch (depth > 0 ? roll(5) : roll(2) * 4) {
    case 0: { struct strobj *s = objinit(NEW(struct strobj), 0); s->bytes = text(); s->len = strlen(s->bytes); return (void *)s; }
    case 1: { struct listobj *l = objinit(NEW(struct listobj), 1); l->room = 0; l->used = 0; l->items = NULL; for (unsigned n = roll(9); n; n--) { if (l->used == l->room) { l->room = l->room * 2 + 2; struct object **w = ARRAY(struct object *, l->room); if (l->items) { memcpy(w, l->items, l->used * sizeof *w); forget(l->items); } l->items = w; } struct object *o = object(depth - 1); l->items[l->used++] = o; } return (void *)l; }
    case 2: { struct pairobj *p = objinit(NEW(struct pairobj), 2); p->first = object(depth - 1); p->second = object(depth - 1); return (void *)p; }
    case 3: { struct funobj *f = objinit(NEW(struct funobj), 3); f->name = text(); f->proto = proto(depth - 1); f->n = roll(3); f->ups = NULL; if (f->n) { f->ups = ARRAY(struct upval *, f->n); for (unsigned i = 0; i < f->n; i++) { struct upval *u = NEW(struct upval); u->value = object(0); u->next = i ? f->ups[i - 1] : NULL; u->slot = i; f->ups[i] = u; } } return (void *)f; }
    default: { struct numobj *n = objinit(NEW(struct numobj), 4); n->value = roll(1000) / 7.0; return (void *)n; }
    }
}
static void drop_record(void *r) { free(r); }
static NOINLINE struct skiplist *skiplist(void) { struct skiplist *l = NEW(struct skiplist); l->drop = drop_record; l->count = 0; l->head = told(malloc(sizeof(struct skipnode) + 4 * 8), "struct skipnode"); l->head->key = NULL; l->head->value = NULL; l->head->level = 4; memset(l->head->next, 0, 32); return l; }
static NOINLINE void skipadd(struct skiplist *l) { unsigned lv = 1; while (lv < 4 && roll(3) == 0) lv++; struct skipnode *n = told(malloc(sizeof *n + lv * 8), "struct skipnode"); n->key = text(); n->value = record(2); n->level = lv; for (unsigned i = 0; i < lv; i++) { n->next[i] = l->head->next[i]; l->head->next[i] = n; } l->count++; }
static NOINLINE struct btnode *btnode(struct btnode *up, int depth) { struct btnode *n = NEW(struct btnode); n->up = up; n->leaf = depth == 0; n->used = (uint16_t)(1 + roll(5)); for (unsigned i = 0; i < n->used; i++) n->keys[i] = state >> 9; for (unsigned i = 0; i <= n->used; i++) if (n->leaf) n->u.data[i] = record(0); else n->u.child[i] = btnode(n, depth - 1); return n; }
static NOINLINE struct page *page(struct lru *l) { struct page *p = NEW(struct page); p->no = roll(1 << 20); p->frame = malloc(256); memset(p->frame, 0xEE, 256); p->pinned = roll(2) ? record(0) : NULL; struct hnode **b = &l->buckets[p->no & l->mask]; p->hash.next = *b; if (*b) (*b)->pprev = &p->hash.next; *b = &p->hash; p->hash.pprev = b; list_add(&l->used, &p->lru); l->n++; return p; }
static NOINLINE void lru_init(struct lru *l, unsigned n) { l->buckets = ARRAY(struct hnode *, n); memset(l->buckets, 0, n * 8); l->mask = n - 1; l->used.next = l->used.prev = &l->used; l->n = 0; }
static NOINLINE struct cmd *cmd(void) { struct cmd *c = NEW(struct cmd); c->next = NULL; c->argc = 1 + roll(4); c->argv = c->argc > 1 ? ARRAY(struct arg, c->argc) : told(malloc(sizeof(struct arg)), "struct arg"); c->verb = &verbs[roll(2)]; for (unsigned i = 0; i < c->argc; i++) { struct arg *a = &c->argv[i]; a->type = roll(4); if (a->type == 0) a->v.number = roll(100); else if (a->type == 1) a->v.string = text(); else if (a->type == 2) { struct listobj *l = objinit(NEW(struct listobj), 1); l->used = l->room = 1; l->items = told(malloc(8), "struct object *[]"); l->items[0] = object(0); a->v.list = l; } else a->v.record = record(0); } return c; }
static NOINLINE struct conn *conn(void) { struct conn *c = NEW(struct conn); c->all.next = c->all.prev = &c->all; c->fd = (int)roll(1000); c->peer = text(); c->niov = roll(4); c->iov = NULL; if (c->niov) { c->iov = c->niov > 1 ? ARRAY(struct iov, c->niov) : told(malloc(16), "struct iov"); for (unsigned i = 0; i < c->niov; i++) { c->iov[i].len = 20 + roll(100); c->iov[i].base = malloc(c->iov[i].len); memset(c->iov[i].base, 'i', c->iov[i].len); } } c->queue = NULL; c->tail = &c->queue; for (unsigned n = roll(4); n; n--) { struct cmd *m = cmd(); *c->tail = m; c->tail = &m->next; } c->state = (unsigned char)roll(3);
    if (c->state == 0) { struct tx *t = c->mode.tx = NEW(struct tx); t->pending = cmd(); t->n = 2; t->locked = ARRAY(struct record *, 2); t->locked[0] = record(0); t->locked[1] = record(0); }
    else if (c->state == 1) { struct sub *s = c->mode.sub = NEW(struct sub); s->channel = text(); s->next_in_channel = NULL; s->more = NULL; if (roll(2)) { s->more = NEW(struct sub); s->more->channel = text(); s->more->next_in_channel = c; s->more->more = NULL; } }
    else c->mode.cursor = roll(1000);
    return c; }
static void fire_retry(void *a) { free(a); } static void fire_expiry(void *a) { (void)a; } static void fire_tick(void *a) { abort(); (void)a; }
static NOINLINE struct timer *timer(struct conn *c, struct skiplist *l) { struct timer *t = NEW(struct timer); t->due = 1700000000 + roll(10000); t->slot = 0; switch (roll(3)) { case 0: { struct retry *r = t->arg = NEW(struct retry); r->conn = c; r->tries = roll(5); r->reason = text(); t->fire = fire_retry; break; } case 1: { struct expiry *e = t->arg = NEW(struct expiry); e->record = record(0); e->from = l; e->when = t->due; t->fire = fire_expiry; break; } default: { struct tick *k = t->arg = NEW(struct tick); k->count = roll(100); k->wheel = &db.wheel; t->fire = fire_tick; } } return t; }
static NOINLINE void push_timer(struct timer *t) { struct wheel *w = &db.wheel; if (w->used == w->room) { unsigned r = w->room * 2 + 4; struct timer **h = ARRAY(struct timer *, r); if (w->heap) { memcpy(h, w->heap, w->used * 8); forget(w->heap); } w->heap = h; w->room = r; } t->slot = w->used; w->heap[w->used++] = t; }
static NOINLINE struct trie *trie(int depth) { struct trie *t = NEW(struct trie); memset(t, 0, sizeof *t); if (roll(2)) t->here = record(0); if (depth > 0) for (unsigned n = 1 + roll(3); n; n--) { unsigned at = roll(8); if (!t->child[at]) t->child[at] = trie(depth - 1); } return t; }
static NOINLINE void clear_stack(void) { volatile char space[65536]; for (size_t at = 0; at < sizeof space; at++) space[at] = 0; }
static NOINLINE void churn(void) { for (int i = 0; i < 6; i++) { void *gone[8]; unsigned sz[8]; for (int k = 0; k < 8; k++) { sz[k] = 16 + 8 * roll(14); gone[k] = malloc(sz[k]); for (unsigned w = 0; w < sz[k] / 8; w++) ((void **)gone[k])[w] = nsaid ? (void *)(~said[roll((unsigned)nsaid)].at) : NULL; } for (int k = 0; k < 8; k++) free(gone[k]); } }
int main(int argc, char **argv) {
    unsigned n = argc > 1 ? (unsigned)atoi(argv[1]) : 300; state = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    said = mmap(NULL, 1ul << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    db.index = skiplist(); lru_init(&db.lru, 64); db.conns.next = db.conns.prev = &db.conns; db.trie = NEW(struct trie); memset(db.trie, 0, sizeof *db.trie);
    db.tree.root = btnode(NULL, n > 100 ? 3 : 2);
    db.globals = objinit(NEW(struct listobj), 1); db.globals->room = n; db.globals->used = 0; db.globals->items = ARRAY(struct object *, n);
    for (unsigned i = 0; i < n; i++) {
        leaking = i % 5 == 4; churn();
        struct object *o = object(3); if (!leaking) db.globals->items[db.globals->used++] = o;
        struct skiplist *l = leaking ? skiplist() : db.index; skipadd(l); skipadd(l); if (leaking) skipadd(l);
        struct lru *u = &db.lru; if (leaking) { if (roll(3) == 0) { u = NEW(struct lru); lru_init(u, 4); page(u); page(u); } } else page(u);
        struct conn *c = conn(); if (!leaking) list_add(&db.conns, &c->all);
        struct timer *t = timer(c, l); if (!leaking) push_timer(t);
        struct trie *s = trie(2); if (!leaking) { if (!db.trie->child[i % 8]) db.trie->child[i % 8] = s; else { struct trie *d = db.trie; unsigned k = 0; while (d->child[k]) { d = d->child[k]; k = (k + 3) % 8; } d->child[k] = s; } }
        if (leaking && roll(3) == 0) { struct btree *b = NEW(struct btree); b->count = 1; b->root = btnode(NULL, 1); }
    }
    clear_stack();
    for (size_t i = 0; i < nsaid; i++) if (said[i].at) printf("%lx b %s\n", ~said[i].at, said[i].type);
    puts("ready"); fflush(stdout); for (;;) pause();
}
