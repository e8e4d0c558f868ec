// A program that prints the true type of each of its structs: conditions, each of which has a pointer to a condition or a number in a
// union. The union of some conditions without a child contains the stale address of a step. The members of a step look like those of a
// condition.
//
//   typed_choices CONDITIONS SEED
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { NUMBER, NOT, STEPS = 8, MOST = 400 };

struct cond {
    uint64_t kind;
    union {
        struct cond *child;
        uint64_t number;
    } u;
    char *name;
    uint64_t used[2];
};

struct step {
    uint64_t op;
    union {
        struct step *next;
        uint64_t left;
    } u;
    char *label;
    uint64_t spent[2];
};

struct cond *conditions[MOST]; // not static: nothing reads it
struct step *steps[STEPS];

static char *make_text(int number) {
    char *made = malloc(24);
    snprintf(made, 24, "condition number %d", number);
    return made;
}

static void *say(void *block, const char *type) {
    printf("%lx b %s\n", (unsigned long)block, type);
    return block;
}

static struct cond *make_cond(int depth, int number) {
    struct cond *made = say(calloc(1, sizeof *made), "struct cond");
    made->kind = depth ? NOT : NUMBER;
    made->name = make_text(number);
    made->used[0] = 1 + number % 9;
    if (depth)
        made->u.child = make_cond(depth - 1, number);
    else
        made->u.number = number;
    return made;
}

int main(int count, char **words) {
    int most = count > 1 ? atoi(words[1]) : 40;
    for (int i = 0; i < STEPS; i++) {
        steps[i] = say(calloc(1, sizeof *steps[i]), "struct step");
        steps[i]->op = NUMBER;
        steps[i]->u.left = 1 + i;
        steps[i]->label = make_text(i);
        steps[i]->spent[0] = 1 + i;
    }
    for (int i = 0; i < most && i < MOST; i++)
        conditions[i] = make_cond(i % 4, i);
    for (int i = 0; i < most && i < MOST; i += 8)
        conditions[i]->u.child = (struct cond *)steps[i / 8 % STEPS]; // the address of a step, from an earlier use of the block
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
