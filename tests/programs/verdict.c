/* Memory that is leaked, free but not returned, and held by threads that nobody joins. The arguments are the amounts:
 *
 *   verdict LOST KEPT UNJOINED [STRIDE] [LISTED]
 *
 * LOST blocks of 104 bytes are forgotten. KEPT blocks of 2,000 bytes are freed, except each STRIDE-th (0: except the last, to keep the
 * heap's end). LISTED blocks of 104 bytes are in a list that no_owner cleans. UNJOINED threads end and are never joined. On SIGUSR1, the
 * program calls the allocator's function to return memory, and prints the anonymous resident size before and after the call, in kB. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char **held; /* not static: the compiler would remove a variable that is never read */
static long pinned;
static volatile sig_atomic_t asked;

static void ask(int number) {
    (void)number;
    asked = 1;
}

static void *ends(void *word) {
    volatile char deep[10000];
    memset((void *)deep, 1, sizeof deep);
    __asm__ volatile("" : : "r"(deep) : "memory"); /* keeps GCC from removing the array */
    return word;
}

__attribute__((noinline)) static void forget(long count) {
    for (long i = 0; i < count; i++) {
        char *volatile block = malloc(104);
        memset(block, 'L', 104);
        block = NULL;
    }
}

struct session {
    struct session *next;
    char name[88];
};
struct sessions {
    struct session *first;
    long count;
} g_sessions;

static void list(long count) {
    for (long i = 0; i < count; i++) {
        struct session *made = malloc(sizeof *made);
        snprintf(made->name, sizeof made->name, "session %ld", i);
        made->next = g_sessions.first;
        g_sessions.first = made;
        g_sessions.count++;
    }
}

__attribute__((noinline)) static void keep(long count, long stride) {
    char **all = malloc((size_t)count * sizeof *all + 1);
    held = calloc((size_t)count + 1, sizeof *held);
    for (long i = 0; i < count; i++) all[i] = memset(malloc(2000), 'K', 2000);
    for (long i = 0; i < count; i++) {
        if (i == count - 1 || (stride && i % stride == 0))
            held[pinned++] = all[i];
        else
            free(all[i]);
    }
    memset(all, 0, (size_t)count * sizeof *all);
    free(all);
}

__attribute__((noinline)) static void wipe(void) {
    volatile char stack[30000];
    memset((void *)stack, 0, sizeof stack);
    __asm__ volatile("" : : "r"(stack) : "memory"); /* keeps GCC from removing the array */
}

static long anonymous(void) {
    char line[256];
    long found = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status)) sscanf(line, "RssAnon: %ld", &found);
    if (status) fclose(status);
    return found;
}

static void give_back(void) {
    int (*mallctl)(const char *, void *, size_t *, void *, size_t) = dlsym(RTLD_DEFAULT, "mallctl");
    void (*release)(void) = dlsym(RTLD_DEFAULT, "MallocExtension_ReleaseFreeMemory");
    void (*collect)(int) = dlsym(RTLD_DEFAULT, "mi_collect");
    int (*trim)(size_t) = dlsym(RTLD_DEFAULT, "malloc_trim");
    if (mallctl)
        mallctl("arena.4096.purge", NULL, NULL, NULL, 0);
    else if (release)
        release();
    else if (collect)
        collect(1);
    else if (trim)
        trim(0);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    long lost = atol(argv[1]), kept = atol(argv[2]), unjoined = atol(argv[3]);
    pthread_t made;
    signal(SIGUSR1, ask);
    setvbuf(stdout, NULL, _IONBF, 0);
    anonymous();
    if (kept) keep(kept, argc > 4 ? atol(argv[4]) : 0);
    forget(lost);
    list(argc > 5 ? atol(argv[5]) : 0);
    for (long i = 0; i < unjoined; i++)
        if (pthread_create(&made, NULL, ends, NULL)) return 1;
    made = 0;
    wipe();
    usleep(200000);
    printf("pinned %ld\nready\n", pinned);
    for (;;) {
        while (!asked) pause();
        asked = 0;
        long before = anonymous();
        give_back();
        printf("%ld %ld\n", before, anonymous());
    }
}
