/* One thread that allocates all the time, while a handler of signals forks: mostly in the middle of an allocator's function. The child returns
 * from the handler as well, into that function, and goes on allocating before it ends. usage and output: as tracked.cpp; the blocks are the
 * parent's. Ends with status 3 if a child did not end well. */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <malloc.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
enum { LEAST = 5000, MOST = 400000, FORKS = 100 };

/* Addresses are stored as complements, so that the list does not hold blocks. */
struct Note {
    const char *site, *fate;
    uintptr_t hidden;
    size_t size;
};
static Note notes[2 * MOST];
static int noted, keeping;
static void *volatile kept[MOST]; /* in some rounds, one of fifty blocks is kept */
static volatile sig_atomic_t child, forks;

static void note(const char *site, const char *fate, void *block, size_t size) { notes[noted++] = {site, fate, ~(uintptr_t)block, size}; }

NOINLINE static void *by_malloc(size_t size) {
    void *volatile made = malloc(size);
    return made;
}

NOINLINE static void *by_realloc(void *block, size_t size) {
    void *volatile made = realloc(block, size);
    return made;
}

static void on_alarm(int) {
    if (child || forks == FORKS) /* in a debugger, a step may take longer than the time to the next alarm */
        return;
    pid_t made = _Fork(); /* takes no lock, because the interrupted function may hold it */
    if (made == 0)
        child = 1;
    else if (made > 0)
        forks = forks + 1;
}

NOINLINE static void ends_as_child() {
    for (int i = 0; i < 100; i++) {
        char *block = (char *)by_malloc(40);
        memset(block, i, 40);
        block = (char *)by_realloc(block, 400);
        for (int at = 0; at < 40; at++)
            if (block[at] != i)
                _exit(4);
        free(block);
    }
    _exit(0);
}

static void reap(int options) {
    int how = 0;
    while (waitpid(-1, &how, options) > 0)
        if (how)
            _exit(3);
}

NOINLINE static void one(int turn) {
    void *block = by_malloc(40);
    if (child)
        ends_as_child();
    void *larger = by_realloc(block, 104);
    if (child)
        ends_as_child();
    memset(larger, 0, malloc_usable_size(larger));
    note("by_malloc", "freed", block, 40);
    note("by_realloc", turn % 50 > 1 ? "freed" : turn % 50 ? "held" : "lost", larger, 104);
    if (turn % 50 > 1)
        free(larger);
    else if (turn % 50)
        kept[keeping++] = larger;
    if (child)
        ends_as_child();
}

/* Overwrites what earlier calls have left below the stack pointer. */
NOINLINE static void wipe() {
    volatile char room[65536];
    memset((void *)room, 0, sizeof room);
    __asm__ volatile("" : : "r"(room) : "memory"); /* keeps GCC from removing the array */
}

int main() {
    setvbuf(stdout, nullptr, _IOFBF, 1 << 16);
    puts("ready");
    fflush(stdout);
    signal(SIGALRM, on_alarm);
    struct itimerval often = {{0, 500}, {0, 500}}, never = {};
    char line[16];
    while (fgets(line, sizeof line, stdin)) {
        forks = 0;
        setitimer(ITIMER_REAL, &often, nullptr);
        for (int turn = 0; turn < LEAST || (turn < MOST && forks < FORKS); turn++) {
            one(turn);
            reap(WNOHANG);
        }
        setitimer(ITIMER_REAL, &never, nullptr);
        reap(0);
        wipe();
        if (child)
            ends_as_child();
        for (int i = 0; i < noted; i++)
            printf("%s %s %#lx %zu\n", notes[i].site, notes[i].fate, ~notes[i].hidden, notes[i].size);
        noted = 0;
        puts("done");
        fflush(stdout);
    }
}
