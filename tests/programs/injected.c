/* Functions that are easy, hard and impossible to patch at their beginning, called through stacks that are hard to walk.
 * usage: injected [crowded | filtered | confined | inside]: prints "ready", waits for a file "go", calls each function CALLS times from THREADS
 * threads, prints "STACK CALLS" (innermost function first), "right" or "wrong" for what they returned, and "done". For a file "again" it
 * calls once more, and prints "alive". crowded: all memory within reach is mapped. filtered: seccomp allows everything;
 * confined: but memfd_create, for which it ends the process. inside: a thread
 * stands among the first bytes of `faults`. */
#define _GNU_SOURCE
#include <alloca.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))
enum { CALLS = 3000, THREADS = 3 };

int global = 7;

__asm__(".text\n"
        ".macro function name\n .globl \\name\n .type \\name, @function\n .p2align 4\n\\name:\n .cfi_startproc\n .endm\n"
        ".macro ends name\n .cfi_endproc\n .size \\name, . - \\name\n .endm\n"
        "function moved_reads\n mov global(%rip), %eax\n ret\nends moved_reads\n"
        "function moved_compares\n xor %eax, %eax\n cmpl $7, global(%rip)\n sete %al\n ret\nends moved_compares\n"
        "function moved_stores\n movl $7, global(%rip)\n mov $1, %eax\n ret\nends moved_stores\n"
        "function moved_branches\n test %edi, %edi\n je 1f\n mov $5, %eax\n ret\n1: mov $6, %eax\n ret\nends moved_branches\n"
        "function moved_jumps\n .byte 0xe9\n .long moved_reads - . - 4\nends moved_jumps\n"
        "function moved_loops\n pause\n dec %edi\n cmp $0, %edi\n jg moved_loops\n mov $1, %eax\n ret\nends moved_loops\n"
        "function moved_carries\n adc $0, %edi\n mov %edi, %eax\n ret\nends moved_carries\n"
        "function too_short\n xor %eax, %eax\n ret\nends too_short\n"
        "function jumps_back\n xor %eax, %eax\n1: inc %eax\n cmp $9, %eax\n jne 1b\n ret\nends jumps_back\n"
        "function calls_first\n push %rbx\n call moved_reads\n pop %rbx\n ret\nends calls_first\n"
        "function enters_first\n xor %eax, %eax\n syscall\n mov $39, %eax\n ret\nends enters_first\n"
        "function faults\n xor %eax, %eax\n mov (%rdi), %eax\n add $1, %eax\n ret\nends faults\n");
int moved_reads(void), moved_compares(void), moved_stores(void), moved_branches(int), moved_jumps(void), moved_loops(int), moved_carries(int);
int too_short(void), jumps_back(void), calls_first(void), enters_first(void), faults(int *);

NOINLINE void event(volatile int *n) { *n += 1; }

NOINLINE int plain(volatile int *n) {
    event(n);
    return *n;
}

/* Its stack is realigned and has a variable size: the caller's frame is found through the word to which the frame pointer points. */
NOINLINE int aligned(volatile int *n, int size) {
    _Alignas(64) volatile char room[64];
    volatile char *more = alloca((size_t)size * 32 + 16);
    room[0] = more[0] = (char)size;
    event(n);
    *n += room[0] + more[0];
    return *n;
}

static __thread volatile int handled;
NOINLINE void handle(int number) {
    event(&handled);
    handled += number;
}

/* Code without call frame information that keeps a chain of frame pointers. */
int chained(volatile int *n);
__asm__(".macro without name callee\n function \\name\n .cfi_endproc\n push %rbp\n mov %rsp, %rbp\n sub $32, %rsp\n call \\callee\n leave\n ret\n"
        " .cfi_startproc\n ends \\name\n .endm\n"
        "without chained linked\n"
        "without linked plain\n");

static volatile int wrong;
static int ours(void) {
    int bad = moved_reads() != 7;
    bad += moved_compares() != 1;
    bad += moved_stores() != 1 || global != 7;
    bad += moved_branches(0) != 6 || moved_branches(1) != 5;
    bad += moved_jumps() != 7;
    bad += moved_loops(3) != 1;
    int carried;
    __asm__ volatile("stc\n call moved_carries" : "=a"(carried) : "D"(40) : "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "cc", "memory");
    bad += carried != 41;
    return bad;
}

static void *work(void *argument) {
    volatile int n = 0;
    (void)argument;
    for (int i = 0; i < CALLS; i++) {
        plain(&n);
        aligned(&n, i % 7);
        chained(&n);
        raise(SIGUSR1);
        if (ours())
            wrong = 1;
    }
    return NULL;
}

static void crowd(void) {
    static struct {
        unsigned long low, high;
    } ranges[4096];
    int count = 0;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (count < 4096 && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx", &ranges[count].low, &ranges[count].high) == 2)
            count++;
    fclose(maps);
    unsigned long here = (unsigned long)event, low = here - (9UL << 28), high = here + (9UL << 28), at = low;
    for (int i = 0; i <= count; i++) {
        unsigned long end = i < count && ranges[i].low < high ? ranges[i].low : high;
        if (end > at)
            mmap((void *)(at & ~4095UL), end - at, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
        if (i < count && ranges[i].high > at)
            at = ranges[i].high;
    }
}

/* Two filters: one that allows everything, and one that ends the process for the system call `number`. */
static void filter(unsigned number) {
    struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_filter but[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {1, all}, second = {sizeof but / sizeof *but, but};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &second);
}

static void stays(int number) {
    (void)number;
    for (;;)
        pause();
}

static void *stands(void *argument) {
    faults(argument);
    return NULL;
}

int main(int count, char **words) {
    const char *how = count > 1 ? words[1] : "";
    pthread_t ids[THREADS];
    volatile int n = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct sigaction action = {.sa_handler = handle};
    sigaction(SIGUSR1, &action, NULL);
    if (!strcmp(how, "crowded"))
        crowd();
    if (!strcmp(how, "filtered"))
        filter(~0U);
    if (!strcmp(how, "confined"))
        filter(SYS_memfd_create);
    if (!strcmp(how, "inside")) {
        struct sigaction staying = {.sa_handler = stays};
        sigaction(SIGSEGV, &staying, NULL);
        pthread_create(&ids[0], NULL, stands, NULL);
        usleep(100000);
    }
    puts("ready");
    while (access("go", F_OK))
        usleep(10000);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&ids[i], NULL, work, NULL);
    pid_t child = fork();
    if (!child) {
        for (int i = 0; i < CALLS; i++)
            plain(&n);
        _exit(ours() || n != CALLS);
    }
    int status = -1;
    waitpid(child, &status, 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(ids[i], NULL);
    int times = THREADS * CALLS;
    printf("event;plain;work %d\nevent;aligned;work %d\nevent;plain;linked;chained;work %d\nevent;handle %d\n", times, times, times, times);
    puts(wrong || status ? "wrong" : "right");
    puts("done");
    for (;;) {
        usleep(10000);
        if (!access("again", F_OK) && !unlink("again")) {
            event(&n);
            puts(ours() ? "wrong" : "alive");
        }
    }
}
