// Blocks of pool resources: a global unsynchronized one, and a synchronized one that four threads use. Prints "held|lost|freed SIZE ADDRESS"
// for each block (SIZE: that of its pool), then "ready".
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <malloc.h>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <random>
#include <thread>
#include <unistd.h>
#include <vector>

std::pmr::unsynchronized_pool_resource session_pool;
static std::vector<void *> kept;
static std::mutex lock;
static std::map<uintptr_t, std::pair<const char *, size_t>> record;  // by complemented address

static size_t rounded(size_t size) {
    static const size_t sizes[] = {8,   16,  24,  32,  48,  64,  80,  96,   112,  128,  192,
                                   256, 320, 384, 448, 512, 768, 1024, 1536, 2048, 3072, 4096};
    const size_t *found = std::lower_bound(std::begin(sizes), std::end(sizes), size);
    return found != std::end(sizes) ? *found : size;
}

static void note(const char *what, void *block, size_t size) {
    std::lock_guard<std::mutex> guard(lock);
    record[~reinterpret_cast<uintptr_t>(block)] = {what, rounded(size)};
}

static void use(std::pmr::memory_resource &pool, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::pair<void *, size_t>> blocks;
    for (int number = 0; number < 3000; number++) {
        size_t size = std::max<size_t>(16, number % 50 ? random() % 300 : 64 * (1 + random() % 90));
        void *block = pool.allocate(size, alignof(std::max_align_t));
        std::fill_n(static_cast<char *>(block), size > 4096 ? malloc_usable_size(block) : rounded(size), 0);  // overwrites stale words in the block
        blocks.push_back({block, size});
    }
    std::shuffle(blocks.begin(), blocks.end(), random);
    for (size_t number = 0; number < blocks.size(); number++) {
        auto [block, size] = blocks[number];
        if (number % 3 == 0) {
            note("freed", block, size);
            pool.deallocate(block, size, alignof(std::max_align_t));
        } else if (number % 3 == 1) {
            note("held", block, size);
            std::lock_guard<std::mutex> guard(lock);
            kept.push_back(block);
        } else
            note("lost", block, size);
        blocks[number].first = nullptr;
    }
}

// Leave no stale addresses on the stack, nor in the vector registers that memmove uses.
static void clear_stack() {
    static char from[4096], to[4096];
    volatile char room[64 << 10];
    for (auto &byte : room)
        byte = 0;
    for (size_t size = 1; size < sizeof from; size++) {
        memmove(to, from, size);
        asm volatile("" : : "r"(to) : "memory");
    }
}

int main() {
    auto shared = std::make_unique<std::pmr::synchronized_pool_resource>();
    use(session_pool, 1);
    std::vector<std::thread> threads;
    std::mutex gate;
    gate.lock();
    for (unsigned seed = 2; seed < 6; seed++)
        threads.emplace_back([&, seed] {
            use(*shared, seed);
            clear_stack();
            if (seed > 3)
                gate.lock();  // two threads end, two continue
        });
    threads[0].join();
    threads[1].join();
    {
        std::pmr::unsynchronized_pool_resource gone;
        (void)gone.allocate(100);
    }
    clear_stack();
    usleep(300000);
    for (auto &[hidden, what] : record)
        printf("%s %zu %#zx\n", what.first, what.second, static_cast<size_t>(~hidden));
    printf("ready\n");
    fflush(stdout);
    pause();
}
