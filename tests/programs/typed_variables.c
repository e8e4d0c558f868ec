// A program that leaks objects with a pointer to the static table of their kind, and blocks that only resemble them. It prints the true
// type of each block. Usage: typed_variables OBJECTS SEED
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct kind { const char *name; void (*destroy)(void *); };
struct object { long references; const struct kind *kind; struct object *parent; char data[200]; };
struct other { long number; const struct other *next; long more[2]; };

static const struct kind image = {"image", free};
static const struct other table[2] = {{1, &table[1], {0, 0}}, {2, 0, {0, 0}}};
static struct object *root;

static void *print(void *block, const char *type) {
    if (block == root) printf("%lx reachable %s\n", (long)block, type);
    else printf("%lx leaked %s\n", (long)block, type);
    return block;
}

int main(int count, char **words) {
    int objects = count > 1 ? atoi(words[1]) : 0;
    root = calloc(1, sizeof *root);
    root->references = 1, root->kind = &image;
    print(root, "struct object");
    for (int i = 0; i < objects; i++) {
        struct object *one = print(calloc(1, sizeof *one), "struct object");
        one->references = 1, one->kind = &image, one->parent = root;
        long *numbers = print(calloc(27, sizeof *numbers), "long[27]"); // its second word is the address of a different variable
        numbers[0] = 1, numbers[1] = (long)&table[1], numbers[2] = (long)root;
    }
    puts("ready"), fflush(stdout);
    for (;;) pause();
}
