/* Grows in rounds, and prints by how much.
 * usage: grows [ROUNDS]: makes this number of rounds (1), prints "ready", and waits. SIGUSR1 requests a further round, SIGUSR2 starts the
 * program anew in the same process (exec), SIGTERM ends it. A round adds NODES nodes to the list g_sessions, and loses LOST blocks of
 * 40 bytes. After each the function `grown` is called, for breakpoints, and a line is printed: "round N: NODES nodes, LOST lost". */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NODES = 4000, LOST = 3000 };

struct session {
    struct session *next;
    char text[112];
};

struct session *g_sessions;
static int rounds;

__attribute__((noinline)) void grown(int number) {
    __asm__ volatile("" ::"r"(number) : "memory");
    printf("round %d: %d nodes, %d lost\n", number, number * NODES, number * LOST);
}

__attribute__((noinline)) static void add(void) {
    for (int i = 0; i < NODES; i++) {
        struct session *made = calloc(1, sizeof *made);
        made->next = g_sessions;
        strcpy(made->text, "session");
        g_sessions = made;
    }
    for (int i = 0; i < LOST; i++) {
        volatile char *lost = malloc(40);
        strcpy((char *)lost, "GET /orders/1");
    }
}

/* Leave no address of a lost block where it would be a root. */
__attribute__((noinline)) static void wipe(void) {
    volatile char scratch[4096];
    memset((char *)scratch, 0, sizeof scratch);
}

static void go_on(void) {
    add();
    free(calloc(1, 40));
    wipe();
    grown(++rounds);
}

int main(int count, char **words) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = count > 1 ? atoi(words[1]) : 1; i > 0; i--)
        go_on();
    for (;;) {
        int number = 0;
        puts("ready");
        if (sigwait(&set, &number) || number == SIGTERM)
            return 0;
        if (number == SIGUSR2)
            execv("/proc/self/exe", words);
        go_on();
    }
}
