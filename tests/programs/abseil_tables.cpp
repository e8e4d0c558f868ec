// Hash tables of Abseil in variables and in blocks, of all sizes, with and without deleted entries. Loses blocks, and writes how many;
// then the number of tables that have a block, and "ready".
#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/container/node_hash_map.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

static constexpr int LOST = 25, TABLES = 40;

struct Shelf {
    long number;
    absl::flat_hash_map<long, std::unique_ptr<std::string>> owned;
    absl::flat_hash_set<std::string> names;
    absl::node_hash_map<std::string, std::string> nodes;
};
static std::vector<std::unique_ptr<Shelf>> shelves;
static absl::flat_hash_map<std::string, std::unique_ptr<Shelf>> by_name;
static int tables;

// What libraries compiled with glibc 2.38 and newer call.
extern "C" long __isoc23_strtol(const char *text, char **end, int base) { return strtol(text, end, base); }

static std::string text(int number) { return "a text that is too long for the string itself, number " + std::to_string(number); }

static void fill(Shelf &shelf, int count) {
    for (int i = 0; i < count; i++) {
        shelf.owned[i] = std::make_unique<std::string>(text(i));
        shelf.names.insert(text(i));
        shelf.nodes[text(i)] = text(-i);
    }
    for (int i = 0; i < count; i += 3) {
        shelf.owned.erase(i);
        shelf.names.erase(text(i));
        shelf.nodes.erase(text(i));
    }
    tables += count ? 3 : 0;
}

static void fill_all() {
    for (int i = 0; i < TABLES; i++) {
        shelves.push_back(std::make_unique<Shelf>());
        fill(*shelves.back(), i * i);
        auto &shelf = by_name[text(i)] = std::make_unique<Shelf>();
        fill(*shelf, i);
    }
    tables++;
}

static void lose_some() { // before anything is freed: no stale word may contain the addresses of lost blocks
    for (int i = 0; i < LOST; i++) {
        void *volatile lost = malloc(216);
        memset(lost, 'x', 216);
        lost = nullptr;
    }
}

static void wipe() {
    volatile char dead[64 << 10];
    memset(const_cast<char *>(dead), 0, sizeof dead);
    __asm__ volatile("" : : "r"(dead) : "memory");
}

int main() {
    std::thread(lose_some).join(); // in a thread, so that no register keeps an address
    std::thread(fill_all).join();
    wipe();
    printf("%d\n%d\nready\n", LOST, tables);
    fflush(stdout);
    for (;;) pause();
}
