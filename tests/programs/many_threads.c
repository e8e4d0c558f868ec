// Thousands of threads on small stacks, each with a block of its own: held by a callee-saved register alone, held by its stack
// alone, or lost. Prints "HOW ADDRESS" of each, HOW being register, stack or lost.
// usage: many_threads COUNT
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define KEY UINTPTR_MAX  // XOR with this value hides an address
#define STACK (64 << 10)

static uintptr_t *hidden;
static sem_t waiting;
static int never[2];

__attribute__((noinline)) static uintptr_t allocate(void) {
    char *block = malloc(200);
    if (!block)
        abort();
    block[0] = 'b';
    return (uintptr_t)block ^ KEY;
}

// read(never[0]) with the block's address in a register that the call keeps, and reads after it.
__attribute__((noinline)) static int in_register(uintptr_t mine) {
    char byte;
    long got;
#if defined(__x86_64__)
    __asm__ volatile(
        "xorq %4, %%rbx\n\tsyscall\n\tmovb (%%rbx), %%dl\n\txorq %4, %%rbx"
        : "=a"(got), "+b"(mine)
        : "0"(0), "D"(never[0]), "r"(KEY), "S"(&byte), "d"(1)
        : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register uintptr_t kept __asm__("x19") = mine;
    register long x0 __asm__("x0") = never[0];
    register char *x1 __asm__("x1") = &byte;
    register long x2 __asm__("x2") = 1;
    register long x8 __asm__("x8") = 63;
    __asm__ volatile("eor x19, x19, %5\n\tsvc 0\n\tldrb w2, [x19]\n\teor x19, x19, %5"
                     : "+r"(x0), "+r"(kept), "+r"(x2)
                     : "r"(x1), "r"(x8), "r"(KEY)
                     : "memory");
    got = x0;
#else
#error "no system call is written here for this processor"
#endif
    return (int)got;
}

__attribute__((noinline)) static int on_stack(uintptr_t mine) {
    char *volatile held = (char *)(mine ^ KEY);
    char byte;
    int got = (int)read(never[0], &byte, 1);
    return got + held[0];
}

__attribute__((noinline)) static int with_nothing(void) {
    char byte;
    return (int)read(never[0], &byte, 1);
}

static void *run(void *argument) {
    uintptr_t index = (uintptr_t)argument;
    uintptr_t mine = hidden[index] = allocate();
    sem_post(&waiting);
    int got = index % 4 == 0 ? with_nothing() : index % 4 == 1 ? on_stack(mine) : in_register(mine);
    return (void *)(uintptr_t)got;
}

int main(int count, char **words) {
    static const char *const how[] = {"lost", "stack", "register", "register"};
    uintptr_t threads = count > 1 ? strtoul(words[1], NULL, 10) : 100;
    pthread_attr_t small;
    hidden = calloc(threads, sizeof *hidden);
    if (!hidden || pipe(never) || sem_init(&waiting, 0, 0) || pthread_attr_init(&small) || pthread_attr_setstacksize(&small, STACK))
        return 1;
    for (uintptr_t index = 0; index < threads; index++) {
        pthread_t thread;
        if (pthread_create(&thread, &small, run, (void *)index))
            return 2;
    }
    for (uintptr_t index = 0; index < threads; index++)
        while (sem_wait(&waiting))
            ;
    for (uintptr_t index = 0; index < threads; index++)
        printf("%s %#lx\n", how[index % 4], (unsigned long)(hidden[index] ^ KEY));
    puts("ready");
    fflush(stdout);
    return with_nothing();
}
