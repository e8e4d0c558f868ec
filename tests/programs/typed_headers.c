/* A program that prints the true type of each of its blocks, as typed_truth.c does. Its function for allocation puts a header before the
 * memory that it returns: the size; with MAGIC=1 a magic number, a line and the size; with MAGIC=2 a magic number and a line. Some blocks
 * have no header.
 *
 *   typed_headers BLOCKS SEED */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef MAGIC
struct header {
    uint32_t magic, line;
#if MAGIC == 1
    size_t size;
#endif
};
#else
struct header {
    size_t size;
};
#endif

struct column {
    char *name;
    void *data;
    struct column *next;
    double *numbers;
    int kind, width;
};
struct index {
    struct index *next;
    struct table *table;
    struct column **columns;
    long n;
    unsigned flags;
};
struct table {
    struct table *next, *prev;
    struct column *first;
    struct index *indexes;
    char *name;
    long rows;
    void (*release)(struct table *);
};
struct cursor {
    struct table *table;
    struct cursor *parent;
    unsigned char page[40];
    struct index *by;
};
struct note { // the payload of columns of kind 1
    struct note *up;
    char *text;
    struct table *about;
};
struct extent { // the payload of columns of kind 2
    long first, last;
    struct extent *more;
};
struct plain { // allocated without a header
    struct plain *next;
    struct table *table;
    long id;
};

static struct table *tables;
static struct plain *plains;
static struct cursor *cursors;
static int leaked;
static long left;
static uint64_t state = 1;

static unsigned roll(unsigned n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
}

static void *take(size_t size, const char *type) {
    struct header *made = calloc(1, sizeof *made + size);
#if !defined MAGIC || MAGIC == 1
    made->size = size;
#endif
#ifdef MAGIC
    made->magic = 0x5ca1ab1e;
    made->line = 100 + roll(900);
#endif
    left--;
    printf("%lx %s %s\n", (unsigned long)made, leaked ? "leaked" : "reachable", type);
    return made + 1;
}
#define NEW(t) ((struct t *)take(sizeof(struct t), "struct " #t))

static char *text(void) {
    size_t n = 6 + roll(60);
    char *made = take(n, "char");
    memset(made, 'a' + roll(26), n - 1);
    return made;
}

static void release(struct table *one) { one->rows = 0; }

static struct table *make(void) {
    struct table *one = NEW(table);
    one->name = text();
    one->release = release;
    one->rows = roll(100000);
    int n = 1 + roll(6);
    for (int i = 0; i < n; i++) {
        struct column *c = NEW(column);
        c->next = one->first;
        one->first = c;
        c->name = text();
        c->width = 1 + roll(200);
        c->kind = roll(3);
        if (c->kind == 1) {
            struct note *up = NULL;
            for (int k = 1 + roll(3); k--;) {
                struct note *x = NEW(note);
                x->up = up;
                x->text = text();
                x->about = one;
                up = x;
            }
            c->data = up;
        } else if (c->kind == 2) {
            struct extent *more = NULL;
            for (int k = 1 + roll(4); k--;) {
                struct extent *x = NEW(extent);
                x->first = roll(1 << 20);
                x->last = x->first + roll(1 << 10);
                x->more = more;
                more = x;
            }
            c->data = more;
        }
    }
    for (int i = roll(3); i--;) {
        struct index *x = NEW(index);
        x->next = one->indexes;
        one->indexes = x;
        x->table = one;
        x->flags = roll(7);
        x->n = 2 + roll(3);
        x->columns = take(x->n * sizeof *x->columns, "struct column *[]");
        for (int k = 0; k < x->n; k++)
            x->columns[k] = one->first;
    }
    return one;
}

int main(int argc, char **argv) {
    left = argc > 1 ? atol(argv[1]) : 1000;
    state = argc > 2 ? (uint64_t)atol(argv[2]) : 1;
    while (left > 0) {
        leaked = roll(5) == 0;
        struct table *one = make();
        struct cursor *cursor = NEW(cursor);
        cursor->table = one;
        cursor->by = one->indexes;
        if (leaked)
            continue; // the cursor and its table
        one->next = tables;
        if (tables)
            tables->prev = one;
        tables = one;
        cursor->parent = cursors;
        cursors = cursor;
        if (roll(4) == 0) {
            struct plain *x = calloc(1, sizeof *x);
            printf("%lx reachable struct plain\n", (unsigned long)x);
            x->next = plains;
            x->table = one;
            x->id = roll(1 << 30);
            plains = x;
        }
    }
    puts("ready");
    fflush(stdout);
    pause();
    return 0;
}
