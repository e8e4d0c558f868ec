/* A program that prints the true type of each of its blocks, as typed_truth.c does: a list of objects of several types of one size,
 * the first ones of one type; unions of two arrays, one of which refers to text; void pointers to structs or to text; a struct
 * with a magic number that is text; and two structs of one size that differ only in what their pointers refer to.
 *
 *   typed_kinds OBJECTS SEED */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define NEW(type) ((type *)told(calloc(1, sizeof(type)), #type))
#define ARRAY(type, count) ((type *)told(calloc(count, sizeof(type)), #type "[]"))
struct object { int type, references; struct object *next; };
struct text { struct object base; char *text; size_t length; };
struct list { struct object base; struct object **items; size_t count, capacity; };
struct option { char *name, *value; struct option *next; int line; };
struct entry { unsigned long hash; char *key; struct option *value; };
struct map { struct object base; struct entry *entries; size_t capacity, used; struct object *parent; };
struct code { struct object *constants[2]; size_t length, depth; };
struct function { struct object base; struct code *code; struct object *scope; char *name; long parameters; };
struct json { int kind; union { double number; char *text; struct { struct json **values; size_t count; } array;
    struct { struct member *values; size_t count; } object; }; };
struct member { char *key; struct json *value; };
struct operations { const char *name; void (*close)(void *); };
struct file { const struct operations *operations; void *data; struct file *next; };
struct socket { int number; struct socket *peer; struct queue *queue; };
struct queue { struct message *head, **tail; size_t length; };
struct message { struct message *next; struct socket *from; };
struct credentials { char *realm; struct option *option; struct credentials *inner; long tries, until; };
struct route { struct route *next; void *data; void (*call)(void *); };
struct vault { unsigned long magic; struct vault *parent; char *label; };
static struct { struct object *objects; struct json *documents[256]; struct file *files; struct route *routes; struct vault *vaults; } all;
static unsigned long state = 1;
static int leaking;
static unsigned chance(unsigned below) {
    state = state * 6364136223846793005ul + 1442695040888963407ul;
    return (unsigned)((state >> 33) % below);
}
static void *told(void *block, const char *type) {
    printf("%lx %s %s\n", (unsigned long)block, leaking ? "leaked" : "reachable", type);
    return block;
}
static char *text(const char *word) {
    char buffer[48];
    snprintf(buffer, sizeof buffer, "%s-%u%.*s", word, chance(10000), (int)chance(20), "abcdefghijklmnopqrstuvwxyz");
    return strcpy(told(malloc(strlen(buffer) + 1), "char[]"), buffer);
}
static struct option *option(void) {
    struct option *one = NEW(struct option);
    *one = (struct option){text("name"), text("value"), NULL, (int)chance(100)};
    return one;
}
static struct object *object(unsigned kind, int depth) {
    struct object *made;
    if (kind == 0) {
        struct text *one = NEW(struct text);
        one->text = text("string");
        one->length = strlen(one->text);
        made = &one->base;
    } else if (kind == 1) {
        struct list *one = NEW(struct list);
        one->capacity = 4;
        one->items = ARRAY(struct object *, 4);
        for (one->count = 0; one->count < 3; one->count++)
            one->items[one->count] = object(depth ? chance(4) : 0, depth - 1);
        made = &one->base;
    } else if (kind == 2) {
        struct map *one = NEW(struct map);
        one->capacity = 4;
        one->entries = ARRAY(struct entry, 4);
        for (one->used = 0; one->used < 2; one->used++)
            one->entries[one->used] = (struct entry){(unsigned long)chance(1 << 30) << 20, text("key"), option()};
        made = &one->base;
    } else {
        struct function *one = NEW(struct function);
        one->code = NEW(struct code);
        one->code->constants[0] = object(0, 0);
        one->code->length = 1 + chance(20);
        one->scope = object(depth ? chance(4) : 0, depth - 1);
        one->name = text("function");
        one->parameters = chance(4);
        made = &one->base;
    }
    made->type = (int)kind;
    made->references = 1 + (int)chance(3);
    return made;
}
static struct json *json(int depth) {
    struct json *one = NEW(struct json);
    unsigned count = 2 + chance(4);
    one->kind = (int)chance(depth ? 4 : 2);
    if (one->kind == 0)
        one->number = chance(1000) / 8.0;
    else if (one->kind == 1)
        one->text = text("a text");
    else if (one->kind == 2) {
        one->array.values = ARRAY(struct json *, count);
        for (one->array.count = 0; one->array.count < count; one->array.count++)
            one->array.values[one->array.count] = json(depth - 1);
    } else {
        one->object.values = ARRAY(struct member, count);
        for (one->object.count = 0; one->object.count < count; one->object.count++)
            one->object.values[one->object.count] = (struct member){text("member"), json(depth - 1)};
    }
    return one;
}
static void close_socket(void *one) { free(one); }
static void close_path(void *one) { (void)one; }
static const struct operations sockets = {"socket", close_socket}, paths = {"path", close_path};
static struct file *file(void) {
    struct file *one = NEW(struct file);
    if (chance(2)) {
        struct socket *opened = NEW(struct socket);
        opened->number = (int)chance(1000);
        opened->queue = NEW(struct queue);
        opened->queue->tail = &opened->queue->head;
        if (chance(2)) {
            struct message *message = NEW(struct message);
            message->from = opened;
            opened->queue->head = message;
            opened->queue->tail = &message->next;
            opened->queue->length = 1;
        }
        one->operations = &sockets;
        one->data = opened;
    } else {
        one->operations = &paths;
        one->data = text("/a/path");
    }
    return one;
}
static struct credentials *credentials(int depth) {
    struct credentials *one = NEW(struct credentials);
    *one = (struct credentials){text("realm"), option(), depth && chance(2) ? credentials(depth - 1) : NULL, chance(9), 1700000000};
    return one;
}
static struct route *route(void) {
    struct route *one = NEW(struct route);
    one->data = chance(2) ? (void *)credentials(1) : (void *)object(3, 0);
    one->call = chance(2) ? close_path : close_socket;
    return one;
}
static struct vault *vault(struct vault *parent) {
    struct vault *one = NEW(struct vault);
    *one = (struct vault){0x544c554156, parent, text("vault")};
    return one;
}
static void add(unsigned number) {
    struct object *made = object(number < 8 ? 1 : chance(4), 2);
    struct file *opened = file();
    struct route *added = route();
    struct json *document = json(3);
    struct vault *locked = vault(leaking ? vault(NULL) : all.vaults);
    if (!leaking) {
        made->next = all.objects;
        all.objects = made;
        opened->next = all.files;
        all.files = opened;
        added->next = all.routes;
        all.routes = added;
        all.documents[number % 256] = document;
        all.vaults = locked;
    }
}
static __attribute__((noinline)) void clear_stack(void) {
    volatile char space[16384];
    for (size_t at = 0; at < sizeof space; at++)
        space[at] = 0;
}
int main(int argc, char **argv) {
    unsigned count = argc > 1 ? (unsigned)atoi(argv[1]) : 250;
    state = argc > 2 ? strtoul(argv[2], NULL, 0) : 1;
    for (unsigned number = 0; number < count && number < 256; number++) {
        leaking = number % 5 == 4;
        add(number);
    }
    clear_stack();
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
