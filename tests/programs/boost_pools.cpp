// Pools of Boost.Pool: chunks that are held, lost, freed, or elements of arrays. Blocks of malloc whose only references are in freed chunks
// are lost. Prints "KIND ADDRESS" for each, then the totals of the pools, and waits.
#include <boost/pool/object_pool.hpp>
#include <boost/pool/pool.hpp>
#include <boost/pool/pool_alloc.hpp>
#include <boost/pool/singleton_pool.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <unistd.h>
#include <utility>
#include <vector>

struct Node {
    Node *next = nullptr;
    void *payload = nullptr;
    char name[40] = "node";
};
struct Row {
    long number = 0;
    void *payload = nullptr;
};
struct Tag {};
struct Server {
    boost::object_pool<Node> nodes;
};
typedef boost::singleton_pool<Tag, 80> Buffers;

static boost::pool<> rows(sizeof(Row));
static boost::pool<> arrays(24), large(64); // large: malloc maps the largest blocks
static Server *server;
static std::list<long, boost::fast_pool_allocator<long>> numbers;
static std::vector<void *> kept;
static std::vector<std::pair<const char *, uintptr_t>> found; // addresses are inverted

static void note(const char *kind, void *address) { found.emplace_back(kind, ~(uintptr_t)address); }

static __attribute__((noinline)) void make() {
    std::vector<Row *> freed;
    for (int number = 0; number < 2000; number++) {
        Row *row = new (rows.malloc()) Row;
        Node *node = server->nodes.construct();
        void *payload = calloc(1, 24 + 16 * (number % 3));
        row->number = number;
        const char *kind = number % 4 == 0 ? "freed" : number % 16 == 1 ? "lost" : "held";
        row->payload = *kind == 'f' ? payload : nullptr;
        node->payload = *kind == 'h' ? payload : nullptr;
        note(kind, row);
        note(number % 8 ? "held" : "lost", node);
        note(*kind == 'h' && number % 8 ? "block-held" : "block-lost", payload);
        if (*kind == 'f')
            freed.push_back(row);
        else if (*kind == 'h')
            kept.push_back(row);
        if (number % 8)
            kept.push_back(node);
        if (*kind == 'l')
            memset((void *)row, 0, sizeof *row);
        numbers.push_back(number);
    }
    for (Row *row : freed)
        rows.free(row);
    for (int number = 0; number < 100; number++) {
        char *array = (char *)arrays.ordered_malloc(3);
        memset(array, 0, 72);
        kept.push_back(array);
        note("held", array);
        note("array", array + 24);
        note("array", array + 48);
        void *buffer = Buffers::malloc();
        memset(buffer, 0, 80);
        kept.push_back(buffer);
        note("held", buffer);
    }
    for (int number = 0; number < 5000; number++) {
        void *chunk = memset(large.malloc(), 0, 64);
        note(number % 10 == 1 ? "lost" : "held", chunk);
        if (number % 10 != 1)
            kept.push_back(chunk);
    }
    for (long &number : numbers)
        note("held", (char *)&number - 16);
    memset((void *)freed.data(), 0, freed.size() * sizeof freed[0]);
}

static __attribute__((noinline)) void clear() {
    char page[65536];
    memset(page, 0, sizeof page);
    __asm__ volatile("" : : "r"(page) : "memory");
}

int main() {
    server = new Server;
    kept.reserve(10000);
    found.reserve(20000);
    make();
    clear();
    setvbuf(stdout, nullptr, _IONBF, 0);
    for (const auto &[kind, address] : found)
        printf("%s %#lx\n", kind, (unsigned long)~address);
    clear();
    puts("ready");
    for (;;)
        pause();
}
