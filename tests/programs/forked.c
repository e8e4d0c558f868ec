/* Threads that detect any disturbance while the process is cloned.
 * usage: forked [busy | kept | storm | forbids NUMBER | limited | namespace | dispatched]
 * Prints the address of each counter, ("kept": of mappings, with their sizes), "signals" last. `bad`: what went wrong, by thread;
 * `foreign`: SIGCHLDs of children that it did not make; `rounds`: how often each thread went round.
 * storm: one thread, to which a signal comes every 200 us. forbids: seccomp ends it for this system call. limited: another user's, without
 * a process to spare. namespace: its next child starts a pid namespace. dispatched: its system calls may be handed to itself. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { REGISTERS, MALLOC, FORK, SLEEP, READ, FUTEX, EPOLL, SUSPEND, THREADS, PAGE = 4096 };
static volatile long ticks, foreign, signals, bad[THREADS], rounds[THREADS];

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void on_child(int number, siginfo_t *about, void *context) {
    foreign += about->si_status != 7;
    (void)number, (void)context;
}
static void on_alarm(int number) { signals += number == SIGALRM; }

/* Holds values in every general register, the flags, the red zone, an SSE register and its control register while it waits in user mode. */
static void *keeps_registers(void *unused) {
    __builtin_ia32_ldmxcsr(0x5f80); /* selects rounding up */
    for (;; rounds[REGISTERS]++) {
        unsigned long wrong;
        __asm__ volatile("push %%rbp\n sub $256, %%rsp\n movq $77, -8(%%rsp)\n movq $78, -128(%%rsp)\n"
                         "mov $1, %%rax\n mov $2, %%rbx\n mov $4, %%rdx\n mov $5, %%rsi\n mov $6, %%rdi\n mov $7, %%rbp\n mov $8, %%r8\n"
                         "mov $9, %%r9\n mov $10, %%r10\n mov $11, %%r11\n mov $12, %%r12\n mov $13, %%r13\n mov $14, %%r14\n"
                         "movq %%rdx, %%xmm5\n mov $200000, %%rcx\n mov $15, %%r15\n"
                         "stc\n"
                         "1: lea -1(%%rcx), %%rcx\n jrcxz 2f\n jmp 1b\n"
                         "2: setnc %%cl\n movzx %%cl, %%ecx\n"
                         "xor $1, %%rax\n or %%rax, %%rcx\n xor $2, %%rbx\n or %%rbx, %%rcx\n xor $4, %%rdx\n or %%rdx, %%rcx\n"
                         "xor $5, %%rsi\n or %%rsi, %%rcx\n xor $6, %%rdi\n or %%rdi, %%rcx\n xor $7, %%rbp\n or %%rbp, %%rcx\n"
                         "xor $8, %%r8\n or %%r8, %%rcx\n xor $9, %%r9\n or %%r9, %%rcx\n xor $10, %%r10\n or %%r10, %%rcx\n"
                         "xor $11, %%r11\n or %%r11, %%rcx\n xor $12, %%r12\n or %%r12, %%rcx\n xor $13, %%r13\n or %%r13, %%rcx\n"
                         "xor $14, %%r14\n or %%r14, %%rcx\n xor $15, %%r15\n or %%r15, %%rcx\n"
                         "movq %%xmm5, %%rax\n xor $4, %%rax\n or %%rax, %%rcx\n"
                         "xorq $77, -8(%%rsp)\n or -8(%%rsp), %%rcx\n xorq $78, -128(%%rsp)\n or -128(%%rsp), %%rcx\n"
                         "add $256, %%rsp\n pop %%rbp\n"
                         : "=c"(wrong)
                         :
                         : "rax", "rbx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm5", "memory", "cc");
        bad[REGISTERS] += wrong != 0 || __builtin_ia32_stmxcsr() >> 13 != 2;
    }
    return unused;
}

static void *allocates(void *unused) {
    unsigned char *held[64] = {0};
    for (long i = 0;; rounds[MALLOC] = ++i) {
        unsigned char **slot = held + i % 64, mark = (unsigned char)(i / 64);
        if (*slot) {
            bad[MALLOC] += (*slot)[0] != (unsigned char)(mark - 1) || (*slot)[99] != (unsigned char)(mark - 1);
            free(*slot);
        }
        *slot = malloc(100 + (size_t)(i % 7) * 10000);
        memset(*slot, mark, 100);
        if (i % 64 == 0)
            usleep(100);
    }
    return unused;
}

static void *forks(void *unused) {
    for (;; rounds[FORK]++) {
        pid_t child = fork();
        if (child == 0)
            _exit(7);
        int status = 0;
        pid_t got = waitpid(-1, &status, 0);
        bad[FORK] += child < 0 || got != child || WEXITSTATUS(status) != 7;
        bad[FORK] += waitpid(-1, &status, WNOHANG) != -1 || errno != ECHILD;
        usleep(1000);
    }
    return unused;
}

static void *sleeps(void *unused) {
    for (;; rounds[SLEEP]++) {
        double began = now();
        struct timespec time = {0, 3000000};
        bad[SLEEP] += nanosleep(&time, NULL) != 0 || now() - began < 0.003;
    }
    return unused;
}

static int ends[2];
static void *writes(void *unused) {
    for (long i = 1;; i++) {
        usleep(1500);
        if (write(ends[1], &i, sizeof i) != sizeof i)
            bad[READ]++;
    }
    return unused;
}
static void *reads(void *unused) {
    for (long i = 1, got;; rounds[READ] = i++)
        bad[READ] += read(ends[0], &got, sizeof got) != sizeof got || got != i;
    return unused;
}

static void *waits(void *unused) {
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    pthread_mutex_lock(&lock);
    for (;; rounds[FUTEX]++) {
        struct timespec time;
        clock_gettime(CLOCK_REALTIME, &time);
        time.tv_nsec += 2000000;
        time.tv_sec += time.tv_nsec / 1000000000;
        time.tv_nsec %= 1000000000;
        int result = pthread_cond_timedwait(&condition, &lock, &time);
        bad[FUTEX] += result != ETIMEDOUT && result != 0;
    }
    return unused;
}

static void *polls(void *unused) {
    struct epoll_event event;
    for (int epoll = epoll_create1(0);; rounds[EPOLL]++) {
        double began = now();
        int result = epoll_wait(epoll, &event, 1, 3);
        /* A stop interrupts this system call, with any debugger: see signal(7). */
        bad[EPOLL] += result == 0 ? now() - began < 0.002 : result != -1 || errno != EINTR;
    }
    return unused;
}

/* A signal that only sigsuspend unblocks. The ticking thread sends it. */
static pthread_t suspended;
static void *suspends(void *unused) {
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    sigaddset(&none, SIGCHLD);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    for (long last = 0;; rounds[SUSPEND]++) {
        bad[SUSPEND] += sigsuspend(&none) != -1 || errno != EINTR || signals == last;
        last = signals;
    }
    return unused;
}

static void *ticks_on(void *busy) {
    for (;; usleep(1000)) {
        ticks++;
        if (busy && ticks % 3 == 0)
            pthread_kill(suspended, SIGALRM);
    }
    return busy;
}

static void start(void *(*what)(void *), void *with, pthread_t *id) {
    pthread_t unused;
    if (pthread_create(id ? id : &unused, NULL, what, with))
        exit(1);
}

static void filtered(unsigned number) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program))
        exit(1);
}

/* Mappings that a clone does not get, or shares with its parent. */
static void map_kept(void) {
    static const char *const names[] = {"dontfork", "wiped", "shared", "private", "large"};
    for (int i = 0; i < 5; i++) {
        size_t size = i == 4 ? 40 << 20 : 64 * PAGE;
        char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, (i == 2 || i == 4 ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED || (i < 2 && madvise(at, size, i ? MADV_WIPEONFORK : MADV_DONTFORK)))
            exit(1);
        for (size_t page = 0; page < size; page += PAGE)
            snprintf(at + page, 64, "%s page %zu", names[i], page / PAGE);
        printf("%s %p\n", names[i], (void *)at);
    }
}

int main(int count, char **words) {
    const char *how = count > 1 ? words[1] : "";
    int busy = !strcmp(how, "busy");
    struct sigaction child = {.sa_sigaction = on_child, .sa_flags = SA_SIGINFO | SA_RESTART}, alarmed = {.sa_handler = on_alarm};
    sigaction(SIGCHLD, &child, NULL);
    sigaction(SIGALRM, &alarmed, NULL);
    signal(SIGTRAP, SIG_IGN); /* no signal may change this during the test */
    if (!strcmp(how, "limited")) {
        struct rlimit limit = {1, 1};
        if (setrlimit(RLIMIT_NPROC, &limit) || setresgid(54321, 54321, 54321) || setresuid(54321, 54321, 54321))
            return 1;
    }
    if (!strcmp(how, "kept"))
        map_kept();
    printf("ticks %p\nbad %p\nforeign %p\nrounds %p\n", (void *)&ticks, (void *)bad, (void *)&foreign, (void *)rounds);
    if (!strcmp(how, "forbids"))
        filtered((unsigned)atoi(words[2]));
    if (!strcmp(how, "namespace") && unshare(CLONE_NEWPID))
        return 1;
    static volatile char allow = 0; /* SYSCALL_DISPATCH_FILTER_ALLOW */
    if (!strcmp(how, "dispatched") && prctl(59, 1, 0, 0, &allow)) /* PR_SET_SYSCALL_USER_DISPATCH, Linux 5.11 */
        return 1;
    if (!strcmp(how, "storm")) {
        struct itimerval every = {{0, 200}, {0, 200}};
        alarmed.sa_flags = SA_RESTART;
        sigaction(SIGALRM, &alarmed, NULL);
        setitimer(ITIMER_REAL, &every, NULL);
    }
    sigset_t children; /* their signals are blocked in all threads but the first, because they would interrupt the waits of others */
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    pthread_sigmask(SIG_BLOCK, &children, NULL);
    if (busy) {
        if (pipe(ends))
            return 1;
        void *(*all[])(void *) = {keeps_registers, allocates, forks, sleeps, writes, reads, waits, polls};
        for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
            start(all[i], NULL, NULL);
        start(suspends, NULL, &suspended);
    }
    if (!strcmp(how, "storm") || !strcmp(how, "dispatched") || !strcmp(how, "limited") || !strcmp(how, "namespace")) {
        printf("signals %p\n", (void *)&signals);
        fflush(stdout);
        for (;; usleep(1000))
            ticks++;
    }
    start(ticks_on, busy ? (void *)how : NULL, NULL);
    pthread_sigmask(SIG_UNBLOCK, &children, NULL);
    printf("signals %p\n", (void *)&signals);
    fflush(stdout);
    for (;;)
        pause();
}
