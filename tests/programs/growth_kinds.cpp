// One thing of each kind that grows. Reads numbers from standard input, a line each, and does so often, each time: loses an object
// with its name, one of a second class, a cycle of two, and a plain block; keeps an object of the first class in a vector; frees a
// block. For each number it also starts a thread, which waits. "ready" follows.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

struct Order {
    virtual ~Order() = default;
    std::string name = "an order with a name long enough for a block of its own";
    Order *other = nullptr;
};
struct Invoice : Order {
    long lines[8] = {1};
};

std::vector<Order *> kept;

__attribute__((noinline)) void waits_for_orders() {
    for (;;)
        pause();
}
__attribute__((noinline)) void waits_for_invoices() {
    for (;;)
        pause();
}

__attribute__((noinline)) void lose(long at) {
    new Order;
    new Invoice;
    Order *one = new Order, *two = new Order;
    one->other = two, two->other = one;
    *(volatile char *)malloc(24 + 16 * (size_t)(at % 3)) = 1;
    kept.push_back(new Order);
    free(malloc(500 + (size_t)(at % 7) * 100));
}

int main() {
    std::printf("ready\n");
    std::fflush(stdout);
    for (long count = 0, round = 0; std::scanf("%ld", &count) == 1; round++) {
        for (long at = 0; at < count; at++)
            lose(at);
        std::thread(round % 3 ? waits_for_orders : waits_for_invoices).detach();
        std::printf("ready\n");
        std::fflush(stdout);
    }
}
