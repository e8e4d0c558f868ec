/* A program that prints the true type of each of its blocks, as typed_truth.c does: objects that begin with the same base struct, two
 * types of one size behind a void pointer, graphs, timers whose callback selects the type of the data, and trees.
 *
 *   typed_objects OBJECTS SEED */
// data
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
struct klass {
    const char *name;
    size_t size;
    void (*free)(void *);
};
struct object {
    const struct klass *klass;
    int refs;
};
struct string {
    struct object base;
    size_t len;
    char *data;
};
struct list {
    struct object base;
    struct object **items;
    size_t n, cap;
};
struct pair {
    struct object base;
    struct object *first, *second;
};
struct number {
    struct object base;
    double v;
    long pad;
};
struct slot {
    char *key;
    struct object *value;
};
struct map {
    struct object base;
    struct slot *slots;
    size_t used, size;
};
struct edge {
    struct vertex *to;
    struct edge *next;
    float w;
};
struct vertex {
    char *name;
    struct edge *out;
    struct vertex *next;
    void *user;
};
struct prop_a {
    struct vertex *owner;
    long score, rank;
}; // 24
struct prop_b {
    char *label;
    struct vertex *peer;
    struct prop_b *more;
}; // 24
struct timer {
    struct timer *next, **pprev;
    void (*cb)(void *);
    void *data;
    long when;
};
struct ctx {
    struct timer *t;
    struct map *m;
    char name[24];
};
struct sb {
    char *buf;
    size_t len, cap;
};
struct tree {
    struct tree *kids[4];
    struct sb *text;
    unsigned long mask;
};
static const struct klass K_string = {"string", sizeof(struct string), 0}, K_list = {"list", sizeof(struct list), 0},
                          K_pair = {"pair", sizeof(struct pair), 0}, K_number = {"number", sizeof(struct number), 0},
                          K_map = {"map", sizeof(struct map), 0};
static struct map *globals;
static struct vertex *graph;
static struct timer *timers;
static struct tree *trie;
static struct list *stack;
static int leak;
static unsigned long s = 99;
static unsigned long rnd(void) {
    s = s * 6364136223846793005ul + 1442695040888963407ul;
    return s >> 33;
}
static void *told(void *p, const char *t) {
    printf("%lx %s %s\n", (unsigned long)p, leak ? "leaked" : "reachable", t);
    return p;
}
#define NEW(t) ((struct t *)told(calloc(1, sizeof(struct t)), "struct " #t))
static char *str(void) {
    size_t n = 9 + rnd() % 50;
    char *p = calloc(1, n);
    memset(p, 'a' + rnd() % 26, n - 1);
    return told(p, "char");
}
static struct object *make(int d) {
    switch (rnd() % (d > 0 ? 5 : 2)) {
    case 0: {
        struct string *o = NEW(string);
        o->base.klass = &K_string;
        o->base.refs = 1;
        o->data = str();
        o->len = strlen(o->data);
        return &o->base;
    }
    case 1: {
        struct number *o = NEW(number);
        o->base.klass = &K_number;
        o->base.refs = 2;
        o->v = rnd() / 3.0;
        return &o->base;
    }
    case 2: {
        struct pair *o = NEW(pair);
        o->base.klass = &K_pair;
        o->base.refs = 1;
        o->first = make(d - 1);
        o->second = make(d - 1);
        return &o->base;
    }
    case 3: {
        struct list *o = NEW(list);
        o->base.klass = &K_list;
        o->base.refs = 1;
        o->cap = 2 + rnd() % 6;
        o->items = told(calloc(o->cap, 8), "struct object *[]");
        while (o->n < o->cap - 1)
            o->items[o->n++] = make(d - 1);
        return &o->base;
    }
    default: {
        struct map *o = NEW(map);
        o->base.klass = &K_map;
        o->base.refs = 1;
        o->size = 4;
        o->slots = told(calloc(4, sizeof(struct slot)), "struct slot[]");
        for (int i = 0; i < 3; i++) {
            o->slots[i].key = str();
            o->slots[i].value = make(d - 1);
            o->used++;
        }
        return &o->base;
    }
    }
}
static void cb_ctx(void *p) {
    puts(((struct ctx *)p)->name);
}
static void cb_tree(void *p) {
    printf("%lu", ((struct tree *)p)->mask);
}
static struct vertex *vertex(void) {
    struct vertex *v = NEW(vertex);
    v->name = str();
    if (rnd() % 2) {
        struct prop_a *a = NEW(prop_a);
        a->owner = v;
        a->score = rnd() % 50;
        a->rank = rnd() % 9;
        v->user = a;
    } else {
        struct prop_b *b = NEW(prop_b);
        b->label = str();
        b->peer = v;
        if (rnd() % 2) {
            b->more = NEW(prop_b);
            b->more->label = str();
            b->more->peer = v;
        }
        v->user = b;
    }
    return v;
}
static struct sb *sb(void) {
    struct sb *b = NEW(sb);
    b->cap = 64;
    b->buf = told(malloc(64), "char");
    memset(b->buf, 'z', 60);
    b->buf[60] = 0;
    b->len = 60;
    return b;
}
static struct tree *tree(int d) {
    struct tree *t = NEW(tree);
    t->mask = rnd() % 15;
    if (rnd() % 3)
        t->text = sb();
    if (d)
        for (int i = 0; i < 4; i++)
            if (rnd() % 2)
                t->kids[i] = tree(d - 1);
    return t;
}
int main(int c, char **v) {
    long n = c > 1 ? atol(v[1]) : 1000;
    s += c > 2 ? atol(v[2]) : 0;
    setvbuf(stdout, 0, _IOFBF, 1 << 16);
    globals = NEW(map);
    globals->base.klass = &K_map;
    globals->size = n;
    globals->slots = told(calloc(n, sizeof(struct slot)), "struct slot[]");
    trie = NEW(tree);
    for (long i = 0; i < n; i++) {
        globals->slots[i].key = str();
        globals->slots[i].value = make(3);
        struct vertex *w = vertex();
        w->next = graph;
        graph = w;
        for (int k = 0; k < 2; k++) {
            struct edge *e = NEW(edge);
            e->to = w->next ? w->next : w;
            e->w = .5f;
            e->next = w->out;
            w->out = e;
        }
        if (i % 9 == 0) {
            struct timer *t = NEW(timer);
            t->next = timers;
            if (timers)
                timers->pprev = &t->next;
            t->pprev = &timers;
            timers = t;
            t->when = i;
            if (rnd() % 2) {
                struct ctx *x = NEW(ctx);
                x->t = t;
                x->m = globals;
                snprintf(x->name, sizeof x->name, "context-%d", (int)i);
                t->data = x;
                t->cb = cb_ctx;
            } else {
                t->data = tree(1);
                t->cb = cb_tree;
            }
        }
        if (i % 20 == 0)
            trie->kids[rnd() % 4] = trie->kids[0] ? trie->kids[0] : tree(4);
        if (i % 8 == 0) {
            leak = 1;
            switch (rnd() % 4) {
            case 0:
                make(3);
                break;
            case 1:
                vertex();
                break;
            case 2:
                tree(2);
                break;
            default: {
                struct timer *t = NEW(timer);
                struct ctx *x = NEW(ctx);
                x->t = t;
                x->m = globals;
                strcpy(x->name, "lost");
                t->data = x;
                t->cb = cb_ctx;
                t->when = i;
            }
            }
            leak = 0;
        }
    }
    char wipe[8192];
    memset(wipe, 0, sizeof wipe);
    __asm__ volatile("" ::"r"(wipe), "r"(&globals), "r"(&graph), "r"(&timers), "r"(&trie), "r"(&stack) : "memory");
    puts("ready");
    fflush(stdout);
    pause();
    return 0;
}
