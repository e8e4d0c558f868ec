// A small heap with something of everything: the cores of it, one with each allocator, are what tests/fuzz damages.
// Prints "ready", and waits.
#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace shop {

struct Entity {
    virtual ~Entity() = default;
    virtual int rank() const { return id; }
    int id = 0;
};

struct Order : virtual Entity {
    explicit Order(int number) : note(20 + static_cast<size_t>(number) % 3 * 40, 'n') { id = number; }
    int rank() const override { return id + 1; }
    std::string note;
    std::shared_ptr<Entity> next;
};

struct Node {
    Node *next;
    Order *order;
    void (*done)(Node *);
    char text[40];
};

std::map<std::string, std::unique_ptr<Order>> orders;
std::unordered_map<int, std::string> names;
std::vector<std::list<int>> lists;
std::set<void *> blocks;
Node *ring;

} // namespace shop

static pthread_barrier_t all;
static thread_local char *mine;

static void finished(shop::Node *node) { std::puts(node->text); }

static void *touched(size_t size) {
    void *block = std::malloc(size);
    if (!block) _exit(3);
    return std::memset(block, 0x5a, size < 256 ? size : 256);
}

static void hold(void *block) {
    static std::mutex lock;
    std::lock_guard<std::mutex> locked(lock);
    shop::blocks.insert(block);
}

static void churn() {
    void *taken[120];
    for (int i = 0; i < 120; i++) taken[i] = touched(static_cast<size_t>(8 + i * i % 3000));
    for (int i = 0; i < 120; i += 2) std::free(taken[i]);
    for (int i = 1; i < 120; i += 8) hold(taken[i]);
}

static void *work(void *) {
    prctl(PR_SET_NAME, "worker");
    churn();
    mine = static_cast<char *>(touched(700));
    pthread_barrier_wait(&all);
    pause();
    return mine;
}

static void __attribute__((noinline)) lose() {
    using shop::Node;
    using shop::Order;
    for (int i = 0; i < 12; i++) {
        auto *head = new Node{nullptr, new Order(i), finished, "lost"};
        head->next = new Node{i % 2 ? head : nullptr, nullptr, nullptr, "behind"};
        __asm__ volatile("" ::"r"(head) : "memory");
    }
    (new std::vector<std::string>(5, std::string(50, 'v')))->reserve(9);
}

static void fill() {
    for (int i = 0; i < 30; i++) {
        std::string key = "order number " + std::to_string(i) + " of some customer";
        shop::orders[key] = std::make_unique<shop::Order>(i);
        shop::names[i] = key;
        shop::lists.emplace_back(static_cast<size_t>(i) % 5, i);
        shop::ring = new shop::Node{shop::ring, shop::orders[key].get(), finished, "https://example.org/a?b=c"};
        hold(shop::ring);
    }
    for (size_t size : {9000UL, 40000UL, 140000UL, 600000UL}) hold(touched(size));
}

int main() {
    pthread_t threads[2];
    pthread_barrier_init(&all, nullptr, 3);
    for (pthread_t &thread : threads) pthread_create(&thread, nullptr, work, nullptr);
    churn();
    fill();
    lose();
    pthread_barrier_wait(&all);
    std::puts("ready");
    std::fflush(stdout);
    pause();
    for (pthread_t thread : threads) pthread_join(thread, nullptr);
}
