// A program that prints the true type of each of its blocks: frames of coroutines that were not resumed. They have the size of struct lconv,
// whose members are pointers to characters.
//
//   typed_frames GENERATORS SEED
#include <clocale>
#include <coroutine>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
#include <vector>
#ifdef __clang__
#define SUFFIX ".coro_frame_ty"
#else
#define SUFFIX ".Frame"
#endif
static bool leaking;
static void *told(void *block, const char *type) { std::printf("%lx %s %s\n", (unsigned long)block, leaking ? "leaked" : "reachable", type); return block; }
struct Item { Item *next; long number; static Item *make() { return new (told(std::malloc(sizeof(Item)), "Item")) Item{nullptr, 5}; } };
struct Generator {
    struct promise_type {
        Item *current = nullptr;
        Generator get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
        std::suspend_always initial_suspend() noexcept { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        std::suspend_always yield_value(Item *item) { current = item; return {}; }
        void return_void() {}
        void unhandled_exception() {}
        void *operator new(size_t size) { return told(std::malloc(size), "_Z4walkP4ItemS0_S0_S0_S0_S0_S0_" SUFFIX); }
        void operator delete(void *block) { std::free(block); }
    };
    std::coroutine_handle<promise_type> handle;
};
Generator walk(Item *a, Item *b, Item *c, Item *d, Item *e, Item *f, Item *g) {
    for (;;) {
        co_yield a;
        co_yield b;
        co_yield c;
        co_yield d;
        co_yield e;
        co_yield f;
        co_yield g;
    }
}
static std::vector<Generator> generators;
static lconv *locale;
__attribute__((noinline)) static void clear_stack() { volatile char space[65536]; for (size_t at = 0; at < sizeof space; at++) space[at] = 0; }
int main(int, char **arguments) {
    locale = std::localeconv();
    std::fputs(locale->decimal_point, stderr);
    for (int at = 0; at < std::atoi(arguments[1]); at++) {
        leaking = at % 5 == 4;
        Generator made = walk(Item::make(), Item::make(), Item::make(), Item::make(), Item::make(), Item::make(), Item::make());
        if (!leaking) generators.push_back(made);
    }
    clear_stack();
    std::puts("ready");
    std::fflush(stdout);
    for (;;) pause();
}
