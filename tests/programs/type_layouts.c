/* Types of C, and what the compiler knows of them: each line of the output is one fact.
 *     size TYPE BYTES                    member TYPE MEMBER OFFSET BYTES
 *     variable NAME ADDRESS BYTES        thread NAME OFFSET (from thread_count)
 *     function NAME ADDRESS
 * with tabs between the words. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    int x;
    double y;
} point;
typedef struct {
    int x;
    double y;
} vector; /* the same members, another type */
struct opaque;
enum color { RED, GREEN = 300 };
typedef int (*handler)(struct opaque *, point);
union value {
    long number;
    double real;
    char text[24];
};
struct node {
    struct node *next, **back;
    const char *const name;
    union {
        long key;
        struct {
            short low, high;
        };
    };
    unsigned flag : 3, level : 7;
    unsigned long long wide : 40;
    union value value;
    handler handlers[4];
    point grid[2][3];
    enum color color;
    _Bool ready;
    struct node *children[];
};
struct outer {
    char head;
    struct inner {
        short a;
        struct node *of;
    } inner[3];
    volatile struct outer *restrict parent;
};
typedef struct outer outer_type;

struct node *first;
static point origin = {1, 2};
vector velocity;
struct opaque *handle;
outer_type *table[7];
static union value values[2];
_Thread_local long thread_count;
_Thread_local struct node *thread_node;

struct node *make_node(int children) {
    static struct outer made;
    struct node *node = calloc(1, sizeof *node + (size_t)children * sizeof(struct node *));
    made.inner[1].of = node;
    made.parent = table[0];
    return node;
}

union value *make_value(void) { return &values[1]; }

#define SIZE(type, name) printf("size\t%s\t%zu\n", name, sizeof(type))
#define MEMBER(type, member) printf("member\t%s\t%s\t%zu\t%zu\n", #type, #member, offsetof(struct type, member), sizeof(((struct type *)0)->member))
#define VARIABLE(name) printf("variable\t%s\t%#zx\t%zu\n", #name, (size_t)&name, sizeof name)

int main(int argc, char **argv) {
    first = make_node(argc);
    origin.x = argc;
    velocity.x = argv[0][0];
    table[0] = NULL;
    handle = NULL;
    thread_count++;
    thread_node = first;
    make_value()->number = 1;
    SIZE(point, "point"), SIZE(vector, "vector"), SIZE(enum color, "color"), SIZE(union value, "value");
    SIZE(struct node, "node"), SIZE(struct outer, "outer"), SIZE(struct inner, "inner");
    MEMBER(node, next), MEMBER(node, back), MEMBER(node, name), MEMBER(node, key), MEMBER(node, low), MEMBER(node, high), MEMBER(node, value);
    MEMBER(node, handlers), MEMBER(node, grid), MEMBER(node, color), MEMBER(node, ready);
    MEMBER(outer, head), MEMBER(outer, inner), MEMBER(outer, parent), MEMBER(inner, a), MEMBER(inner, of);
    VARIABLE(first), VARIABLE(origin), VARIABLE(velocity), VARIABLE(handle), VARIABLE(table), VARIABLE(values);
    printf("thread\tthread_node\t%zd\n", (char *)&thread_node - (char *)&thread_count);
    printf("function\tmake_node\t%#zx\nfunction\tmake_value\t%#zx\n", (size_t)&make_node, (size_t)&make_value);
    return 0;
}
