/* Pool resources on a static buffer, on a monotonic_buffer_resource with blocks of malloc, and in another pool resource. Each has 1,000 blocks of
 * 48 bytes. Prints "ready". The argument is the number of the upstream resource. */
#include <cstdio>
#include <cstdlib>
#include <memory_resource>
#include <unistd.h>

static std::byte buffer[1 << 20];
static std::pmr::monotonic_buffer_resource on_buffer(buffer, sizeof buffer), on_malloc;
static std::pmr::unsynchronized_pool_resource in_pool;

int main(int, char **arguments) {
    std::pmr::memory_resource *upstreams[] = {&on_buffer, &on_malloc, &in_pool};
    static std::pmr::unsynchronized_pool_resource pool(upstreams[std::atoi(arguments[1])]);
    for (int number = 0; number < 1000; number++)
        *static_cast<void *volatile *>(pool.allocate(48)) = nullptr;
    std::puts("ready");
    std::fflush(stdout);
    pause();
}
