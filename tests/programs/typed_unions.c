/* A union of a pointer to a type that is declared but not defined, and of a pointer to any object, as in boost::function. Prints a line for
 * each block: address, whether it is held, type.
 *
 *   typed_unions COUNT SEED */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct declared;
union slot {
    struct {
        const struct declared *type;
        char is_const;
    } typed;
    void *object;
};
struct holder {
    union slot slot;
    struct holder *next;
    long more[3];
};
struct object {
    long numbers[9];
};

struct holder *volatile holders;

int main(int argc, char **argv) {
    for (int i = argc > 1 ? atoi(argv[1]) : 0; i--;) {
        struct holder *holder = calloc(1, sizeof *holder);
        struct object *object = calloc(1, sizeof *object);
        holder->slot.object = object;
        holder->next = holders;
        holders = holder;
        printf("%p held struct holder\n%p held struct object\n", (void *)holder, (void *)object);
    }
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
