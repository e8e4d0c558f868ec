/* Loses blocks in six ways, as many of each as a random number says, on a heap full of remains, and prints each leader:
   "NAME ADDRESS BLOCKS BYTES" (with the blocks that it refers to, in usable bytes), then "ready".
   usage: triage_leaks SEED [NAME…]: only these ways */
#include <malloc.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace {

std::mt19937 draw;
std::vector<void *> kept; // reachable objects, to which lost ones can refer

unsigned any(unsigned low, unsigned high) { return low + draw() % (high - low + 1); }

/* Pointers are printed after all blocks are lost, from a table in which they are complemented. */
struct Said {
    const char *name;
    uintptr_t hidden;
    unsigned blocks;
    size_t bytes;
};
std::vector<Said> said;

void say(const char *name, void *leader, unsigned blocks, size_t bytes) {
    said.push_back({name, ~reinterpret_cast<uintptr_t>(leader), blocks, bytes});
}

/* Former content of the heap: freed blocks with text, numbers and pointers. */
__attribute__((noinline)) void churn() {
    std::vector<void *> all;
    for (int i = 0; i < 3000; i++) {
        size_t size = 8 * any(2, 40);
        void **one = static_cast<void **>(malloc(size));
        for (size_t at = 0; at < size / 8; at++) switch (any(0, 4)) {
            case 0: one[at] = nullptr; break;
            case 1: one[at] = reinterpret_cast<void *>(static_cast<uintptr_t>(draw())); break;
            case 2: memcpy(one + at, "remains.", 8); break;
            case 3: one[at] = all.empty() ? nullptr : all[draw() % all.size()]; break;
            default: one[at] = kept[draw() % kept.size()];
            }
        all.push_back(one);
    }
    for (size_t i = all.size() - 1; i; i--) std::swap(all[i], all[draw() % (i + 1)]);
    for (void *one : all) free(one);
}

/* 1. Requests as text of any length. */
__attribute__((noinline)) void texts(unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        char path[200];
        int length = snprintf(path, sizeof path, "GET /orders/%u?page=%u&q=", any(0, 1u << 30), any(0, 99));
        for (unsigned more = any(0, 100); more; more--) path[length++] = static_cast<char>('a' + any(0, 25));
        path[length] = 0;
        char *text = strdup(path);
        say("texts", text, 1, malloc_usable_size(text));
    }
}

/* 2. Objects of a class with virtual functions that own a string. */
struct Shape {
    virtual ~Shape() = default;
    virtual double area() const { return 0; }
};
struct Square : Shape {
    double side = 0;
    std::string name;
    double area() const override { return side * side; }
};
__attribute__((noinline)) void objects(unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        auto *one = new Square;
        one->side = any(1, 9);
        one->name = "square number " + std::to_string(any(1000000, 9000000));
        say("objects", one, 2, malloc_usable_size(one) + malloc_usable_size(one->name.data()));
    }
}

/* 3. Records of 48 bytes in lists, with a key, and a value that most of them do not have. */
struct Record {
    Record *next;
    char *key;
    Record *parent; /* reachable */
    char *value;
    uint64_t hash;
    uint32_t flags;
};
__attribute__((noinline)) void records(unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        Record *head = nullptr;
        unsigned blocks = 0;
        size_t bytes = 0;
        for (unsigned more = any(2, 9); more; more--) {
            auto *one = static_cast<Record *>(malloc(sizeof(Record)));
            one->next = head;
            one->key = strdup(("key of record " + std::to_string(draw())).c_str());
            one->parent = static_cast<Record *>(kept[0]);
            one->value = any(0, 3) ? nullptr : strdup(("value " + std::to_string(draw())).c_str());
            one->hash = draw() * 0x9e3779b97f4a7c15u;
            one->flags = any(0, 3);
            head = one;
            for (void *part : {static_cast<void *>(one), static_cast<void *>(one->key), static_cast<void *>(one->value)})
                if (part) blocks++, bytes += malloc_usable_size(part);
        }
        say("records", head, blocks, bytes);
    }
}

/* 4. Two objects that own each other through shared pointers. */
struct Peer {
    std::shared_ptr<Peer> other;
    uint64_t number = 0;
};
__attribute__((noinline)) void cycles(unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        auto one = std::make_shared<Peer>(), two = std::make_shared<Peer>();
        one->other = two;
        two->other = one;
        one->number = draw(), two->number = draw();
        auto block = [](const std::shared_ptr<Peer> &peer) { return reinterpret_cast<char *>(peer.get()) - 16; };
        char *first = block(one), *second = block(two);
        say("cycles", first < second ? first : second, 2, malloc_usable_size(first) + malloc_usable_size(second));
    }
}

/* 5. Callbacks, as large as the records: a function, a constant of the program, and a variable. */
struct Callback {
    void *user; /* reachable */
    void (*run)(void *);
    const char *what;
    unsigned *counter;
    uint64_t when, until;
};
unsigned counter;
void run(void *) { counter++; }
__attribute__((noinline)) void callbacks(unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        auto *one = static_cast<Callback *>(malloc(sizeof(Callback)));
        *one = {kept[draw() % kept.size()], run, "a callback", &counter, draw(), 0};
        say("callbacks", one, 1, malloc_usable_size(one));
    }
}

/* 6. Samples of the same size: numbers, of which the program sets the first three. */
__attribute__((noinline)) void samples(unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        auto *one = static_cast<uint64_t *>(malloc(48));
        one[0] = 1000 + any(0, 1u << 20), one[1] = draw(), one[2] = any(0, 4);
        say("samples", one, 1, malloc_usable_size(one));
    }
}

/* Overwrites what earlier calls have left on the stack. */
__attribute__((noinline)) void wipe() {
    char deep[1 << 16];
    memset(deep, 0, sizeof deep);
    __asm__ volatile("" ::"r"(deep) : "memory");
}

const struct {
    const char *name;
    void (*lose)(unsigned);
} ways[] = {{"texts", texts}, {"objects", objects}, {"records", records}, {"cycles", cycles}, {"callbacks", callbacks}, {"samples", samples}};

} // namespace

int main(int argc, char **argv) {
    draw.seed(static_cast<unsigned>(atoi(argv[1])));
    for (int i = 0; i < 50; i++) kept.push_back(calloc(1, 80));
    said.reserve(1 << 16);
    churn();
    for (const auto &way : ways) {
        bool wanted = argc == 2;
        for (int i = 2; i < argc; i++) wanted = wanted || !strcmp(argv[i], way.name);
        if (wanted) way.lose(any(20, 400));
    }
    wipe();
    for (const auto &one : said) printf("%s %p %u %zu\n", one.name, reinterpret_cast<void *>(~one.hidden), one.blocks, one.bytes);
    printf("ready\n");
    fflush(stdout);
    wipe();
    for (;;) pause();
}
