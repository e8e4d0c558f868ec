/* 40 contexts, of which every second one is leaked. Each has a monotonic_buffer_resource and a pool resource in it. Objects in the first one
 * own blocks of malloc, and are the only ones with the addresses and sizes of larger blocks of the pool. Prints "held|lost ADDRESS" for each
 * block: of malloc, and of the pools of contexts that are not leaked; then "ready". */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory_resource>
#include <unistd.h>

enum { CONTEXTS = 40, OBJECTS = 12, LARGE = 8192 };
static uintptr_t hidden[CONTEXTS * OBJECTS * 8];  // complemented addresses
static bool leaked[CONTEXTS * OBJECTS * 8], leaks;
static int count;

static void *note(void *block, size_t size, bool is_leaked) {
    hidden[count] = ~reinterpret_cast<uintptr_t>(block);
    leaked[count++] = is_leaked;
    return std::memset(block, 0, size);
}

static struct : std::pmr::memory_resource {
    void *do_allocate(size_t size, size_t) override { return note(std::malloc(size), size, leaks); }
    void do_deallocate(void *block, size_t, size_t) override { std::free(block); }
    bool do_is_equal(const memory_resource &other) const noexcept override { return this == &other; }
} of_the_program;

struct Object {
    void *large;
    size_t size;
    void *owned;
    Object *next;
};

struct Context {
    std::pmr::monotonic_buffer_resource memory{&of_the_program};
    std::pmr::unsynchronized_pool_resource pool{&memory};
    Object *first = nullptr;
};

Context *volatile kept[CONTEXTS];

static __attribute__((noinline)) void create(int number) {
    leaks = number % 2 == 0;
    void *place = note(std::malloc(sizeof(Context)), sizeof(Context), leaks);
    Context *context = new (place) Context;
    for (int at = 0; at < OBJECTS; at++) {
        void *object = context->memory.allocate(sizeof(Object), 8), *large = context->pool.allocate(LARGE, at % 2 ? 1 : 16);
        void *lost = context->pool.allocate(48, 8);
        if (leaks)  // such blocks of the pool are only a part of leaked blocks
            std::memset(large, 0, LARGE), std::memset(lost, 0, 48);
        else
            note(large, LARGE, false), note(lost, 48, true);
        context->first = new (object) Object{large, LARGE, note(std::malloc(200), 200, leaks), context->first};
    }
    if (!leaks)
        kept[number] = context;
}

static __attribute__((noinline)) void clear_stack() {
    volatile char room[64 << 10];
    for (auto &byte : room)
        byte = 0;
}

int main() {
    for (int number = 0; number < CONTEXTS; number++)
        create(number);
    clear_stack();
    for (int number = 0; number < count; number++)
        std::printf("%s %#zx\n", leaked[number] ? "lost" : "held", static_cast<size_t>(~hidden[number]));
    std::puts("ready");
    std::fflush(stdout);
    clear_stack();
    pause();
}
