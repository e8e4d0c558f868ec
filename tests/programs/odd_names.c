/* Global variables whose names a shell or a debugger could take for something else: each holds COUNT blocks of a chain of its own.
 * Prints "name BLOCKS" a line, then "ready". */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct link {
    struct link *next;
    long filler[5];
};

#define VARIABLE(name, symbol) struct link *volatile name __asm__("\"" symbol "\"") = 0;
#define EACH(X)                                  \
    X(abi, "g_sessions[abi:cxx11]")              \
    X(apostrophe, "it's")                        \
    X(blank, "two words")                        \
    X(dollar, "$HOME")                           \
    X(glob, "all*of?it")                         \
    X(braces, "(anonymous namespace)::g_{cache}") \
    X(bang, "wait!")                             \
    X(equals, "=ls")                             \
    X(hash, "#comment")                          \
    X(tilde, "~root")                            \
    X(redirected, "a>b|c;d&e")

EACH(VARIABLE)

static struct link *chain(int count) {
    struct link *first = 0;
    while (count--) {
        struct link *made = calloc(1, sizeof *made);
        made->next = first;
        first = made;
    }
    return first;
}

int main(void) {
    int count = 100;
#define FILL(name, symbol)                  \
    name = chain(count);                    \
    printf("%d %s\n", count++, symbol);
    EACH(FILL)
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
