// A small shop server that leaks in the usual ways; its core is the sample of cores/ (cores/README.md tells what findleaks must say).
//
// Prints what it loses, one line a group: kind, blocks, usable bytes, indirect blocks, their bytes, what. Then "ready", and waits.
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace shop {

struct Entity {
    virtual ~Entity() = default;
    virtual int rank() const { return id; }
    int id = 0;
};

struct Order : virtual Entity {
    explicit Order(int number) : note(60 + static_cast<size_t>(number) % 3 * 40, 'n') { id = number; }
    int rank() const override { return id + 1; }
    std::string note;
    double total = 0;
};

struct Job { // a plain struct in a list
    Job *next = nullptr;
    long number = 0;
    char payload[64] = {};
};

struct Part : Entity { // each knows the other: with std::shared_ptr both ways neither is ever freed
    std::shared_ptr<Part> other;
    char name[40] = "part";
};

struct Item {
    virtual ~Item() = default;
    long price = 0;
};

struct Loss {
    const char *kind, *what;
    long blocks = 0, bytes = 0, indirect_blocks = 0, indirect_bytes = 0;
    void direct(const void *p) { blocks++, bytes += static_cast<long>(malloc_usable_size(const_cast<void *>(p))); }
    void indirect(const void *p) { indirect_blocks++, indirect_bytes += static_cast<long>(malloc_usable_size(const_cast<void *>(p))); }
    Loss(const char *k, const char *w) : kind(k), what(w) {}
};

static Loss orders("definite", "shop::Order"), jobs("definite", "list of shop::Job"), parts("definite", "cycle of two shop::Part"),
    buffers("definite", "text buffer"), items("possible", "new shop::Item[]");

static std::map<int, std::string> *catalogue; // held
static std::vector<std::unique_ptr<Order>> *open_orders;
static Item *item_arrays[8];

[[gnu::noinline]] static void lose_orders(int n) {
    for (int i = 0; i < n; i++) {
        auto *order = new Order(i);
        orders.direct(order);
        orders.indirect(order->note.data());
    }
}

[[gnu::noinline]] static void lose_jobs(int lists, int length) {
    for (int i = 0; i < lists; i++) {
        Job *head = nullptr;
        for (int j = 0; j < length; j++) {
            auto *job = new Job;
            job->next = head;
            job->number = j;
            head = job;
            j + 1 < length ? jobs.indirect(job) : jobs.direct(job);
        }
    }
}

[[gnu::noinline]] static void lose_parts(int n) {
    for (int i = 0; i < n; i++) {
        auto one = std::make_shared<Part>(), two = std::make_shared<Part>();
        one->other = two;
        two->other = one;
        // make_shared puts the counters (16 bytes) before the object.
        parts.direct(reinterpret_cast<char *>(one.get()) - 16);
        parts.indirect(reinterpret_cast<char *>(two.get()) - 16);
    }
}

[[gnu::noinline]] static void lose_buffers(int n) {
    for (int i = 0; i < n; i++) {
        char *text = static_cast<char *>(malloc(200));
        memset(text, 0, 200);
        snprintf(text, 200, "GET /orders/%d HTTP/1.1\r\nHost: shop\r\n", i);
        buffers.direct(text);
    }
}

[[gnu::noinline]] static void hold_things() {
    catalogue = new std::map<int, std::string>;
    for (int i = 0; i < 500; i++) (*catalogue)[i] = std::string(30, 'a');
    open_orders = new std::vector<std::unique_ptr<Order>>;
    for (int i = 0; i < 50; i++) open_orders->push_back(std::make_unique<Order>(i));
    for (auto &array : item_arrays) { // the pointer new[] gives lies behind the count it keeps: an interior pointer
        array = new Item[5];
        items.direct(reinterpret_cast<char *>(array) - 8);
    }
}

[[gnu::noinline]] static void scrub() {
    volatile char dead[64 << 10];
    for (auto &c : dead) c = 0;
    // Callee-saved registers may keep a pointer; the others go with the calls to come.
    asm volatile("" : : "r"(dead) : "memory", "rbx", "r12", "r13", "r14", "r15");
}

static pthread_barrier_t done;

static void *serve(void *) { // a thread of its own, in an arena of its own
    lose_orders(40);
    lose_buffers(100);
    scrub();
    pthread_barrier_wait(&done);
    for (;;) pause();
}

// The core shall hold read-only data, so that it can be read where the files are not at hand, but not the code of the libraries.
[[gnu::noinline]] static void choose_what_is_dumped() {
    std::ofstream("/proc/self/coredump_filter") << "0x37";
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        unsigned long start, end;
        char mode[8] = "";
        if (line.find(".so") == std::string::npos || sscanf(line.c_str(), "%lx-%lx %7s", &start, &end, mode) != 3) continue;
        if (mode[2] == 'x') madvise(reinterpret_cast<void *>(start), end - start, MADV_DONTDUMP);
    }
}

[[gnu::noinline]] static void tell() {
    for (const Loss *loss : {&orders, &jobs, &parts, &buffers, &items})
        dprintf(1, "%s %ld %ld %ld %ld %s\n", loss->kind, loss->blocks, loss->bytes, loss->indirect_blocks, loss->indirect_bytes, loss->what);
    dprintf(1, "ready\n");
}

} // namespace shop

int main() {
    using namespace shop;
    pthread_barrier_init(&done, nullptr, 2);
    choose_what_is_dumped();
    pthread_t thread;
    pthread_create(&thread, nullptr, serve, nullptr);
    pthread_barrier_wait(&done); // the counters are shared: one after the other
    hold_things();
    lose_orders(80);
    lose_jobs(3, 40);
    lose_parts(25);
    lose_buffers(200);
    tell();
    scrub();
    for (;;) pause();
}
