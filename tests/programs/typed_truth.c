/* A program that prints the true type of each of its blocks.
 *
 *   typed_truth BLOCKS SEED
 *
 * writes one line a block to standard output, "address type reachable|leaked text|data", then "ready", and waits for ever.
 * About a fifth of the blocks leak: whole structures of the same kinds as the reachable ones.
 * Kinds: lists, trees, hash tables with void pointers, intrusive lists, unions with a tag, flexible arrays, arrays of structures,
 * pointers to pointers, and two types in one size class of malloc (shape and circle, session and account). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

struct list_head { struct list_head *next, *prev; };
struct style { long color, width; struct style *parent; };
struct shape { int kind; struct style *style; };
struct circle { struct shape base; double radius; };
struct header { char *name; char *value; };
struct session { char *token; struct style *theme; long uses; };
struct account { struct account *manager; long balance; char *owner; };
struct client {
    int id;
    struct client *next;
    char *name;
    struct session *session;
    struct header *headers;
    int header_count;
    struct shape *cursor;
};
struct entry { struct entry *next; char *key; void *value; };
struct table_ops { const char *name; void (*drop)(void *); };
struct table { const struct table_ops *ops; struct entry **buckets; size_t size, used; };
struct tree_node { struct tree_node *left, *right, *parent; long key; struct payload *payload; };
struct payload { long numbers[5]; struct client *client; };
struct job { int priority; struct list_head link; struct client *client; char *command; };
struct timer { long due; long period; struct list_head link; void (*fire)(void *); struct job *job; };
struct string { size_t length; char *data; };
struct number { double value; long scale; struct number *next; long spare[3]; };
struct vector { struct value **items; size_t count, capacity; long flags[4]; };
struct value { int tag; union { struct string *string; struct number *number; struct vector *vector; long integer; } as; };
struct packet { struct packet *next; size_t count; struct client *from; struct value *values[]; };
struct message { int length; struct client *to; char text[]; };
struct point { double x, y; struct style *style; };
struct polygon { struct point *points; int count; struct polygon *next; };
struct callback { void (*function)(void *); void *argument; struct callback *next; };
struct server {
    struct client *clients;
    struct table *sessions, *accounts;
    struct tree_node *root;
    struct list_head jobs, timers;
    struct value *values[64];
    struct packet *packets;
    struct message *messages[64];
    struct polygon *polygons;
    struct callback *callbacks;
    struct shape *shapes[256];
};

static struct server server;
static __thread struct client *current;
static unsigned long blocks; static unsigned long long seed = 1; /* also long enough in 32-bit programs */

static unsigned long drawn(unsigned long below) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned long)(seed >> 33) % below;
}

static NOINLINE void *made(size_t size, const char *type, int leaked) {
    void *block = calloc(1, size);
    printf("%lx %s %s\n", (unsigned long)block, leaked ? "leaked" : "reachable", type);
    blocks++;
    return block;
}

#define NEW(type) ((struct type *)made(sizeof(struct type), "struct " #type, leaked))

static NOINLINE void *made_array(size_t size, size_t count, const char *type, int leaked) {
    char name[64];
    snprintf(name, sizeof name, "%s[%zu]", type, count);
    return made(size * count, name, leaked);
}

#define ARRAY(type, count) ((struct type *)made_array(sizeof(struct type), count, "struct " #type, leaked))

static NOINLINE char *text(const char *word, unsigned long number, int leaked) {
    char buffer[64];
    snprintf(buffer, sizeof buffer, "%s-%lu%.*s", word, number, (int)drawn(24), "abcdefghijklmnopqrstuvwxyz");
    char *found = made(strlen(buffer) + 1, "char[]", leaked);
    return strcpy(found, buffer);
}

static struct style *styles[16];

static NOINLINE struct session *new_session(int leaked) {
    struct session *one = NEW(session);
    one->token = text("token", drawn(100000), leaked);
    one->theme = styles[drawn(16)];
    one->uses = (long)drawn(1000);
    return one;
}

static NOINLINE struct account *new_account(int leaked) {
    struct account *one = NEW(account);
    one->balance = (long)drawn(100000);
    one->owner = text("owner", drawn(100000), leaked);
    if (drawn(2)) {
        one->manager = NEW(account);
        one->manager->owner = text("manager", drawn(1000), leaked);
    }
    return one;
}

static NOINLINE struct shape *new_shape(int leaked) {
    struct shape *one;
    if (drawn(2)) {
        one = NEW(shape);
    } else {
        struct circle *circle = NEW(circle);
        circle->radius = (double)drawn(100) / 3;
        one = &circle->base;
        one->kind = 1;
    }
    one->style = styles[drawn(16)];
    return one;
}

static NOINLINE struct client *new_client(int leaked) {
    struct client *one = NEW(client);
    one->id = (int)drawn(1000000);
    one->name = text("client", drawn(100000), leaked);
    one->session = new_session(leaked);
    one->header_count = 2 + (int)drawn(6);
    one->headers = ARRAY(header, (size_t)one->header_count);
    for (int i = 0; i < one->header_count; i++) {
        one->headers[i].name = text("Header", drawn(10), leaked);
        one->headers[i].value = text("value", drawn(1000), leaked);
    }
    one->cursor = new_shape(leaked);
    return one;
}

static NOINLINE struct client *any_client(void) {
    struct client *one = server.clients;
    for (unsigned long i = drawn(20); i && one->next; i--) one = one->next;
    return one;
}

static void drop_session(void *one) { free(one); }
static void drop_account(void *one) { (void)one; }
static const struct table_ops session_ops = {"sessions", drop_session}, account_ops = {"accounts", drop_account};

static NOINLINE struct table *new_table(const struct table_ops *ops, size_t size, int leaked) {
    struct table *one = NEW(table);
    one->ops = ops;
    one->size = size;
    one->buckets = made_array(sizeof(struct entry *), size, "struct entry *", leaked);
    return one;
}

static NOINLINE void insert(struct table *table, int leaked) {
    struct entry *one = NEW(entry);
    one->key = text("key", drawn(1000000), leaked);
    one->value = table->ops == &session_ops ? (void *)new_session(leaked) : (void *)new_account(leaked);
    struct entry **bucket = &table->buckets[drawn(table->size)];
    one->next = *bucket;
    *bucket = one;
    table->used++;
}

static NOINLINE struct tree_node *grow(struct tree_node *parent, int depth, int leaked) {
    if (!depth) return NULL;
    struct tree_node *one = NEW(tree_node);
    one->parent = parent;
    one->key = (long)drawn(1000);
    one->payload = NEW(payload);
    one->payload->client = any_client();
    one->payload->numbers[2] = (long)drawn(1000);
    one->left = grow(one, depth - 1, leaked);
    one->right = drawn(8) ? grow(one, depth - 1, leaked) : NULL;
    return one;
}

static void link_in(struct list_head *head, struct list_head *link) {
    link->next = head->next;
    link->prev = head;
    head->next->prev = link;
    head->next = link;
}

static void fire(void *one) { (void)one; }

static NOINLINE struct job *new_job(int leaked) {
    struct job *one = NEW(job);
    one->priority = (int)drawn(10);
    one->client = any_client();
    one->command = text("command", drawn(1000), leaked);
    one->link.next = one->link.prev = &one->link;
    return one;
}

static NOINLINE struct timer *new_timer(struct job *job, int leaked) {
    struct timer *one = NEW(timer);
    one->due = 1700000000 + (long)drawn(100000);
    one->fire = fire;
    one->job = job;
    one->link.next = one->link.prev = &one->link;
    return one;
}

static NOINLINE struct value *new_value(int depth, int leaked) {
    struct value *one = NEW(value);
    one->tag = depth ? (int)drawn(4) : 3;
    if (one->tag == 0) {
        one->as.string = NEW(string);
        one->as.string->data = text("string", drawn(10000), leaked);
        one->as.string->length = strlen(one->as.string->data);
    } else if (one->tag == 1) {
        one->as.number = NEW(number);
        one->as.number->value = 1.5 * (double)drawn(1000);
        if (drawn(3) == 0) one->as.number->next = NEW(number);
    } else if (one->tag == 2) {
        struct vector *vector = one->as.vector = NEW(vector);
        vector->count = 1 + drawn(5);
        vector->capacity = 8;
        vector->items = made_array(sizeof(struct value *), 8, "struct value *", leaked);
        for (size_t i = 0; i < vector->count; i++) vector->items[i] = new_value(depth - 1, leaked);
    } else {
        one->as.integer = (long)drawn(1000);
    }
    return one;
}

static NOINLINE struct packet *new_packet(int leaked) {
    size_t count = drawn(12);
    struct packet *one = made(sizeof *one + count * sizeof one->values[0], "struct packet", leaked);
    one->count = count;
    one->from = any_client();
    for (size_t i = 0; i < count; i++) one->values[i] = new_value(1, leaked);
    return one;
}

static NOINLINE struct message *new_message(int leaked) {
    size_t length = 5 + drawn(100);
    struct message *one = made(sizeof *one + length, "struct message", leaked);
    one->length = (int)length;
    one->to = any_client();
    memset(one->text, 'm', length - 1);
    return one;
}

static NOINLINE struct polygon *new_polygon(int leaked) {
    struct polygon *one = NEW(polygon);
    one->count = 3 + (int)drawn(9);
    one->points = ARRAY(point, (size_t)one->count);
    for (int i = 0; i < one->count; i++) {
        one->points[i] = (struct point){(double)drawn(100), 0.5 * (double)drawn(100), styles[drawn(16)]};
    }
    return one;
}

static void on_client(void *one) { (void)one; }
static void on_polygon(void *one) { free(one); }

static NOINLINE struct callback *new_callback(int leaked) {
    struct callback *one = NEW(callback);
    if (drawn(2)) {
        one->function = on_client;
        one->argument = new_client(leaked);
    } else {
        one->function = on_polygon;
        one->argument = new_polygon(leaked);
    }
    return one;
}

static NOINLINE void keep(int kind) {
    int leaked = 0;
    if (kind == 0) {
        struct client *one = new_client(leaked);
        one->next = server.clients;
        server.clients = one;
    } else if (kind == 1) {
        insert(server.sessions, leaked);
    } else if (kind == 2) {
        insert(server.accounts, leaked);
    } else if (kind == 3) {
        struct tree_node *top = grow(NULL, 5, leaked), *at = server.root;
        while (at && at->right) at = at->right;
        if (at) at->right = top, top->parent = at;
        else server.root = top;
    } else if (kind == 4) {
        struct job *one = new_job(leaked);
        link_in(&server.jobs, &one->link);
        if (drawn(2)) link_in(&server.timers, &new_timer(one, leaked)->link);
    } else if (kind == 5) {
        struct value **place = &server.values[drawn(64)];
        if (!*place || (*place)->tag != 2) *place = *place ? *place : new_value(3, leaked);
    } else if (kind == 6) {
        struct packet *one = new_packet(leaked);
        one->next = server.packets;
        server.packets = one;
    } else if (kind == 7) {
        struct message **place = &server.messages[drawn(64)];
        if (!*place) *place = new_message(leaked);
    } else if (kind == 8) {
        struct polygon *one = new_polygon(leaked);
        one->next = server.polygons;
        server.polygons = one;
    } else if (kind == 9) {
        struct callback *one = new_callback(leaked);
        one->next = server.callbacks;
        server.callbacks = one;
    } else {
        struct shape **place = &server.shapes[drawn(256)];
        if (!*place) *place = new_shape(leaked);
    }
}

static NOINLINE void lose(int kind) {
    int leaked = 1;
    if (kind == 0) {
        struct client *one = new_client(leaked);
        one->next = new_client(leaked);
    } else if (kind == 1 || kind == 2) {
        struct table *one = new_table(kind == 1 ? &session_ops : &account_ops, 16, leaked);
        for (int i = 0; i < 8; i++) insert(one, leaked);
    } else if (kind == 3) {
        grow(NULL, 4, leaked);
    } else if (kind == 4) {
        new_timer(new_job(leaked), leaked);
    } else if (kind == 5) {
        new_value(3, leaked);
    } else if (kind == 6) {
        new_packet(leaked)->next = new_packet(leaked);
    } else if (kind == 7) {
        new_message(leaked);
    } else if (kind == 8) {
        new_polygon(leaked)->next = new_polygon(leaked);
    } else if (kind == 9) {
        new_callback(leaked);
    } else {
        new_shape(leaked);
    }
}

static NOINLINE void build(unsigned long wanted) {
    int leaked = 0;
    for (int i = 0; i < 16; i++) {
        styles[i] = NEW(style);
        styles[i]->color = (long)drawn(1 << 24);
        styles[i]->parent = i ? styles[i - 1] : NULL;
    }
    server.jobs.next = server.jobs.prev = &server.jobs;
    server.timers.next = server.timers.prev = &server.timers;
    server.sessions = new_table(&session_ops, 1 + wanted / 32, leaked);
    server.accounts = new_table(&account_ops, 1 + wanted / 32, leaked);
    keep(0);
    current = new_client(leaked);
    while (blocks < wanted) {
        if (drawn(5)) keep((int)drawn(11));
        else lose((int)drawn(11));
    }
}

static NOINLINE void clear_stack(void) {
    volatile char space[16384];
    for (size_t i = 0; i < sizeof space; i++) space[i] = 0;
}

int main(int argc, char **argv) {
    unsigned long wanted = argc > 1 ? strtoul(argv[1], NULL, 10) : 20000;
    seed = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    static char buffer[1 << 16];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    build(wanted);
    clear_stack();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
