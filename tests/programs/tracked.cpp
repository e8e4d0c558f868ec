/* Three threads that allocate by known sites, in rounds: the program prints what it allocated by each site, and what became of it.
 * usage: tracked [idle]: prints "ready PID"; at each line of standard input it does a round, then prints a line a block,
 * "SITE FATE ADDRESS SIZE", and "done". FATE: freed, held, lost. */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <malloc.h>
#include <mutex>
#include <new>
#include <pthread.h>
#include <vector>

#define NOINLINE __attribute__((noinline, noclone))

/* Addresses are stored as complements, so that the list does not hold blocks. */
struct Note {
    const char *site, *fate;
    uintptr_t hidden;
    size_t size;
};
static Note notes[100000];
static int noted;
static std::mutex lock;

static void note(const char *site, const char *fate, void *block, size_t size) {
    std::lock_guard<std::mutex> hold(lock);
    notes[noted++] = {site, fate, ~(uintptr_t)block, size};
}

static void *volatile kept[100000];
static int keeping;

static void keep(void *block) {
    std::lock_guard<std::mutex> hold(lock);
    kept[keeping++] = block;
}

struct Node {
    long values[5];
};

/* Each of these functions is a site, and returns a block. `volatile` prevents a tail call, which would have no frame. */
#define SITE(name, call)                                                                                                                         \
    NOINLINE static void *name([[maybe_unused]] size_t size) {                                                                                                  \
        void *volatile made = call;                                                                                                              \
        return made;                                                                                                                             \
    }
SITE(by_malloc, malloc(size))
SITE(by_calloc, calloc(size / 8, 8))
SITE(by_memalign, memalign(64, size))
SITE(by_aligned_alloc, aligned_alloc(64, size))
SITE(by_valloc, valloc(size))
SITE(by_new, ::operator new(size))
SITE(by_new_array, new char[size])
SITE(by_nothrow, ::operator new(size, std::nothrow))
SITE(by_aligned_new, ::operator new(size, std::align_val_t(64)))
SITE(by_object, new Node())
NOINLINE static void *by_posix_memalign(size_t size) {
    void *made = nullptr;
    return posix_memalign(&made, 128, size) ? nullptr : made;
}
NOINLINE static void *by_realloc(size_t size) {
    void *volatile made = malloc(8);
    made = realloc(made, size);
    return made;
}
NOINLINE static void *by_realloc_of_nothing(size_t size) {
    void *volatile made = realloc(nullptr, size);
    return made;
}

struct Site {
    const char *name;
    void *(*allocate)(size_t);
    void (*release)(void *);
};
static void with_delete(void *block) { ::operator delete(block); }
static void with_array_delete(void *block) { ::operator delete[](block); }
static void with_aligned_delete(void *block) { ::operator delete(block, std::align_val_t(64)); }
static const Site sites[] = {
    {"by_malloc", by_malloc, free},
    {"by_calloc", by_calloc, free},
    {"by_memalign", by_memalign, free},
    {"by_aligned_alloc", by_aligned_alloc, free},
    {"by_valloc", by_valloc, free},
    {"by_new", by_new, with_delete},
    {"by_new_array", by_new_array, with_array_delete},
    {"by_nothrow", by_nothrow, with_delete},
    {"by_aligned_new", by_aligned_new, with_aligned_delete},
    {"by_object", by_object, with_delete},
    {"by_posix_memalign", by_posix_memalign, free},
    {"by_realloc", by_realloc, free},
    {"by_realloc_of_nothing", by_realloc_of_nothing, free},
};

NOINLINE static void one(const Site &site, int turn) {
    bool aligned = site.allocate == by_memalign || site.allocate == by_aligned_alloc || site.allocate == by_aligned_new;
    size_t size = aligned ? 64 : 40;
    static_assert(sizeof(Node) == 40);
    void *block = site.allocate(size);
    memset(block, 0, malloc_usable_size(block)); /* overwrites the former content of the block */
    switch (turn % 3) {
    case 0:
        note(site.name, "freed", block, size);
        site.release(block);
        break;
    case 1:
        note(site.name, "held", block, size);
        keep(block);
        break;
    default:
        note(site.name, "lost", block, size);
    }
}

/* bad_alloc passes from the allocator to the caller. The stubs must not prevent this. */
NOINLINE static void fails() {
    static volatile size_t much = (size_t)1 << 62;
    for (int i = 0; i < 3; i++) {
        try {
            void *volatile made = ::operator new(much);
            (void)made;
            abort();
        } catch (const std::bad_alloc &) {
        }
        try {
            void *volatile made = new char[much];
            (void)made;
            abort();
        } catch (const std::bad_alloc &) {
        }
        if (::operator new(much, std::nothrow) || malloc(much) || calloc(much, 8) || realloc(nullptr, much))
            abort();
        void *volatile stays = malloc(40);
        memset(stays, 0, malloc_usable_size(stays));
        if (realloc(stays, much)) /* this fails and leaves the block unchanged */
            abort();
        note("fails", "held", stays, 40);
        keep(stays);
    }
}

/* Overwrites what earlier calls have left below the stack pointer. */
NOINLINE static void wipe() {
    volatile char room[16384];
    memset((void *)room, 0, sizeof room);
    __asm__ volatile("" : : "r"(room) : "memory"); /* keeps GCC from removing the array */
}

static void *worker(void *) {
    for (int turn = 0; turn < 30; turn++)
        for (const Site &site : sites)
            one(site, turn);
    fails();
    wipe();
    return nullptr;
}

int main() {
    setvbuf(stdout, nullptr, _IOLBF, 1 << 16);
    printf("ready\n");
    char line[16];
    while (fgets(line, sizeof line, stdin)) {
        pthread_t threads[3];
        for (pthread_t &thread : threads)
            if (pthread_create(&thread, nullptr, worker, nullptr))
                return 1;
        for (pthread_t thread : threads)
            pthread_join(thread, nullptr);
        wipe();
        for (int i = 0; i < noted; i++)
            printf("%s %s %#lx %zu\n", notes[i].site, notes[i].fate, ~notes[i].hidden, notes[i].size);
        noted = 0;
        printf("done\n");
    }
}
