/* Blocks whose only reference is in data that nobody has received: in a pipe, behind the one-byte type of a message, in an eventfd, in
   socket pairs, in message queues, in a memfd that is not mapped. Prints "held WHAT ADDRESS" and "lost WHAT ADDRESS" a line, then "ready". No address stays in memory. */
#define _GNU_SOURCE
#include <mqueue.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EACH = 20 };
static int queue = -1;

static void *block(const char *kind, const char *what) {
    void *volatile made = malloc(300);
    memset(made, 'b', 300);
    printf("%s %s %p\n", kind, what, made);
    return made;
}

static void must(int failed, const char *what) {
    if (failed) {
        perror(what);
        exit(1);
    }
}

static void send_pointer(int fd, const char *kind, const char *what, int typed) {
    struct __attribute__((packed)) {
        char type;
        void *pointer;
    } message = {'x', block(kind, what)};
    const char *start = typed ? (char *)&message : (char *)&message.pointer;
    size_t size = sizeof message - !typed;
    must(write(fd, start, size) != (ssize_t)size, what);
    memset(&message, 0, sizeof message);
}

/* Makes the System V queue, and a process that removes it once this one has ended. */
static void make_queue(void) {
    int ended[2];
    queue = msgget(IPC_PRIVATE, IPC_CREAT | 0600);
    must(queue < 0 || pipe(ended), "msgget");
    pid_t child = fork();
    must(child < 0, "fork");
    if (!child) {
        char end;
        close(1);
        close(ended[1]);
        while (read(ended[0], &end, 1) > 0) continue;
        msgctl(queue, IPC_RMID, NULL);
        _exit(0);
    }
    close(ended[0]);
}

/* In its last page: the reader must not stop at the zeros before it. */
static void fill_memfd(void) {
    enum { SIZE = 1 << 18, PAGE = 4096 };
    int memfd = memfd_create("table", MFD_CLOEXEC);
    must(memfd < 0 || ftruncate(memfd, SIZE), "memfd_create");
    char *mapped = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
    must(mapped == MAP_FAILED, "mmap");
    void **table = (void **)(mapped + SIZE - PAGE);
    for (int i = 0; i < EACH; i++)
        table[i] = block("held", "memfd");
    must(munmap(mapped, SIZE), "munmap");
}

static void __attribute__((noinline)) make(int unreadable) {
    int plain[2], typed[2], drained[2], stream[2], packets[2];
    must(pipe(plain) || pipe(typed) || pipe(drained), "pipe");
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, stream) || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, packets), "socketpair");
    struct {
        long type;
        void *pointer;
    } message = {1, NULL};
    struct mq_attr form = {.mq_maxmsg = 10, .mq_msgsize = sizeof(void *)};
    fill_memfd();
    char name[40]; /* other processes may run this program at the same time */
    snprintf(name, sizeof name, "/findleaks-unread-%d", (int)getpid());
    mqd_t posix = mq_open(name, O_RDWR | O_CREAT | O_EXCL, 0600, &form);
    must(posix < 0 || mq_unlink(name), "mq_open");
    for (int i = 0; i < EACH; i++) {
        send_pointer(plain[1], "held", "pipe", 0);
        send_pointer(typed[1], "held", "typed", 1);
        send_pointer(stream[1], "held", "stream", 1);
        send_pointer(drained[1], "lost", "drained", 0);
        uint64_t counter = (uintptr_t)block("held", "eventfd");
        must(write(eventfd(0, 0), &counter, sizeof counter) != sizeof counter, "eventfd");
        message.pointer = block("held", "system-v");
        must(msgsnd(queue, &message, sizeof message.pointer, IPC_NOWAIT), "msgsnd");
        message.pointer = NULL;
        counter = 0;
        block("lost", "plain");
    }
    char waste[EACH * sizeof(void *)];
    must(read(drained[0], waste, sizeof waste) != sizeof waste, "read");
    memset(waste, 0, sizeof waste);
    send_pointer(packets[1], "held", "packet", 0);
    if (unreadable) {
        send_pointer(packets[1], "unreadable", "packet", 0);
        void *volatile pointer = block("unreadable", "posix");
        must(mq_send(posix, (char *)&pointer, sizeof pointer, 0), "mq_send");
        pointer = NULL;
    }
}

static void __attribute__((noinline)) sweep(void) {
    volatile char waste[1 << 16];
    for (unsigned i = 0; i < sizeof waste; i++) waste[i] = 0;
}

/* `unread_data all`: with data that findleaks cannot read. */
int main(int count, char **words) {
    make_queue();
    make(count > 1 && !strcmp(words[1], "all"));
    sweep();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
