/* A pool resource in another memory resource: on a static buffer, on a monotonic_buffer_resource with blocks of malloc, in another pool
 * resource, in a pool resource on a buffer, and in a resource of the program. The argument is the number of the upstream resource. Prints
 * "held|lost|freed SIZE ADDRESS" for each block, then "ready". */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory_resource>
#include <unistd.h>

static std::byte buffer[1 << 20], other_buffer[1 << 20];
static std::pmr::monotonic_buffer_resource on_buffer(buffer, sizeof buffer), on_malloc, on_other(other_buffer, sizeof other_buffer);
static std::pmr::unsynchronized_pool_resource in_pool, in_pool_on_buffer(&on_other);
static struct : std::pmr::memory_resource {
    std::byte memory[1 << 20];
    size_t used = 0;
    void *do_allocate(size_t size, size_t) override { return memory + (used += (size + 63) / 64 * 64) - (size + 63) / 64 * 64; }
    void do_deallocate(void *, size_t, size_t) override {}
    bool do_is_equal(const memory_resource &other) const noexcept override { return this == &other; }
} of_the_program;

void *volatile kept[1000], *volatile beside;  // beside: a list of objects in the upstream resource, of which the last has an address of a block
static uintptr_t hidden[3000];
static size_t sizes[3000];
static std::pmr::memory_resource &make_derived(std::pmr::memory_resource &upstream); // argument 5
static __attribute__((noinline)) void use(std::pmr::memory_resource &pool, std::pmr::memory_resource &upstream) {
    for (int number = 0; number < 3000; number++) {
        size_t size = sizes[number] = number % 100 == 99 ? 8192 + number / 100 * 64 : 16 * (1 + number % 4);
        void *block = pool.allocate(size, 16);
        std::memset(block, 0, size);
        hidden[number] = ~reinterpret_cast<uintptr_t>(block);
        if (number % 60 == 0) {
            void **object = static_cast<void **>(upstream.allocate(32, 8));
            object[0] = beside, object[1] = block, object[2] = object[3] = nullptr;
            beside = object;
        } else if (number % 3 == 0)
            kept[number / 3] = block;
    }
    for (int number = 2; number < 3000; number += 3)
        pool.deallocate(reinterpret_cast<void *>(~hidden[number]), sizes[number], 16);
}

static __attribute__((noinline)) void clear_stack() {
    volatile char room[64 << 10];
    for (auto &byte : room)
        byte = 0;
}

int main(int, char **arguments) {
    std::pmr::memory_resource *upstreams[] = {&on_buffer, &on_malloc, &in_pool, &in_pool_on_buffer, &of_the_program, &on_malloc};
    std::pmr::memory_resource &upstream = *upstreams[std::atoi(arguments[1])];
    static std::pmr::unsynchronized_pool_resource pool(&upstream);
    use(*arguments[1] == '5' ? make_derived(upstream) : pool, upstream);
    clear_stack();
    const char *states[] = {"held", "lost", "freed"};
    for (int number = 0; number < 3000; number++)
        std::printf("%s %zu %#zx\n", states[number % 3], sizes[number], static_cast<size_t>(~hidden[number]));
    std::puts("ready");
    std::fflush(stdout);
    pause();
}

struct counting : std::pmr::unsynchronized_pool_resource {
    using unsynchronized_pool_resource::unsynchronized_pool_resource;
    size_t calls = 0;
    void *do_allocate(size_t size, size_t alignment) override {
        calls++;
        return unsynchronized_pool_resource::do_allocate(size, alignment);
    }
};
struct limited : counting {
    using counting::counting;
    void do_deallocate(void *block, size_t size, size_t alignment) override { counting::do_deallocate(block, size, alignment); }
};

static std::pmr::memory_resource &make_derived(std::pmr::memory_resource &upstream) {
    static limited pool(&upstream);
    return pool;
}
