/* A program under AddressSanitizer that prints each of its blocks as the runtime itself knows it (__asan_get_alloc_stack, …): a line
 *
 *   block ADDRESS SIZE STATE FUNCTION FRAME,… FRAME,…
 *
 * with the state (used, lost, freed), the function that allocated it, and the stacks that allocated and freed it, innermost frame first,
 * as the runtime returns them (addresses of the calls); all numbers hexadecimal. Then what LeakSanitizer says, on standard error, and
 * "ready". */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))
#define MOST 20000

/* Weak: the runtime may be preloaded. */
__attribute__((weak)) size_t __asan_get_alloc_stack(void *address, void **trace, size_t size, int *thread);
__attribute__((weak)) size_t __asan_get_free_stack(void *address, void **trace, size_t size, int *thread);
__attribute__((weak)) int __lsan_do_recoverable_leak_check(void);

/* Addresses in the list are complemented, so that the list refers to no block. */
struct noted {
    unsigned long hidden, size;
    const char *state, *function;
};
static struct noted noted[MOST];
static unsigned count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
void *kept[MOST];

static NOINLINE void note(void *block, size_t size, const char *state, const char *function) {
    pthread_mutex_lock(&lock);
    noted[count] = (struct noted){~(unsigned long)block, size ? size : 1, state, function};
    if (state[0] == 'u') kept[count] = block;
    count++;
    pthread_mutex_unlock(&lock);
    if (state[0] == 'f') free(block);
}

static NOINLINE void by_malloc(size_t size, const char *state) { note(malloc(size), size, state, "by_malloc"); }
static NOINLINE void by_calloc(size_t size, const char *state) { note(calloc(1, size), size, state, "by_calloc"); }
static NOINLINE void by_realloc(size_t size, const char *state) { note(realloc(malloc(8), size), size, state, "by_realloc"); }
static NOINLINE void by_strdup(size_t size, const char *state) {
    (void)size;
    note(strdup("a string"), 9, state, "by_strdup");
}
static NOINLINE void by_align(size_t size, const char *state) {
    void *block;
    if (posix_memalign(&block, 64u << size % 5, size)) abort();
    note(block, size, state, "by_align");
}

static NOINLINE void deeper(unsigned levels, size_t size, const char *state) {
    if (levels) {
        deeper(levels - 1, size, state);
    } else {
        void (*const ways[])(size_t, const char *) = {by_malloc, by_calloc, by_realloc, by_strdup, by_align};
        ways[size % 5](size, state);
    }
    __asm__ volatile("" ::: "memory");
}

static NOINLINE void *work(void *scale) {
    const char *const states[] = {"used", "lost", "freed"};
    for (size_t i = 0; i < (size_t)scale; i++) deeper(i % 4, i % 37 == 0 ? 100000 + 1000 * i % 300000 : i * i % 4099, states[i % 3]);
    for (size_t i = 1; i <= 3; i++) deeper(1, (i << 20) + 5, states[i - 1]);
    return NULL;
}

static void frames(void *block, size_t (*which)(void *, void **, size_t, int *)) {
    void *trace[256];
    int thread = -1;
    size_t depth = which(block, trace, 256, &thread);
    putchar(' ');
    for (size_t i = 0; i < depth; i++) printf("%s%lx", i ? "," : "", (unsigned long)trace[i]);
    if (!depth) putchar('-');
}

int main(int argc, char **argv) {
    pthread_t thread;
    static char output[1 << 16];
    setvbuf(stdout, output, _IOFBF, sizeof output);
    if (argc < 2 || !__asan_get_alloc_stack) return 1;
    for (int i = 0; i < 2; i++) /* not in the main thread, whose stack and registers may later still contain addresses of blocks */
        if (pthread_create(&thread, NULL, work, (void *)strtoul(argv[1], NULL, 10)) || pthread_join(thread, NULL)) return 1;
    __lsan_do_recoverable_leak_check();
    for (unsigned i = 0; i < count; i++) {
        void *block = (void *)~noted[i].hidden;
        printf("block %lx %lx %s %s", (unsigned long)block, noted[i].size, noted[i].state, noted[i].function);
        frames(block, __asan_get_alloc_stack);
        frames(block, __asan_get_free_stack);
        putchar('\n');
    }
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
