/* Anonymous mappings that are lost or in use. Usage: mapped KIND COUNT. Prints "lost N" and "ready", and waits. Kinds:
 * coroutines, switched: suspended coroutines on mapped stacks (by makecontext, or by switch_to); every second handle is lost.
 * malloced: suspended coroutines whose stacks are blocks of malloc; every second handle is lost.
 * numbered: chunks of an allocator; a table has their page numbers, not their addresses.
 * pooled: slots of one reservation, to which programs refer by index.
 * generated: data, to which generated code in the same mapping refers by relative addresses; a table refers to the code.
 * signals: alternate signal stacks, whose addresses only the kernel has; each one replaces the previous one.
 * ends: stacks; a table has the address of the upper end of each stack.
 * cloned: a thread without libc, on a mapped stack.
 * cycle: lost mappings; each mapping and a lost block of malloc refer to each other.
 * owned: lost mappings, to which only lost blocks of malloc refer.
 * arenas: mappings in which each word contains its own address; a block of malloc refers to every second mapping, the others are lost.
 * crossing: like arenas, but each word contains an address in the mapping before the previous one.
 * chained: mappings to which handles refer. Tagged pointers in a table, and in the mappings of the first handles, refer to the handles.
 * adjacent: the kernel merges the mappings; every second handle {start, size} is lost.
 * adjacent_ends: the kernel merges the mappings; the handles are {end, size}, and none is lost.
 * adjacent_headers: the kernel merges the mappings; each one begins with its size, and every second one is lost.
 * adjacent_chunks: the kernel merges the mappings, which an allocator divides into chunks. Each begins with its size. The program has the
 *   addresses of the lowest chunk and of every second one; the others are free, and the allocator finds them by following the sizes.
 * adjacent_slots: parts of one mapping; a table refers to every second part. The program finds the unused parts by an index.
 * reservations: the start of each reservation is accessible, and no word refers to any of them.
 * reserved_chain: the start of each reservation is accessible, and contains the address of the next one's inaccessible part, or of its end.
 * huge: mappings with MAP_HUGETLB; a table refers to every second one, the others are lost.
 * large: lost mappings; the main thread also has large thread-local variables, to which nothing refers. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define PAGE 4096
#define PART (64 << 10)
#define HUGE (2 << 20)

struct handle {
    ucontext_t context;
    void *sp; /* saved by switch_to */
    char *stack;
};

struct handle *handles[1000]; /* not static: the compiler would remove a variable that is only written */
void *table[1000];
uint32_t numbers[1000];
char *pool, *reserved;
void ***arenas, **last_made[2];
struct area { char *start; size_t size; } *areas[1000];
static char *next_area; /* addresses are used from the highest to the lowest, as the kernel does */
static ucontext_t back;
static void *main_sp;
static _Thread_local char variables[1 << 20];

/* A mapping with a page without access below it, as coroutines have. The kernel does not merge it with others. */
static char *map_apart(size_t size) {
    char *made = mmap(NULL, size + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED || mprotect(made + PAGE, size, PROT_READ | PROT_WRITE)) _exit(3);
    memset(made + PAGE, 0, size);
    made[PAGE] = 1;
    return made + PAGE;
}

/* A mapping directly below the previous one. */
static char *map_adjacent(size_t size) {
    if (!next_area) next_area = (char *)mmap(NULL, 1L << 28, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + (1L << 28) - PAGE;
    next_area -= size;
    char *made = mmap(next_area, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (made == MAP_FAILED) _exit(3);
    memset(made, 1, size);
    return made;
}

__attribute__((noinline)) static void wait_for_request(struct handle *self) {
    char *volatile request = malloc(100);
    strcpy(request, "request of a coroutine");
    swapcontext(&self->context, &back);
    request[0] = 0;
}

static void serve(unsigned low, unsigned high) {
    wait_for_request((struct handle *)((uintptr_t)high << 32 | low));
}

/* Save the callee-saved registers, and continue on the other stack. */
void switch_to(void **from, void *to);
__asm__(".globl switch_to\nswitch_to:\n push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n mov %rsp, (%rdi)\n"
        " mov %rsi, %rsp\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");

static struct handle *starting;

__attribute__((noinline)) static void run_switched(void) {
    struct handle *self = starting;
    char *volatile request = malloc(100);
    strcpy(request, "request of a coroutine");
    switch_to(&self->sp, main_sp);
    request[0] = 0;
    abort();
}

static struct handle *start_coroutine(int switched, int malloced) {
    struct handle *made = calloc(1, sizeof *made);
    made->stack = malloced ? calloc(1, PART) : map_apart(PART);
    if (switched) {
        void **top = (void **)(made->stack + PART) - 2;
        *--top = (void *)run_switched;
        made->sp = top - 6;
        starting = made;
        switch_to(&main_sp, made->sp);
        starting = NULL;
        main_sp = NULL;
    } else {
        getcontext(&made->context);
        made->context.uc_stack.ss_sp = made->stack;
        made->context.uc_stack.ss_size = PART;
        makecontext(&made->context, (void (*)(void))serve, 2, (unsigned)(uintptr_t)made, (unsigned)((uintptr_t)made >> 32));
        swapcontext(&back, &made->context);
        memset(&back, 0, sizeof back);
    }
    return made;
}

static int wait_without_libc(void *request) {
    char *volatile own = request;
    while (!own[0]) pause();
    return 0;
}

static int has_coroutines(const char *kind) {
    return !strcmp(kind, "coroutines") || !strcmp(kind, "switched") || !strcmp(kind, "malloced");
}

static void use(const char *kind, int number) {
    if (has_coroutines(kind)) {
        handles[number] = start_coroutine(kind[0] == 's', kind[0] == 'm');
        if (number % 2) handles[number] = NULL;
    } else if (!strcmp(kind, "numbered")) {
        numbers[number] = (uint32_t)((uintptr_t)map_apart(PART) / PAGE);
    } else if (!strcmp(kind, "pooled")) {
        if (!pool) pool = mmap(NULL, 1L << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mprotect(pool + number * (4L << 20) + (1 << 20), PART, PROT_READ | PROT_WRITE)) _exit(3);
        memset(pool + number * (4L << 20) + (1 << 20), 1, PART);
    } else if (!strcmp(kind, "generated")) {
        char *made = map_apart(PART + PAGE);
        made[PART] = (char)0xc3;
        if (mprotect(made + PART, PAGE, PROT_READ | PROT_EXEC)) _exit(3);
        table[number] = made + PART;
    } else if (!strcmp(kind, "signals")) {
        stack_t stack = {.ss_sp = map_apart(PART), .ss_size = PART};
        if (sigaltstack(&stack, NULL)) _exit(3);
    } else if (!strcmp(kind, "ends")) {
        table[number] = map_apart(PART) + PART;
    } else if (!strcmp(kind, "cloned")) {
        char *stack = map_apart(PART) + PART;
        if (clone(wait_without_libc, stack, CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM, calloc(1, 100)) < 0)
            _exit(3);
    } else if (!strcmp(kind, "cycle")) {
        void **block = malloc(200), **mapping = (void **)map_apart(PART);
        block[0] = mapping;
        mapping[1] = block;
    } else if (!strcmp(kind, "owned")) {
        struct handle *made = calloc(1, sizeof *made);
        made->stack = map_apart(PART);
    } else if (!strcmp(kind, "chained")) {
        struct handle *first = calloc(1, sizeof *first);
        void **second = calloc(1, 200), **mapping = (void **)(first->stack = map_apart(PART));
        second[0] = map_apart(PART);
        table[number] = (void *)((uintptr_t)first | (uintptr_t)(number + 1) << 48);
        mapping[1] = (void *)((uintptr_t)second | (uintptr_t)(number + 1) << 48);
    } else if (!strcmp(kind, "arenas") || !strcmp(kind, "crossing")) {
        if (!arenas) arenas = calloc(1000, sizeof *arenas);
        void **made = (void **)map_apart(PART), **other = made;
        if (kind[0] == 'c' && number > 1) other = last_made[number % 2];
        last_made[number % 2] = made;
        for (size_t i = 0; i < PART / sizeof *made; i++) made[i] = other + i;
        arenas[number] = number % 2 ? NULL : made;
    } else if (!strcmp(kind, "adjacent") || !strcmp(kind, "adjacent_ends")) {
        areas[number] = malloc(sizeof **areas);
        areas[number]->start = map_adjacent(PART) + (kind[8] ? PART : 0);
        areas[number]->size = PART;
        if (number % 2 && !kind[8]) areas[number] = NULL;
    } else if (!strcmp(kind, "adjacent_headers")) {
        size_t *made = (size_t *)map_adjacent(PART);
        made[0] = (size_t)number;
        made[1] = PART;
        table[number] = number % 2 ? NULL : made;
    } else if (!strcmp(kind, "adjacent_chunks")) {
        size_t *made = (size_t *)map_adjacent(PART);
        made[0] = PART;
        made[1] = number % 2;
        table[number] = number % 2 ? NULL : made;
        pool = (char *)made;
    } else if (!strcmp(kind, "huge")) {
        char *wanted = (char *)0x200000000000 + 2L * HUGE * number; /* not beside the previous one */
        char *made = mmap(wanted, HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
        if (made == MAP_FAILED) _exit(3);
        memset(made, 1, HUGE);
        table[number] = number % 2 ? NULL : made;
    } else if (!strcmp(kind, "adjacent_slots")) {
        if (!pool) pool = map_apart(1000 * PART);
        if (number % 2 == 0) {
            areas[number] = malloc(sizeof **areas);
            areas[number]->start = pool + number * PART;
            areas[number]->size = PART;
        }
    } else if (!strcmp(kind, "reservations")) {
        char *made = mmap(NULL, 16L << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mprotect(made, PART, PROT_READ | PROT_WRITE)) _exit(3);
        memset(made, 1, PART);
    } else if (!strcmp(kind, "reserved_chain")) {
        /* One page is unmapped, so that the kernel does not merge this mapping with the previous one. */
        char *made = mmap(NULL, (16L << 20) + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (munmap(made + (16L << 20), PAGE) || mprotect(made, PART, PROT_READ | PROT_WRITE)) _exit(3);
        *(char **)made = reserved;
        reserved = made + (number % 2 ? 16L << 20 : 8L << 20);
    } else {
        map_apart(4 * PART);
    }
}

static __attribute__((noinline)) void clear_stack(void) {
    volatile char area[65536];
    memset((void *)area, 0, sizeof area);
}

int main(int count, char **words) {
    if (count < 3) return 2;
    int number = atoi(words[2]), half = has_coroutines(words[1]) || !strcmp(words[1], "arenas") || !strcmp(words[1], "crossing") || !strcmp(words[1], "adjacent") || !strcmp(words[1], "adjacent_headers") || !strcmp(words[1], "huge");
    int lost = half ? number / 2 : !strcmp(words[1], "cycle") || !strcmp(words[1], "large") || !strcmp(words[1], "owned") || !strcmp(words[1], "reservations") ? number : 0;
    for (int i = 0; i < number; i++) use(words[1], i);
    variables[0] = 1;
    if (next_area) munmap(next_area - PAGE, PAGE); /* so that the next mapping is elsewhere */
    next_area = NULL;
    last_made[0] = last_made[1] = NULL;
    clear_stack();
    printf("lost %d\nready\n", lost);
    fflush(stdout);
    pause();
    return variables[1];
}
