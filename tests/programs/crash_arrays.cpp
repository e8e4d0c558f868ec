// A program that accesses memory outside of an array. It prints the addresses of its arrays. Usage: crash_arrays WORD.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <vector>

#define SEPARATE __attribute__((noinline, noclone))

struct Shape { virtual ~Shape() {} long id = 1; double sides[3] = {1, 2, 3}; };
struct Order { long id; char name[32]; };
Shape *shapes;
long *numbers;
char *text, *area, *kept;
int table[100];
std::vector<Order> orders;
volatile char sink;
volatile long nothing;

SEPARATE long read_number(long *array, long index) { return array[index]; }
SEPARATE double read_side(Shape *array, unsigned index) { return array[index].sides[1]; }
SEPARATE int read_table(long index) { return table[index]; }
SEPARATE long read_order(unsigned long index) { return orders[index].id; }
SEPARATE long read_local(long index) {
    volatile int array[100];
    for (int i = 0; i < 100; i++) array[i] = i;
    return array[index];
}
SEPARATE void write_from(char *array) { for (long i = 0;; i++) array[i] = 1; }
SEPARATE long read_on(const char *at) { for (;;) sink = *at++; }
SEPARATE long read_back(const char *at) { for (;;) sink = *at--; }
SEPARATE int recurse(int depth) { volatile char large[4000]; large[0] = (char)depth; return recurse(depth + 1) + large[0]; }
static void on_signal(int) { recurse(1); }
static void overflow(void *stack, size_t size) {
    stack_t other = {};
    other.ss_sp = stack;
    other.ss_size = size;
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_ONSTACK;
    sigaltstack(&other, nullptr);
    sigaction(SIGUSR1, &action, nullptr);
    raise(SIGUSR1);
}

int main(int, char **words) {
    const char *word = words[1];
    shapes = new Shape[10];
    numbers = (long *)malloc(400);
    orders.resize(7);
    memset(numbers, 1, 400);
    // A page that cannot be accessed, 64 KiB, such a page, a block of glibc in a mapping of its own, 64 KiB, and such a page
    char *map = (char *)mmap(nullptr, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    area = map + 4096;
    mprotect(area, 64 << 10, PROT_READ | PROT_WRITE);
    text = (char *)malloc(300000);
    memset(text, 'x', 300000);
    kept = text;
    fprintf(stderr, "numbers=%p shapes=%p orders=%p text=%p area=%p table=%p\n", (void *)numbers, (void *)shapes, (void *)orders.data(), text, area, (void *)table);
    if (!strcmp(word, "index")) return (int)read_number(numbers, 50000000);
   if (!strcmp(word, "subtracted")) { long read_back_from(char *, long, long); return (int)read_back_from((char *)numbers, 400 + nothing, 1L << 30); } if (!strcmp(word, "negative")) return (int)read_number(numbers, -50000000);
    if (!strcmp(word, "objects")) return (int)read_side(shapes, 40000000);
    if (!strcmp(word, "variable")) return read_table(1L << 28);
    if (!strcmp(word, "vector")) return (int)read_order(1UL << 24);
    if (!strcmp(word, "local")) return (int)read_local(nothing - (1L << 28));
    if (!strcmp(word, "invalid")) return (int)read_number(numbers, 1L << 58);
    if (!strcmp(word, "guard")) write_from(area);
    if (!strcmp(word, "on")) return (int)read_on(area + 5);
    if (!strcmp(word, "back")) return (int)read_back(area + 5);
    if (!strcmp(word, "heap")) return (int)read_on((char *)numbers);
    if (!strcmp(word, "copy")) { memcpy(area, text, (1UL << 32) + nothing); }
    if (!strcmp(word, "unmapped")) { free(text); return kept[nothing]; }
    if (!strcmp(word, "signal")) overflow(area, 64 << 10);
    // The memory before the address, or that at one of two registers, looks like the array, but has nothing to do with the crash.
    kept = area + (32 << 10);
    if (!strcmp(word, "removed")) { munmap(kept, 4096); return (int)read_on(kept + nothing); }
    if (!strcmp(word, "protected")) { mprotect(kept, 4096, PROT_NONE); return (int)read_on(kept + nothing); }
    if (!strcmp(word, "readonly")) { mprotect(kept, 4096, PROT_READ); memset(kept + nothing, 0, 200 + nothing); }
    if (!strcmp(word, "member")) { kept = (char *)malloc(300000); fprintf(stderr, "kept=%p\n", kept); free(text); text += nothing; return (int)read_number((long *)text, 2); }
    if (!strcmp(word, "compared")) { char *one = (char *)calloc(1, 100000); kept = one; return memcmp(one, memset(area, 0, 64 << 10), 90000 + nothing); }
    if (!strcmp(word, "distance")) { long found = area + (64 << 10) - (char *)numbers; asm volatile("movzbl (%1,%0), %k0" : "+r"(found) : "r"(numbers)); return (int)found; }
    return errno;
}

__attribute__((noipa)) long read_back_from(char *bytes, long length, long back) { return bytes[length - back]; }
