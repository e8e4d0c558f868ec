/* A program whose signal handler sends the signal of a fault again, or whose system call seccomp refuses. */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

struct session { long id; struct session *next; void (*close)(struct session *); };
struct session *volatile current;
volatile int divisor;

#define SEPARATE __attribute__((noinline, noclone))

SEPARATE static long read_next(struct session *one) { return one->next->id + 1; }
SEPARATE static void close_session(struct session *one) { one->close(one); current = 0; }
SEPARATE static int divide(int value) { return value / divisor; }
SEPARATE static long recurse(long count) {
    volatile char frame[200];
    frame[0] = (char)count;
    return count ? recurse(count - 1) + frame[0] : 0;
}
SEPARATE static void wait_for_signal(void) { for (;;) pause(); }

static void again_by_raise(int number) { signal(number, SIG_DFL); raise(number); }
static int has_threads; /* the kernel delivers the signal to another thread at once */
static void again_by_kill(int number) {
    signal(number, SIG_DFL);
    kill(getpid(), number);
    while (has_threads) pause();
}
static void end(int number) { (void)number; abort(); }
static void *fault_in_thread(void *one) { return (void *)read_next(one); }

static void send_other(int number) { (void)number; signal(SIGSEGV, SIG_DFL); raise(SIGSEGV); }
/* The instruction after the system call computes the address 8, but does not access it. */
static void kill_before_lea(void) {
    long result = SYS_kill;
    __asm__ volatile("syscall\n\tlea 8(%%rax), %%rbx" : "+a"(result) : "D"((long)getpid()), "S"((long)SIGSEGV) : "rbx", "rcx", "r11", "memory");
}
static void exceed_file_size(void) {
    struct rlimit limit = {32 << 20, 32 << 20}; /* of the core, too */
    setrlimit(RLIMIT_FSIZE, &limit);
    FILE *file = tmpfile();
    pwrite(fileno(file), "x", 1, 32 << 20);
}

static void handle(int number, void (*handler)(int), int flags) {
    static stack_t stack;
    stack.ss_size = 1 << 16, stack.ss_sp = malloc(stack.ss_size);
    sigaltstack(&stack, 0);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler, action.sa_flags = flags | SA_ONSTACK | SA_SIGINFO;
    sigaction(number, &action, 0);
}

static void refuse_getppid(int how) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, how),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    getppid();
}

int main(int count, char **words) {
    const char *word = count > 1 ? words[1] : "";
    struct session *one = calloc(1, sizeof *one);
    volatile long result;
    current = one;
    fprintf(stderr, "session=%p pid=%d call=%d\n", (void *)one, getpid(), (int)SYS_getppid);
    if (!strcmp(word, "raise")) handle(SIGSEGV, again_by_raise, 0), result = read_next(one);
    if (!strcmp(word, "nodefer")) handle(SIGSEGV, again_by_raise, SA_NODEFER), result = read_next(one);
    if (!strcmp(word, "kill")) handle(SIGSEGV, again_by_kill, 0), result = read_next(one);
    if (!strcmp(word, "call")) handle(SIGSEGV, again_by_raise, 0), close_session(one);
    if (!strcmp(word, "division")) handle(SIGFPE, again_by_raise, 0), divide(count);
    if (!strcmp(word, "trap")) handle(SIGILL, again_by_raise, 0), __builtin_trap();
    if (!strcmp(word, "deep")) handle(SIGSEGV, again_by_raise, 0), recurse(1 << 30);
    if (!strcmp(word, "thread")) {
        pthread_t thread;
        has_threads = 1;
        handle(SIGSEGV, again_by_kill, 0);
        pthread_create(&thread, 0, fault_in_thread, one);
        wait_for_signal();
    }
    if (!strcmp(word, "sent")) handle(SIGUSR1, again_by_raise, 0), raise(SIGSEGV);
    if (!strcmp(word, "other")) handle(SIGFPE, send_other, 0), divide(count);
    if (!strcmp(word, "sent-lea")) kill_before_lea();
    if (!strcmp(word, "file-size")) exceed_file_size();
    if (!strcmp(word, "sent-kill")) kill(getpid(), SIGSEGV), wait_for_signal();
    if (!strcmp(word, "refused")) refuse_getppid(SECCOMP_RET_TRAP);
    if (!strcmp(word, "killed")) refuse_getppid(SECCOMP_RET_KILL_PROCESS);
    if (!strcmp(word, "refused-handled")) handle(SIGSYS, end, 0), refuse_getppid(SECCOMP_RET_TRAP);
    return 0;
}
