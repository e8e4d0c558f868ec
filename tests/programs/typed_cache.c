/* A program that prints the true type of each of its blocks, as typed_truth.c does: a cache with an intrusive list and a tree, void
 * pointers to two types, flexible arrays, unions, and arrays of structures.
 *
 *   typed_cache ITEMS SEED */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
struct link {
    struct link *prev, *next;
};
struct rb {
    uintptr_t parent_color;
    struct rb *left, *right;
};
struct buf {
    size_t len, cap;
    char bytes[];
};
struct item {
    struct link lru;
    struct rb node;
    uint64_t hash;
    struct buf *key;
    void *payload;
    uint32_t kind, refs;
};
struct doc {
    struct doc *sibling;
    struct doc *child;
    char *title;
    struct attr *attrs;
    int nattrs;
};
struct attr {
    char *name;
    union {
        char *text;
        double number;
        struct doc *ref;
    } v;
    int type;
};
struct vec {
    void **data;
    size_t n, cap;
};
struct conn {
    int fd;
    struct conn *next;
    struct vec queue;
    struct session *sess;
    char *peer;
};
struct session {
    uint64_t id;
    struct conn *conn;
    struct user *user;
    struct link all;
};
struct user {
    char *name;
    struct user *next;
    struct session *sessions[4];
};
struct iter {
    struct link lru;
    struct item *at;
    void (*step)(struct iter *);
}; // 40
struct stat {
    struct stat *next;
    uint64_t a, b, c;
    struct item *top;
}; // 40
struct job {
    void (*run)(void *);
    void *arg;
    struct job *next;
};
struct arg_a {
    struct item *item;
    struct user *user;
    int n;
}; // 24
struct arg_b {
    struct doc *doc;
    char *why;
    struct conn *c;
}; // 24
struct matrix {
    int rows, cols;
    double *cells;
};
struct cache {
    struct link lru;
    struct rb *root;
    struct item **table;
    size_t buckets;
};
static struct cache *cache;
static struct user *users;
static struct conn *conns;
static struct job *jobs;
static struct link iters = {&iters, &iters};
static struct stat *stats;
static struct vec *docs;
static struct matrix *matrices[16];
static uint64_t s = 88172645463325252ull;
static uint64_t rnd(void) {
    s ^= s << 13;
    s ^= s >> 7;
    s ^= s << 17;
    return s;
}
static int leak;
static void *told(void *p, const char *t) {
    printf("%lx %s %s\n", (unsigned long)p, leak ? "leaked" : "reachable", t);
    return p;
}
#define T(p, t) told((p), t)
#define NEW(t) ((struct t *)T(calloc(1, sizeof(struct t)), "struct " #t))
static char *str(const char *b) {
    size_t n = 12 + rnd() % 40;
    char *p = calloc(1, n);
    snprintf(p, n, "%s-%llu-xxxxxxxxxxxxxxxxxxxxxxxx", b, (unsigned long long)rnd() % 1000000);
    return T(p, "char");
}
static void add(struct link *h, struct link *l) {
    l->next = h->next;
    l->prev = h;
    h->next->prev = l;
    h->next = l;
}
static struct buf *buf(void) {
    size_t n = 10 + rnd() % 60;
    struct buf *b = T(malloc(sizeof *b + n), "struct buf");
    b->len = b->cap = n;
    memset(b->bytes, 'q', n);
    return b;
}
static struct doc *doc(int depth) {
    struct doc *d = NEW(doc);
    d->title = str("title");
    d->nattrs = 2 + rnd() % 3;
    d->attrs = T(calloc(d->nattrs, sizeof(struct attr)), "struct attr[]");
    for (int i = 0; i < d->nattrs; i++) {
        d->attrs[i].name = str("attr");
        switch (d->attrs[i].type = rnd() % 3) {
        case 0:
            d->attrs[i].v.text = str("text");
            break;
        case 1:
            d->attrs[i].v.number = rnd() % 1000 / 7.0;
            break;
        default:
            d->attrs[i].v.ref = d;
        }
    }
    if (depth > 0) {
        int n = 1 + rnd() % 3;
        struct doc *last = 0;
        while (n--) {
            struct doc *c = doc(depth - 1);
            c->sibling = last;
            last = c;
        }
        d->child = last;
    }
    return d;
}
static void step(struct iter *i) {
    (void)i;
}
static void run_a(void *p) {
    (void)p;
}
static void run_b(void *p) {
    (void)p;
}
static struct item *item(struct cache *c) {
    struct item *i = NEW(item);
    i->hash = rnd();
    i->key = buf();
    i->refs = 1;
    i->kind = rnd() % 2;
    if (i->kind)
        i->payload = doc(1);
    else {
        struct matrix *m = NEW(matrix);
        m->rows = 4;
        m->cols = 3 + rnd() % 4;
        m->cells = T(calloc(m->rows * m->cols, 8), "double[]");
        i->payload = m;
    }
    if (c) {
        add(&c->lru, &i->lru);
        struct rb **p = &c->root, *par = 0;
        while (*p) {
            par = *p;
            p = i->hash < ((struct item *)((char *)par - offsetof(struct item, node)))->hash ? &par->left : &par->right;
        }
        *p = &i->node;
        i->node.parent_color = (uintptr_t)par;
        c->table[i->hash % c->buckets] = i;
    } else
        i->lru.next = i->lru.prev = &i->lru;
    return i;
}
int main(int c, char **v) {
    long n = c > 1 ? atol(v[1]) : 2000;
    if (c > 2)
        s += atol(v[2]);
    setvbuf(stdout, 0, _IOFBF, 1 << 16);
    cache = NEW(cache);
    cache->lru.next = cache->lru.prev = &cache->lru;
    cache->buckets = n;
    cache->table = T(calloc(n, 8), "struct item *[]");
    docs = NEW(vec);
    docs->cap = n / 8 + 1;
    docs->data = T(calloc(docs->cap, 8), "void *[]");
    for (long i = 0; i < n; i++) {
        item(cache);
        if (i % 8 == 0)
            docs->data[docs->n++] = doc(2);
        if (i % 3 == 0) {
            struct user *u = NEW(user);
            u->name = str("user");
            u->next = users;
            users = u;
            for (int k = 0; k < (int)(rnd() % 4); k++) {
                struct session *e = NEW(session);
                e->id = rnd() % 10000;
                e->user = u;
                u->sessions[k] = e;
                e->all.next = e->all.prev = &e->all;
                struct conn *cn = NEW(conn);
                cn->fd = 3 + k;
                cn->peer = str("peer");
                cn->sess = e;
                e->conn = cn;
                cn->next = conns;
                conns = cn;
                cn->queue.cap = 4;
                cn->queue.data = T(calloc(4, 8), "void *[]");
                for (int q = 0; q < 3; q++)
                    cn->queue.data[cn->queue.n++] = buf();
            }
        }
        if (i % 4 == 0) {
            struct iter *t = NEW(iter);
            t->at = (struct item *)((char *)cache->lru.next);
            t->step = step;
            add(&iters, &t->lru);
            struct stat *st = NEW(stat);
            st->a = rnd() % 1000;
            st->b = 7;
            st->c = rnd() % 99;
            st->top = t->at;
            st->next = stats;
            stats = st;
        }
        if (i % 5 == 0) {
            struct job *j = NEW(job);
            j->next = jobs;
            jobs = j;
            if (i % 2) {
                struct arg_a *a = NEW(arg_a);
                a->item = (struct item *)cache->lru.next;
                a->user = users;
                a->n = i;
                j->arg = a;
                j->run = run_a;
            } else {
                struct arg_b *b = NEW(arg_b);
                b->doc = docs->data[0];
                b->why = str("why");
                b->c = conns;
                j->arg = b;
                j->run = run_b;
            }
        }
        if (i % 16 == 0)
            matrices[rnd() % 16] = 0;
        if (i % 10 == 0) {
            leak = 1;
            switch (rnd() % 5) {
            case 0:
                doc(2);
                break;
            case 1:
                item(0);
                break;
            case 2: {
                struct user *u = NEW(user);
                u->name = str("user");
                u->sessions[0] = NEW(session);
                u->sessions[0]->user = u;
                u->sessions[0]->id = 5;
            } break;
            case 3: {
                struct job *j = NEW(job);
                struct arg_b *b = NEW(arg_b);
                b->doc = doc(0);
                b->why = str("why");
                j->arg = b;
                j->run = run_b;
            } break;
            default: {
                struct conn *cn = NEW(conn);
                cn->peer = str("peer");
                cn->fd = 9;
                cn->queue.cap = 4;
                cn->queue.data = T(calloc(4, 8), "void *[]");
                cn->queue.data[0] = buf();
                cn->queue.n = 1;
            }
            }
            leak = 0;
        }
    }
    char wipe[4096];
    memset(wipe, 0, sizeof wipe);
    __asm__ volatile("" ::"r"(wipe) : "memory");
    __asm__ volatile("" ::"r"(&cache), "r"(&users), "r"(&conns), "r"(&jobs) : "memory");
    __asm__ volatile("" ::"r"(&iters), "r"(&stats), "r"(&docs), "r"(matrices) : "memory");
    puts("ready");
    fflush(stdout);
    pause();
    return 0;
}
