/* Blocks whose only pointers are in places that a scan of ordinary memory misses. Those that the program can still reach have 200 bytes and
   begin with "HELD"; those that it cannot reach have 216 bytes and begin with "LOST". Prints "ready" and waits.

   usage: hidden_places KIND FILE PLUGIN; FILE is a scratch file, PLUGIN this source compiled with -DPLUGIN -shared */
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { COUNT = 50, SIZE = 1 << 16 };

static void *block(const char *state, size_t size) {
    char *made = malloc(size);
    memset(made, 'b', size);
    strcpy(made, state);
    return made;
}

#ifdef PLUGIN
static void *kept[COUNT];

void plugin_start(void) {
    for (int i = 0; i < COUNT; i++) kept[i] = block("LOST", 216);
}
#else
static const char *file, *plugin;

static void *held(void) { return block("HELD", 200); }

static void must(int failed, const char *what) {
    if (failed) {
        perror(what);
        exit(1);
    }
}

static void __attribute__((noinline)) sweep(void) {
    volatile char waste[1 << 16];
    for (unsigned i = 0; i < sizeof waste; i++) waste[i] = 0;
}

/* -- mappings; `table` is static, so that the mapping itself is reachable */

static void **table;

static void fill(int fd, int flags) {
    must(fd >= 0 && ftruncate(fd, SIZE), "ftruncate");
    table = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, flags | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);
    must(table == MAP_FAILED, "mmap");
    for (int i = 0; i < COUNT; i++) table[i] = held();
}

static void in_memfd(void) { fill(memfd_create("table", 0), MAP_SHARED); }
static void in_shared_file(void) { fill(open(file, O_CREAT | O_RDWR, 0600), MAP_SHARED); }
static void in_private_file(void) { fill(open(file, O_CREAT | O_RDWR, 0600), MAP_PRIVATE); }

static void in_protected(int protection) {
    fill(-1, MAP_PRIVATE);
    must(mprotect(table, SIZE, protection), "mprotect");
}

static void in_shm(void) {
    char name[40];
    snprintf(name, sizeof name, "/findleaks-hidden-%d", (int)getpid());
    int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
    must(fd < 0 || shm_unlink(name), "shm_open");
    fill(fd, MAP_SHARED);
}

static void in_segment(void) {
    int id = shmget(IPC_PRIVATE, SIZE, 0600);
    table = shmat(id, NULL, 0);
    must(table == (void *)-1 || shmctl(id, IPC_RMID, NULL), "shmat");
    for (int i = 0; i < COUNT; i++) table[i] = held();
}

static void read_only(void) { in_protected(PROT_READ); }
static void no_access(void) { in_protected(PROT_NONE); }

static void not_dumped(void) {
    fill(-1, MAP_PRIVATE);
    must(madvise(table, SIZE, MADV_DONTDUMP), "madvise");
}

/* -- events that epoll_wait returned and the program has not handled yet (packed structures) */

static struct epoll_event *events;

static void in_events(void) {
    int epoll = epoll_create1(0);
    events = calloc(COUNT, sizeof *events);
    for (int i = 0; i < COUNT; i++) {
        int ends[2];
        must(pipe(ends) || write(ends[1], "x", 1) != 1, "pipe");
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = held()};
        must(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event), "epoll_ctl");
    }
    must(epoll_wait(epoll, events, COUNT, 0) != COUNT, "epoll_wait");
    close(epoll);
}

/* -- a parent that waits until its child, which shares its memory, ends or calls exec */

static void in_vfork_parent(void) {
    void *of_parent = held();
    if (!vfork()) {
        char *volatile of_child = held();
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (write(1, "ready\n", 6) == 6)
            for (;;) pause();
        _exit(of_child[0]);
    }
    free(of_parent);
}

/* -- threads */

static pthread_key_t keys[COUNT];

static void set_keys(void *(*make)(void)) {
    for (int i = 0; i < COUNT; i++) pthread_setspecific(keys[i], make());
}

static void *lost(void) { return block("LOST", 216); }

static void *ending(void *unused) {
    set_keys(lost);
    return unused;
}

static void *waiting(void *unused) {
    set_keys(held);
    sweep();
    for (;;) pause();
    return unused;
}

static pthread_t start(void *(*function)(void *)) {
    pthread_t thread;
    must(pthread_create(&thread, NULL, function, NULL), "pthread_create");
    return thread;
}

/* Wait until `threads` threads are in the system call pause, number 34. */
static void settle(int threads) {
    for (int paused = 0; paused < threads; usleep(1000)) {
        DIR *tasks = opendir("/proc/self/task");
        paused = 0;
        for (struct dirent *task; (task = readdir(tasks));) {
            char path[300];
            int call = 0;
            snprintf(path, sizeof path, "/proc/self/task/%s/syscall", task->d_name);
            FILE *state = fopen(path, "r");
            paused += state && fscanf(state, "%d", &call) == 1 && call == 34;
            if (state) fclose(state);
        }
        closedir(tasks);
    }
}

static void in_keys(void) { set_keys(held); }
static void in_keys_of_an_ended_thread(void) { pthread_join(start(ending), NULL); }

static void in_keys_of_a_thread(void) {
    start(waiting);
    settle(1);
}

/* Waits in pause, with the pointer only in one register. */
static void *with_mmx(void *unused) {
    void *own = held();
    __asm__ volatile("movq %0, %%mm3; xor %0, %0; mov $34, %%eax; syscall; emms" : "+r"(own)::"rax", "rcx", "r11", "memory", "mm3");
    return unused;
}

/* Keep a pointer only in a vector register, the widest one that the CPU has, of at most `width` bits. The pointer is in the upper half of
 * a ymm or zmm register, or in the lower half of an xmm register. */
static void *with_vector(int width) {
    void *own = held();
    if (width == 512 && __builtin_cpu_supports("avx512f"))
        __asm__ volatile("vmovq %0, %%xmm16; vpxorq %%zmm31, %%zmm31, %%zmm31; vinserti64x4 $1, %%ymm16, %%zmm31, %%zmm31;"
                         "vpxorq %%zmm16, %%zmm16, %%zmm16; xor %0, %0; mov $34, %%eax; syscall;"
                         "vextracti64x4 $1, %%zmm31, %%ymm16; vmovq %%xmm16, %0" : "+r"(own)::"rax", "rcx", "r11", "memory");
    else if (__builtin_cpu_supports("avx2"))
        __asm__ volatile("vmovq %0, %%xmm1; vpxor %%xmm15, %%xmm15, %%xmm15; vinserti128 $1, %%xmm1, %%ymm15, %%ymm15;"
                         "vpxor %%xmm1, %%xmm1, %%xmm1; xor %0, %0; mov $34, %%eax; syscall;"
                         "vextracti128 $1, %%ymm15, %%xmm1; vmovq %%xmm1, %0" : "+r"(own)::"rax", "rcx", "r11", "memory");
    else
        __asm__ volatile("movq %0, %%xmm15; xor %0, %0; mov $34, %%eax; syscall; movq %%xmm15, %0"
                         : "+r"(own)::"rax", "rcx", "r11", "memory", "xmm15");
    return own;
}

static void *with_ymm(void *unused) { return unused ? unused : with_vector(256); }
static void *with_zmm(void *unused) { return unused ? unused : with_vector(512); }

static void *with_gs(void *unused) {
    must((int)syscall(SYS_arch_prctl, ARCH_SET_GS, held()), "arch_prctl");
    sweep();
    for (;;) __asm__ volatile("mov $34, %%eax; syscall; mov %%gs:0, %%rax" ::: "rax", "rcx", "r11", "memory");
    return unused;
}

static void in_threads(void *(*function)(void *)) {
    for (int i = 0; i < COUNT; i++) start(function);
    settle(COUNT);
}

static void in_mmx(void) { in_threads(with_mmx); }
static void in_ymm(void) { in_threads(with_ymm); }
static void in_zmm(void) { in_threads(with_zmm); }
static void in_gs(void) { in_threads(with_gs); }

/* -- at exit, and on stacks of coroutines */

static void free_at_exit(int status, void *own) {
    (void)status;
    free(own);
}

static void at_exit(void) {
    for (int i = 0; i < COUNT; i++) on_exit(free_at_exit, held());
}

static ucontext_t back, *contexts[COUNT];

static void coroutine(int number) {
    void *volatile own = held();
    swapcontext(contexts[number], &back);
    free(own);
}

static void coroutines(int mapped) {
    for (int i = 0; i < COUNT; i++) {
        ucontext_t *context = contexts[i] = calloc(1, sizeof *context);
        getcontext(context);
        context->uc_stack.ss_size = SIZE;
        context->uc_stack.ss_sp = mapped ? mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : malloc(SIZE);
        makecontext(context, (void (*)(void))coroutine, 1, i);
        swapcontext(&back, context);
    }
}

static void on_malloced_stacks(void) { coroutines(0); }
static void on_mapped_stacks(void) { coroutines(1); }

/* -- lost */

static void plainly(void) {
    for (int i = 0; i < COUNT; i++) lost();
}

static void in_closed_library(void) {
    void *library = dlopen(plugin, RTLD_NOW);
    must(!library, plugin);
    ((void (*)(void))dlsym(library, "plugin_start"))();
    dlclose(library);
}

static const struct {
    const char *name;
    void (*prepare)(void);
} kinds[] = {
    {"memfd", in_memfd}, {"shared-file", in_shared_file}, {"private-file", in_private_file}, {"read-only", read_only},
    {"no-access", no_access}, {"not-dumped", not_dumped}, {"keys", in_keys}, {"thread-keys", in_keys_of_a_thread},
    {"shm", in_shm}, {"segment", in_segment}, {"events", in_events}, {"vfork", in_vfork_parent}, {"ymm", in_ymm}, {"zmm", in_zmm},
    {"ended-keys", in_keys_of_an_ended_thread}, {"mmx", in_mmx}, {"gs", in_gs}, {"on-exit", at_exit},
    {"malloc-stacks", on_malloced_stacks}, {"mapped-stacks", on_mapped_stacks}, {"plain", plainly}, {"closed", in_closed_library},
};

int main(int count, char **words) {
    if (count != 4) return 2;
    file = words[2], plugin = words[3];
    for (int i = 0; i < COUNT; i++) pthread_key_create(&keys[i], NULL);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].name, words[1])) kinds[i].prepare();
    sweep();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
#endif
