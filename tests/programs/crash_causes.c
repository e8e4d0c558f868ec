/* A program that crashes in the way that its argument selects. It prints the addresses that findleaks must name to stderr. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <fenv.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

struct task { long id; long (*run)(struct task *); char name[48]; };
struct command { int code; int length; struct command *next; const char *text; long value; };
struct config { long id; long scale; struct config *parent; char *name; };

long common_factor;
int narrow_factor = -1;
static char static_buffer[64];
struct config *current;
long (*hook)(long);
void *volatile kept[16];

#define SEPARATE __attribute__((noinline, noclone))

SEPARATE static long scale_by_field(struct config *one, long value) { return value / one->scale; }
SEPARATE static long scale_by_variable(long value) { return value % common_factor; }
SEPARATE static int scale_narrow(int value) { return value / narrow_factor; }
SEPARATE static long run_task(struct task *one) { long more = one->run(one); return more + one->id; }
SEPARATE static long read_parent(struct config *one) { return one->parent->id; }
SEPARATE static size_t measure_name(struct config *one) { return strlen(one->name) + 1; }
SEPARATE static void release(void *block) { free(block); kept[15] = block; }
SEPARATE static void refuse(int number) { if (number) __builtin_trap(); }
SEPARATE static double divide(volatile double one, volatile double other) { return one / other; }
SEPARATE static long recurse(long count) {
    volatile char frame[200];
    frame[0] = (char)count;
    return count ? recurse(count - 1) + frame[0] : 0;
}
FILE *stream;
SEPARATE static int close_stream(void) { return fclose(stream) + 1; }
SEPARATE static int write_line(const char *line) { return fputs(line, stream) + 1; }
__thread struct config *local_config;
long results;
SEPARATE static void count_result(struct command *one) { results += one->value; }
/* Compilers translate this to a jump through a table. */
SEPARATE static long execute(struct command *one, int more) {
    long result = 0;
    switch (one->code) {
        case 0: result = one->length * 3; break;
        case 1: result = one->text[0] + more; count_result(one); break;
        case 2: result = one->next->value * 7 + more; break;
        case 3: count_result(one); result = one->value % 5; break;
        case 4: result = one->value << 2; results = result; break;
        case 5: result = one->value ^ 0x55; results++; break;
        case 6: result = one->next->next->value; break;
        default: result = -1;
    }
    return result + one->value;
}
SEPARATE static long double_number(long number) { return 2 * number; }
long (*const commands[8])(long) = {double_number, double_number, 0, double_number, 0, 0, double_number, 0};
SEPARATE static long dispatch(int number, long value) { return commands[number](value) + 1; }
char *mapped_words;
SEPARATE static long read_mapped(long index) { return mapped_words[index]; }
SEPARATE static long read_local(void) { return local_config->id; }
SEPARATE static long read_segment(long offset) {
    long found;
    __asm__ volatile("mov %%gs:(%1), %0" : "=r"(found) : "r"(offset));
    return found;
}
SEPARATE static char *allocate(size_t size) { char *block = malloc(size); block[size - 1] = 0; return block; }
SEPARATE static void forget(struct config **one) { *one = current->parent; }
SEPARATE static long read_changed(struct config *one) { /* the null pointer is not the argument, but replaced it */
    forget(&one);
    return one->id;
}
/* The instruction faults at addresses that are not multiples of 16. */
SEPARATE static void store_aligned(void *place) { __asm__ volatile("movaps %%xmm0, (%0)" : : "r"(place) : "memory"); }
SEPARATE static void return_elsewhere(void) { /* overwrites the return address */
    __asm__ volatile("movabs $0x4545454545454545, %rax\n\tadd $8, %rsp\n\tpush %rax\n\tret");
}

int main(int count, char **words) {
    const char *word = words[1];
    current = calloc(1, sizeof *current);
    struct task *one = calloc(1, sizeof *one);
    kept[0] = one;
    kept[1] = malloc(40);
    fprintf(stderr, "config=%p task=%p block=%p static=%p ", (void *)current, (void *)one, kept[1], (void *)static_buffer);
    if (!strcmp(word, "division")) return (int)scale_by_field(current, count);
    if (!strcmp(word, "modulo")) return (int)scale_by_variable(count);
    if (!strcmp(word, "quotient")) return scale_narrow(INT_MIN);
    if (!strcmp(word, "float")) { feenableexcept(FE_DIVBYZERO); return (int)divide(1, count - 2); }
    if (!strcmp(word, "trap")) refuse(count);
    if (!strcmp(word, "breakpoint")) __asm__ volatile("int3");
    if (!strcmp(word, "privileged")) __asm__ volatile("hlt");
    if (!strcmp(word, "raised")) raise(SIGFPE);
    if (!strcmp(word, "unaligned")) store_aligned((char *)kept[1] + 8);
    if (!strcmp(word, "truncated")) {
        char path[] = "mapped.XXXXXX";
        int file = mkstemp(path);
        if (ftruncate(file, 3 << 12)) return 1;
        volatile char *mapped = mmap(0, 3 << 12, PROT_READ, MAP_SHARED, file, 0);
        if (ftruncate(file, 100)) return 1;
        fprintf(stderr, "file=%s ", path);
        return mapped[5000];
    }
    if (!strcmp(word, "beyond")) { /* the mapping is larger than its memory */
        volatile char *shared = mmap(0, 1 << 13, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        shared = mremap((void *)shared, 1 << 13, 1 << 14, MREMAP_MAYMOVE);
        return shared[9000];
    }
    if (!strcmp(word, "unmapped")) {
        mapped_words = mmap(0, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        munmap(mapped_words, 1 << 20);
        return (int)read_mapped(5000);
    }
    if (!strcmp(word, "switched") || !strcmp(word, "switched-twice")) {
        struct command *command = calloc(1, sizeof *command);
        kept[2] = command;
        kept[3] = calloc(1, sizeof *command);
        command->code = word[8] ? 6 : 2;
        command->next = word[8] ? (void *)kept[3] : 0;
        fprintf(stderr, "command=%p next=%p", (void *)command, kept[3]);
        return (int)execute(command, count);
    }
    if (!strcmp(word, "thread-local")) return (int)read_local();
    if (!strcmp(word, "segment")) return (int)read_segment(0x28);
    if (!strcmp(word, "poisoned") || !strcmp(word, "zeroed")) { /* a freed block is overwritten; malloc takes its first word for a link */
        kept[8] = calloc(1, 200);
        kept[6] = malloc(200);
        kept[7] = malloc(200);
        fprintf(stderr, "freed=%p ", kept[7]);
        release((void *)kept[6]);
        release((void *)kept[7]);
        int zeroed = word[0] == 'z'; /* as p->next = NULL does; the first word of kept[8] is zero, too */
        *(volatile uintptr_t *)kept[7] = zeroed ? 0 : (uintptr_t)kept[7] >> 12 ^ 0x4e4f53494f504350; /* "PCPOISON" */
        kept[4] = allocate(200);
        if (zeroed) {
            *(volatile uintptr_t *)kept[4] = 1;
            abort();
        }
        kept[5] = allocate(200);
    }
    if (!strcmp(word, "counted")) { /* a reference count in a freed block, which malloc has returned since */
        kept[6] = malloc(136);
        kept[7] = malloc(136);
        release((void *)kept[6]);
        release((void *)kept[7]);
        --*(volatile int *)kept[7];
        kept[4] = allocate(136);
        kept[5] = allocate(136);
    }
    if (!strcmp(word, "interior")) release((char *)kept[1] + 16);
    if (!strcmp(word, "stack")) { /* the size before the pointer is 0, which is invalid */
        struct { _Alignas(16) long head[2]; char text[64]; } local = {{0, 0}, "text"};
        fprintf(stderr, "local=%p ", local.text);
        release(local.text);
    }
    if (!strcmp(word, "static")) release(static_buffer);
    if (!strcmp(word, "twice")) { free(kept[1]); release(kept[1]); }
    if (!strcmp(word, "marked")) { /* a zero byte past the end of a block makes glibc take it for a free block; it is freed once */
        char *block = malloc(2008);
        kept[2] = malloc(2040);
        fprintf(stderr, "marked=%p ", block);
        ((volatile char *)block)[2008] = 0;
        release(block);
    }
    if (!strcmp(word, "grown")) kept[2] = realloc((char *)kept[1] + 16, 100);
    if (!strcmp(word, "empty")) return (int)run_task(one);
    if (!strcmp(word, "tabled")) return (int)dispatch(count + 2, count);
    if (!strcmp(word, "hook")) return (int)hook(count);
    if (!strcmp(word, "freed")) { free((void *)kept[0]); return (int)run_task(one); }
    if (!strcmp(word, "reused")) { /* the freed block is allocated again, and contains the text of a request */
        free((void *)kept[0]);
        char *text = malloc(sizeof(struct task));
        memset(text, 0, sizeof(struct task));
        strcpy(text, "GET /index.html HTTP/1.1");
        kept[2] = text;
        return (int)run_task(one);
    }
    if (!strcmp(word, "closed") || !strcmp(word, "reopened")) { /* a stream is used after fclose() */
        stream = tmpfile();
        fprintf(stderr, "stream=%p ", (void *)stream);
        fclose(stream);
        if (word[0] == 'c') return close_stream();
        kept[2] = malloc(472); /* the size of the stream */
        memset((void *)kept[2], 0, 472);
        return write_line("late");
    }
    if (!strcmp(word, "onstack")) { char local[32]; one->run = (long (*)(struct task *))(void *)local; return (int)run_task(one); }
    if (!strcmp(word, "returned")) return_elsewhere();
    if (!strcmp(word, "parent")) return (int)read_parent(current);
    if (!strcmp(word, "changed")) return (int)read_changed(current);
    if (!strcmp(word, "name")) return (int)measure_name(current);
    if (!strcmp(word, "deep")) {
        struct rlimit limit;
        getrlimit(RLIMIT_STACK, &limit);
        limit.rlim_cur = 8 << 20; /* also where the caller's is unlimited */
        setrlimit(RLIMIT_STACK, &limit);
        return (int)recurse(1L << 40);
    }
    return 0;
}
