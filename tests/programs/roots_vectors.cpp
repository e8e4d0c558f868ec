// Vectors by value, by pointer, in structures, of vectors and of strings.
// Prints of each variable: its name, how many elements, how many blocks it retains, and their usable bytes; then waits.
// usage: roots_vectors COUNT
#include "counted_new.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>
#include <vector>

struct Pool {
    std::vector<char *> items;
};

struct Wide {
    long id = 7;
    std::vector<char *> items;
    long flags = 1;
};

Pool *g_pool;
Wide *g_wide;
Pool g_value;
std::vector<std::vector<int *>> *g_nested;
std::vector<std::string> *g_names;

static char *written(long number) {
    char *text = static_cast<char *>(operator new(24 + 16 * (number % 3)));
    std::memset(text, 'a' + static_cast<int>(number % 26), 24);
    return text;
}

static void say(const char *name, long length) {
    std::printf("%s %ld %ld %ld\n", name, length, counted_blocks, counted_bytes);
    counted_blocks = counted_bytes = 0;
}

int main(int argc, char **argv) {
    long count = argc > 1 ? std::atol(argv[1]) : 100000;
    g_pool = new Pool;
    g_pool->items.reserve(count); // no reallocation, so that no stale copies remain
    for (long at = 0; at < count; at++)
        g_pool->items.push_back(written(at));
    say("g_pool", count);
    g_wide = new Wide;
    g_wide->items.reserve(count);
    for (long at = 0; at < count; at++)
        g_wide->items.push_back(written(at));
    say("g_wide", count);
    g_value.items.reserve(count);
    for (long at = 0; at < count; at++)
        g_value.items.push_back(written(at));
    say("g_value", count);
    g_nested = new std::vector<std::vector<int *>>(count / 10);
    for (auto &inner : *g_nested) {
        inner.reserve(5);
        for (int at = 0; at < 5; at++)
            inner.push_back(new int(at));
    }
    say("g_nested", count / 10);
    g_names = new std::vector<std::string>;
    g_names->reserve(count);
    for (long at = 0; at < count; at++)
        g_names->emplace_back(40, 'n');
    say("g_names", count);
    std::printf("ready\n");
    std::fflush(stdout);
    for (;;)
        pause();
}
