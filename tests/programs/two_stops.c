/* Adds NODES nodes to a list between two calls of stop(), for a debugger's breakpoint. */
#include <stdlib.h>

enum { NODES = 30000 };

struct node {
    struct node *next;
    long payload[4];
};

struct node *g_list;

__attribute__((noinline)) void stop(void) { __asm__ volatile("" ::: "memory"); }

int main(void)
{
    stop();
    for (int i = 0; i < NODES; i++) {
        struct node *made = calloc(1, sizeof *made);
        made->next = g_list;
        g_list = made;
    }
    stop();
    return 0;
}
