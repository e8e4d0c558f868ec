/* Interrupts the stubs of `track` (or three times the stub of `count --inject`) at each instruction by a signal whose handler forks. The
 * child executes the rest of the stub too: either before the parent, or after the parent has made all further calls of the round.
 *
 * usage: forked_steps IMAGE TABLE CODE CODE_BYTES SHARED_END TABLE_BYTES FILTER FILTER_ENTRIES CLAIMS WALK WALK_END ALLOCATE MOVE FREE FORKING
 * Numbers are hexadecimal. IMAGE: a file with the code, then the private pages of the table. TABLE: a file that the shared part of the table is
 * mapped from; it is at CODE + CODE_BYTES. SHARED_END, FILTER and CLAIMS are offsets in the table. WALK to WALK_END is code that does not
 * depend on records: its instructions are interrupted only in the first call of a round.
 * output: the number of rounds, the sums of the counters in FILTER and in the small filter, and the number of CLAIMS that are taken.
 * A round makes these calls, of which one of the first FORKING is interrupted:
 * - allocate 40 bytes at A
 * - reallocate them to 48 bytes, which fails
 * - reallocate them to 56 bytes at B
 * - free B
 * - allocate 24 bytes at A
 * - in odd rounds: free A */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

enum { PRIVATE = 0x2000, SWITCHES = 0x1000, SMALL_FILTER = 0x1800, SMALL_ENTRIES = 1024, REQUESTS = 16, TRAP_FLAG = 0x100, CALLS = 6, BREAKPOINT = 0xcc };

static uint64_t code, code_bytes, walk, walk_end;
static unsigned char *interrupted; /* for each instruction, a bit for each call in which it was interrupted */
static int call_bit, child_is_late, gate[2];
static unsigned char *walk_returns, covered; /* where the walk returns to, and the byte that a breakpoint covers there */
static pid_t made;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void on_step(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    if (walk_returns) {
        registers[REG_RIP]--;
        registers[REG_EFL] |= TRAP_FLAG;
        *walk_returns = covered;
        walk_returns = NULL;
    }
    uint64_t at = registers[REG_RIP] - code;
    int walks = at + code >= walk && at + code < walk_end;
    if (walks && call_bit != 1) { /* continue at the end of the walk */
        walk_returns = *(unsigned char **)registers[REG_RSP];
        covered = *walk_returns;
        *walk_returns = BREAKPOINT;
        registers[REG_EFL] &= ~TRAP_FLAG;
        return;
    }
    if (at >= code_bytes || interrupted[at] & call_bit)
        return;
    interrupted[at] |= call_bit;
    registers[REG_EFL] &= ~TRAP_FLAG;
    made = fork();
    if (made < 0)
        fail("fork");
    char byte;
    if (made == 0 && child_is_late && read(gate[0], &byte, 1) != 1)
        _exit(1);
    if (made > 0 && !child_is_late)
        waitpid(made, NULL, 0);
}

/* Call a stub before a function that returns `result`. If `is_interrupted`, a signal comes after each instruction. */
static uint64_t call(uint64_t stub, uint64_t result, uint64_t first, uint64_t second, int is_interrupted) {
    uint64_t returned, flag = is_interrupted ? TRAP_FLAG : 0;
    register uint64_t r9 __asm__("r9") = result;
    __asm__ volatile("pushfq\n\torq %[flag], (%%rsp)\n\tpopfq\n\t"
                     "call *%[stub]\n\t"
                     "pushfq\n\tandq $-257, (%%rsp)\n\tpopfq"
                     : "=a"(returned), "+r"(r9), "+D"(first), "+S"(second)
                     : [stub] "b"(stub), [flag] "r"(flag)
                     : "rcx", "rdx", "r8", "r10", "r11", "memory", "cc");
    return returned;
}

/* Make a round, in which the call `forking` is interrupted at the next instruction. Return whether there was one. */
static int make_round(const uint64_t *stubs, uint64_t number, int forking) {
    uint64_t a = 0x10000000 + 256 * number, b = a + 128;
    const uint64_t calls[CALLS][4] = {
        {0, a, 40, 0}, {1, 0, a, 48}, {1, b, a, 56}, {2, 0, b, 0}, {0, a, 24, 0}, {2, 0, a, 0},
    };
    made = -1;
    call_bit = 1 << forking;
    for (int at = 0; at < CALLS - (number % 2 == 0); at++) {
        call(stubs[calls[at][0]], calls[at][1], calls[at][2], calls[at][3], at == forking);
        if (made == 0)
            _exit(0);
    }
    if (made > 0 && child_is_late) {
        if (write(gate[1], "", 1) != 1)
            fail("write");
        waitpid(made, NULL, 0);
    }
    return made > 0;
}

static unsigned char *map(unsigned char *at, size_t size, int flags, int file) {
    int access = PROT_READ | PROT_WRITE | PROT_EXEC;
    if (mmap(at, size, access, flags | MAP_FIXED_NOREPLACE, file, 0) != at)
        fail("mmap");
    return at;
}

static unsigned sum(const unsigned char *filter, size_t entries) {
    unsigned found = 0;
    for (size_t at = 0; at < entries; at++)
        found += ((const uint16_t *)filter)[at];
    return found;
}

int main(int count, char **words) {
    uint64_t n[16] = {0};
    if (count != 16)
        return 2;
    for (int at = 3; at < count; at++)
        n[at] = strtoull(words[at], NULL, 16);
    code = n[3], code_bytes = n[4], walk = n[10], walk_end = n[11];
    uint64_t shared_end = n[5], bytes = n[6];
    unsigned char *table = (unsigned char *)code + code_bytes;
    int image = open(words[1], O_RDONLY), shared = open(words[2], O_RDWR);
    map((unsigned char *)code, code_bytes + PRIVATE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (image < 0 || shared < 0 || read(image, (void *)code, code_bytes + PRIVATE) != (ssize_t)(code_bytes + PRIVATE))
        fail(words[1]);
    map(table + PRIVATE, shared_end - PRIVATE, MAP_SHARED, shared);
    madvise(table + SWITCHES, PRIVATE - SWITCHES, MADV_WIPEONFORK);
    if (bytes > shared_end) {
        map(table + shared_end, bytes - shared_end, MAP_PRIVATE | MAP_ANONYMOUS, -1);
        madvise(table + shared_end, bytes - shared_end, MADV_WIPEONFORK);
    }
    struct sigaction action = {.sa_sigaction = on_step, .sa_flags = SA_SIGINFO};
    if (sigaction(SIGTRAP, &action, NULL) || pipe(gate))
        fail("sigaction");
    uint64_t rounds = 0;
    for (child_is_late = 0; child_is_late < 2; child_is_late++) {
        interrupted = calloc(code_bytes, 1);
        for (int forking = 0; forking < (int)n[15]; forking++)
            while (make_round(&n[12], rounds++, forking))
                continue;
        free(interrupted);
    }
    unsigned taken = 0;
    for (int at = 0; at < REQUESTS; at++)
        taken += table[n[9] + 64 * at] != 0;
    printf("%lu %u %u %u\n", (unsigned long)rounds, sum(table + n[7], n[8]), sum(table + SMALL_FILTER, SMALL_ENTRIES), taken);
}
