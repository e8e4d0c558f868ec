/* Memory that stays with a process though it was freed: `remedies HOW THREADS`, for what `verdict` suggests to be tried on it.
 *
 * freed: 60 MiB of blocks, of which the last stays in use. top: the first stays, and before a block of 31 MiB was freed, which raises
 * glibc's thresholds. arenas: each thread makes and frees its part of 60 MiB and keeps one block. caches: each thread frees some blocks of each
 * size and goes idle. unjoined: threads end; joined: they are joined. On SIGUSR1 the allocator's own call is made; both times the
 * anonymous resident size is printed, in kB. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCKS 30000
char *pins[1024];
static pthread_barrier_t at_once;
static volatile sig_atomic_t asked;

static void ask(int number) {
    (void)number;
    asked = 1;
}

static void make(long count, long pin) {
    char **all = malloc((size_t)count * sizeof *all);
    for (long i = 0; i < count; i++) all[i] = memset(malloc(2000), 'K', 2000);
    long kept = pin < 0 ? 0 : count - 1; /* the first, below all others, or the last, above them */
    for (long i = count; i--;)
        if (i != kept) free(all[i]);
    pins[pin < 0 ? 0 : pin] = all[kept];
    free(all);
}

struct work {
    const char *how;
    long number, threads;
};

/* What an idle thread calls. */
static void flush(void) {
    int (*mallctl)(const char *, void *, size_t *, void *, size_t) = dlsym(RTLD_DEFAULT, "mallctl");
    void (*idle)(void) = dlsym(RTLD_DEFAULT, "MallocExtension_MarkThreadIdle");
    void (*collect)(int) = dlsym(RTLD_DEFAULT, "mi_collect");
    if (mallctl) mallctl("thread.tcache.flush", NULL, NULL, NULL, 0);
    if (idle) idle();
    if (collect) collect(1);
}

static void *run(void *word) {
    struct work *work = word;
    if (!strcmp(work->how, "arenas")) make(BLOCKS / work->threads, work->number);
    for (size_t size = 24; !strcmp(work->how, "caches") && size < 30000; size += size < 1032 ? 16 : size / 8) {
        void *some[64];
        for (int i = 0; i < 64; i++) some[i] = memset(malloc(size), 'C', size);
        for (int i = 0; i < 64; i++) free(some[i]);
    }
    if (!strcmp(work->how, "caches") && getenv("FLUSH")) flush();
    if (!strcmp(work->how, "unjoined") || !strcmp(work->how, "joined")) return memset(alloca(60000), 1, 60000) ? NULL : word;
    pthread_barrier_wait(&at_once);
    for (;;) pause();
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
    void (*purge)(void) = dlsym(RTLD_DEFAULT, "__sanitizer_purge_allocator");
    int (*trim)(size_t) = dlsym(RTLD_DEFAULT, "malloc_trim");
    if (purge)
        purge();
    else if (mallctl)
        mallctl("arena.4096.purge", NULL, NULL, NULL, 0);
    else if (release)
        release();
    else if (collect)
        collect(1);
    else if (trim)
        trim(0);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    long threads = atol(argv[2]);
    static struct work works[1024];
    static pthread_t made[1024];
    signal(SIGUSR1, ask);
    if (!strcmp(argv[1], "top")) free(memset(malloc(31 << 20), 1, 31 << 20));
    if (threads) {
        pthread_barrier_init(&at_once, NULL, (unsigned)threads + 1);
        for (long i = 0; i < threads; i++) {
            works[i] = (struct work){argv[1], i, threads};
            if (pthread_create(&made[i], NULL, run, &works[i])) return 1;
        }
        for (long i = 0; i < threads && !strcmp(argv[1], "joined"); i++) pthread_join(made[i], NULL);
        if (strstr(argv[1], "joined"))
            sleep(1);
        else
            pthread_barrier_wait(&at_once);
    } else
        make(BLOCKS, strcmp(argv[1], "top") ? 0 : -1);
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        while (!asked) pause();
        asked = 0;
        long before = anonymous();
        give_back();
        printf("%ld %ld\n", before, anonymous());
        fflush(stdout);
    }
}
