/* A program for the examples of all commands: a variable that holds memory, a leak, and calls of malloc(48). */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct agent {
    struct agent *next;
    char name[100];
} *g_agent;

int main(void) {
    g_agent = calloc(1, sizeof *g_agent);
    g_agent->next = calloc(1, sizeof *g_agent);
    printf("%p\n", (void *)g_agent->next);
    puts("ready");
    fflush(stdout);
    for (unsigned number = 0;; number++) {
        void *volatile block = malloc(48);
        if (number % 16)
            free(block);
        usleep(2000);
    }
}
