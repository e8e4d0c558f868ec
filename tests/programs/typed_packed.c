/* A program that prints the true type of each of its blocks, as typed_truth.c does: red-black trees whose nodes are members, tagged unions,
 * tables of functions, structs of which only the first members are allocated, pages with their descriptors in one block, two arrays in one
 * block, and arrays that have more room than elements.
 *
 *   typed_packed COUNT SEED */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static unsigned long state = 1;
static unsigned random_number(void) {
    state = state * 6364136223846793005ul + 1442695040888963407ul;
    return (unsigned)(state >> 33);
}

static int leaking;
static void *made(size_t size, const char *type, int is_clear) {
    void *p = malloc(size);
    if (!p)
        abort();
    if (is_clear)
        memset(p, 0, size);
    printf("%lx %s %s\n", (unsigned long)p, leaking ? "leaked" : "reachable", type);
    return p;
}
#define NEW(type) ((type *)made(sizeof(type), #type, 1))

static char *text(void) {
    size_t size = 12 + random_number() % 40;
    char *p = made(size, "char", 1);
    memset(p, 'a' + random_number() % 26, size - 1);
    return p;
}

/* An intrusive tree: the node is not at the start, the parent's lowest bits are the colour. */
struct rb_node {
    unsigned long parent_colour;
    struct rb_node *left, *right;
};
struct rb_root {
    struct rb_node *top;
};
struct session {
    char *user;
    unsigned id, flags;
    struct rb_node by_id;
    struct channel *channel;
};
struct ops {
    const char *name;
    void (*open)(void *), (*close)(void *);
};
struct channel {
    const struct ops *ops;
    void *data;
    struct channel *next;
};
struct file_data {
    char *path;
    long position, length;
};
struct socket_data {
    struct session *owner;
    char *peer;
    unsigned port, family;
};

static void plain_open(void *p) { (void)p; }
static void plain_close(void *p) { (void)p; }
static const struct ops file_ops = {"file", plain_open, plain_close}, socket_ops = {"socket", plain_close, plain_open};

/* An expression of which leaves have no operands: only the first members are allocated. */
enum { LEAF = 1, WHOLE = 2 };
struct expr {
    unsigned op, flags;
    char *token;
    struct expr *left, *right;
    struct session *session;
    struct expr_list *list;
    long line, column;
};
struct expr_list {
    unsigned count, room;
    struct {
        struct expr *expr;
        char *name;
    } item[1];
};

/* A tagged union. */
struct value {
    enum { INTEGER, TEXT, EXPRESSION, LIST } tag;
    union {
        long integer;
        char *text;
        struct expr *expr;
        struct expr_list *list;
    } u;
    struct value *next;
};

/* A page and its descriptor in one block: page, then descriptor. */
#define PAGE 512
struct page {
    void *bytes;
    struct page *next, *chain;
    struct session *owner;
    unsigned number, references;
};

/* Operations, and after them registers in the same block. */
struct operation {
    unsigned code, operand;
    struct session *session;
    struct expr *expr;
};
struct cell {
    struct session *session;
    char *text;
    long number;
    struct value *value;
};
struct program {
    struct operation *operations;
    struct cell *cells;
    unsigned operation_count, cell_count;
    struct program *next;
};

static struct server {
    struct rb_root sessions;
    struct channel *channels;
    struct value *values;
    struct page *pages;
    struct program *programs;
} server;

static struct expr *expression(unsigned depth, struct session *session) {
    int is_leaf = depth == 0 || random_number() % 3 == 0;
    struct expr *e = made(is_leaf ? offsetof(struct expr, session) : sizeof(struct expr), "struct expr", 1);
    e->op = 1 + random_number() % 60;
    e->flags = is_leaf ? LEAF : WHOLE;
    e->token = text();
    if (!is_leaf) {
        e->left = expression(depth - 1, session);
        e->right = expression(depth - 1, session);
        e->session = session;
        e->line = 1 + random_number() % 1000;
    }
    return e;
}

static struct expr_list *expressions(struct session *session) {
    unsigned room = 4, count = 1 + random_number() % 4;
    struct expr_list *list = made(offsetof(struct expr_list, item) + room * sizeof list->item[0], "struct expr_list", 0);
    memset(list, 0, offsetof(struct expr_list, item) + count * sizeof list->item[0]);
    list->room = room;
    list->count = count;
    for (unsigned at = 0; at < count; at++) {
        list->item[at].expr = expression(random_number() % 3, session);
        list->item[at].name = random_number() % 2 ? text() : NULL;
    }
    return list;
}

static void insert(struct rb_root *root, struct rb_node *node, unsigned id) {
    struct rb_node **at = &root->top, *parent = NULL;
    while (*at) {
        parent = *at;
        struct session *s = (struct session *)((char *)parent - offsetof(struct session, by_id));
        at = id < s->id ? &parent->left : &parent->right;
    }
    node->parent_colour = (unsigned long)parent | (random_number() & 1);
    *at = node;
}

static struct session *session(struct rb_root *root) {
    struct session *s = NEW(struct session);
    s->user = text();
    s->id = random_number();
    insert(root, &s->by_id, s->id);
    struct channel *c = NEW(struct channel);
    if (random_number() % 2) {
        struct file_data *d = NEW(struct file_data);
        d->path = text();
        d->length = random_number();
        c->ops = &file_ops;
        c->data = d;
    } else {
        struct socket_data *d = NEW(struct socket_data);
        d->owner = s;
        d->peer = text();
        d->port = random_number() % 65536;
        c->ops = &socket_ops;
        c->data = d;
    }
    s->channel = c;
    return s;
}

static struct value *value(struct session *s) {
    struct value *v = NEW(struct value);
    v->tag = random_number() % 4;
    if (v->tag == INTEGER)
        v->u.integer = random_number();
    else if (v->tag == TEXT)
        v->u.text = text();
    else if (v->tag == EXPRESSION)
        v->u.expr = expression(2, s);
    else
        v->u.list = expressions(s);
    return v;
}

static struct page *page(struct session *s) {
    char *bytes = made(PAGE + sizeof(struct page), "struct page", 1);
    struct page *p = (struct page *)(bytes + PAGE);
    for (unsigned at = 0; at < PAGE; at += 4)
        *(unsigned *)(void *)(bytes + at) = random_number();
    p->bytes = bytes;
    p->owner = s;
    p->number = random_number() % 100000;
    p->references = 1;
    return p;
}

static struct program *program(struct session *s) {
    struct program *p = NEW(struct program);
    p->operation_count = 6;
    p->cell_count = 4;
    p->operations = made(p->operation_count * sizeof(struct operation) + p->cell_count * sizeof(struct cell), "struct operation", 1);
    p->cells = (struct cell *)(p->operations + p->operation_count);
    for (unsigned at = 0; at < p->operation_count; at++) {
        p->operations[at].code = 1 + random_number() % 100;
        p->operations[at].session = at ? s : NULL;
        p->operations[at].expr = random_number() % 4 ? NULL : expression(1, s);
    }
    for (unsigned at = 0; at < p->cell_count; at++) {
        p->cells[at].session = s;
        p->cells[at].text = random_number() % 2 ? text() : NULL;
        p->cells[at].number = random_number();
    }
    return p;
}

int main(int argc, char **argv) {
    unsigned count = argc > 1 ? (unsigned)atoi(argv[1]) : 500;
    state = argc > 2 ? strtoul(argv[2], NULL, 0) : 1;
    for (unsigned at = 0; at < count; at++) {
        leaking = at % 5 == 4;
        struct rb_root lost = {0};
        struct session *s = session(leaking ? &lost : &server.sessions);
        struct channel *c = s->channel;
        struct value *v = value(s), *w = value(s);
        struct page *g = page(s);
        struct program *p = program(s);
        v->next = w;
        if (!leaking) {
            c->next = server.channels;
            server.channels = c;
            w->next = server.values;
            server.values = v;
            g->next = server.pages;
            server.pages = g;
            p->next = server.programs;
            server.programs = p;
        }
        memset(&lost, 0, sizeof lost);
    }
    leaking = 0;
    puts("ready");
    fflush(stdout);
    pause();
}
