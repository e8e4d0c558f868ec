/* A program that prints the true type of each of its blocks, as typed_truth.c does. No type follows from its variables: one is an integer
 * that is the address of a registry, and all other blocks are below the registry, most of them behind void pointers.
 *
 *   typed_hints ITEMS */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
struct ops {
    const char *name;
    void (*run)(void *);
};
struct value {
    unsigned type : 4, encoding : 4, age : 24;
    int references;
    void *data;
};
struct entry {
    char *key;
    void *content;
    struct entry *next;
};
struct table {
    const struct ops *ops;
    struct entry **buckets;
    size_t size, used;
};
struct session {
    const struct ops *ops;
    struct session *next;
    struct registry *registry;
    long number;
};
struct point {
    long x, y, z;
};
struct line {
    long from, to, width;
};
struct registry {
    struct table *values, *points;
    uintptr_t sessions;
    char *title;
    long generation;
};
uintptr_t handle;
char reserve[64];
const struct ops value_ops = {"values", free}, point_ops = {"points", free}, session_ops = {"sessions", free};
static void *told(void *block, const char *type) {
    printf("%lx reachable %s\n", (unsigned long)block, type);
    return block;
}
#define NEW(type) told(calloc(1, sizeof(type)), #type)
static char *text(const char *what, int number) {
    char *made = told(calloc(1, 32), "char");
    snprintf(made, 32, "%s-%d-abcdefghijkl", what, number);
    return made;
}
static struct table *make_table(const struct ops *ops, size_t size) {
    struct table *made = NEW(struct table);
    made->ops = ops;
    made->size = size;
    made->buckets = told(calloc(size, sizeof *made->buckets), "struct entry *[]");
    return made;
}
static void add(struct table *table, int number, void *content) {
    struct entry *made = NEW(struct entry);
    made->key = text("key", number);
    made->content = content;
    made->next = table->buckets[number % table->size];
    table->buckets[number % table->size] = made;
    table->used++;
}
static void *make_value(int number) {
    struct value *made = NEW(struct value);
    made->type = number % 3;
    made->encoding = number % 2;
    made->age = number * 7;
    made->references = 1;
    if (made->encoding) {
        struct line *line = made->data = NEW(struct line);
        line->from = number;
        line->to = number * 5;
        line->width = 3;
    } else {
        struct point *point = made->data = NEW(struct point);
        point->x = point->y = number;
        point->z = number * 11;
    }
    return made;
}
int main(int count, char **words) {
    int items = count > 1 ? atoi(words[1]) : 100;
    setvbuf(stdout, 0, _IOFBF, 1 << 16);
    struct registry *registry = NEW(struct registry);
    registry->values = make_table(&value_ops, items / 2 + 10);
    registry->points = make_table(&point_ops, items / 4 + 10);
    registry->title = text("title", 0);
    for (int at = 0; at < items; at++) {
        add(registry->values, at, make_value(at));
        struct point *point = NEW(struct point);
        point->x = at + 1;
        point->y = at * 3;
        add(registry->points, at, point);
        struct session *session = NEW(struct session);
        session->ops = &session_ops;
        session->next = (struct session *)registry->sessions;
        session->registry = registry;
        session->number = at;
        registry->sessions = (uintptr_t)session;
    }
    handle = (uintptr_t)registry;
    memcpy(reserve + 8, &handle, sizeof handle);
    registry = 0;
    char wipe[4096];
    memset(wipe, 0, sizeof wipe);
    __asm__ volatile("" ::"r"(wipe) : "memory");
    printf("%lx registry\n%lx reserve\nready\n", handle, (unsigned long)reserve);
    fflush(stdout);
    pause();
    return 0;
}
