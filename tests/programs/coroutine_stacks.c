/* Stacks of suspended coroutines in mappings with guard pages, and mappings that only look like stacks.
 * Usage: coroutine_stacks KIND. Prints "lost N" and "ready", and waits. The handles of all mappings except the last are lost. Kinds:
 * context: coroutines of makecontext. The outermost function has a large array.
 * held: like context, and a table has all handles.
 * direct: like context, and the outermost function calls swapcontext itself.
 * fresh: coroutines of makecontext that never ran.
 * switched: like context, but the program's own code in assembly switches the stacks.
 * nested: like switched, and a function without call frame information calls the outermost function.
 * small: like context, without the array.
 * callbacks: list nodes with pointers to functions, up to the end of the mapping.
 * returns: records of a profiler, each with a number of frames and their return addresses.
 * traces: recorded call stacks, one directly after the other, up to the end of the mapping. */
#define _GNU_SOURCE
#include <execinfo.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define PAGE 4096
#define STACK (256 << 10)
#define LARGE (64 << 10)
#define COUNT 40
#define DEEPEST 16

struct handle {
    ucontext_t context;
    void *sp;
    char *mapping; /* with its guard page below the stack */
};

struct node {
    struct node *next;
    void (*call)(struct handle *);
};

struct handle *handle, *handles[COUNT];
char *mapping;
void *main_sp;
volatile int never;
static ucontext_t back;

static int is(const char *kind, const char *name) { return !strcmp(kind, name); }

/* Save the callee-saved registers, and continue on the other stack. call_nested has no call frame information. */
void switch_to(void **from, void *to);
void call_nested(void);
#ifdef __x86_64__
__asm__(".globl switch_to\nswitch_to:\n push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n mov %rsp, (%rdi)\n"
        " mov %rsi, %rsp\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n"
        ".globl call_nested\ncall_nested:\n sub $8, %rsp\n lea run_switched(%rip), %rax\n call *%rax\n ud2\n");
#define SAVED 6
#else
__asm__(".globl switch_to\nswitch_to:\n mov 4(%esp), %eax\n mov 8(%esp), %edx\n push %ebp\n push %ebx\n push %esi\n push %edi\n"
        " mov %esp, (%eax)\n mov %edx, %esp\n pop %edi\n pop %esi\n pop %ebx\n pop %ebp\n ret\n"
        ".globl call_nested\ncall_nested:\n sub $12, %esp\n call run_switched\n ud2\n");
#define SAVED 4
#endif

__attribute__((noinline)) void suspend(struct handle *self, char *buffer) {
    buffer[0] = 1;
    if (self->sp) switch_to(&self->sp, main_sp);
    else swapcontext(&self->context, &back);
    buffer[1] = 2;
}

void serve_small(void) {
    char buffer[16];
    suspend(handle, buffer);
    never = buffer[1];
}

void serve_large(void) {
    char buffer[LARGE];
    suspend(handle, buffer);
    never = buffer[1];
}

void serve_direct(void) {
    char buffer[LARGE];
    buffer[0] = 1;
    swapcontext(&handle->context, &back);
    never = buffer[0];
}

void run_switched(void) {
    char buffer[LARGE];
    suspend(handle, buffer);
    never = buffer[1];
    abort();
}

static char *map_stack(void) {
    char *made = mmap(NULL, PAGE + STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED || mprotect(made, PAGE, PROT_NONE)) _exit(3);
    return made;
}

static void start_coroutine(const char *kind) {
    handle = calloc(1, sizeof *handle);
    handle->mapping = map_stack();
    if (!is(kind, "switched") && !is(kind, "nested")) {
        getcontext(&handle->context);
        handle->context.uc_stack.ss_sp = handle->mapping + PAGE;
        handle->context.uc_stack.ss_size = STACK;
        makecontext(&handle->context, is(kind, "small") ? serve_small : is(kind, "direct") ? serve_direct : serve_large, 0);
        if (!is(kind, "fresh")) swapcontext(&back, &handle->context);
        return;
    }
    void **top = (void **)(handle->mapping + PAGE + STACK) - 4;
    *--top = is(kind, "nested") ? (void *)call_nested : (void *)run_switched;
    handle->sp = top - SAVED;
    switch_to(&main_sp, handle->sp);
}

static void release(struct handle *one) { never = one->sp != NULL; }

static void write_callbacks(void) {
    struct node *nodes = (struct node *)(mapping + PAGE);
    for (size_t at = 0; at < STACK / sizeof *nodes; at++) {
        nodes[at].next = at ? nodes + at - 1 : NULL;
        nodes[at].call = at % 2 ? release : (void (*)(struct handle *))serve_large;
    }
}

/* Record the call stack in each free part. The frame of this function is as large as that of a coroutine. */
__attribute__((noinline)) static void record(const char *kind) {
    char buffer[LARGE];
    buffer[0] = 1;
    void **first = (void **)(mapping + PAGE), **end = (void **)(mapping + PAGE + STACK);
    for (void **at = first; at + DEEPEST + 1 <= end;) {
        if (is(kind, "returns")) {
            *(uintptr_t *)at = (uintptr_t)backtrace(at + 1, DEEPEST);
            at += DEEPEST + 1;
        } else {
            at += backtrace(at, DEEPEST);
        }
    }
    never = buffer[0];
}

__attribute__((noinline)) static void record_more(const char *kind, int more) {
    if (more) record_more(kind, more - 1);
    else record(kind);
    never = more;
}

static __attribute__((noinline)) void clear_stack(void) {
    volatile char area[LARGE * 2];
    memset((void *)area, 0, sizeof area);
}

int main(int count, char **words) {
    if (count < 2) return 2;
    for (int at = 0; at < COUNT; at++) {
        if (is(words[1], "callbacks") || is(words[1], "returns") || is(words[1], "traces")) {
            mapping = map_stack();
            if (is(words[1], "callbacks")) write_callbacks();
            else record_more(words[1], at % 8);
        } else {
            start_coroutine(words[1]);
            if (is(words[1], "held")) handles[at] = handle;
        }
    }
    memset(&back, 0, sizeof back);
    main_sp = NULL;
    clear_stack();
    printf("lost %d\nready\n", is(words[1], "held") ? 0 : COUNT - 1);
    fflush(stdout);
    pause();
    return never;
}
