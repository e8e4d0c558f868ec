// Threads that each have a cache in a thread-local variable of a function, and a list in a local variable. Usage: thread_caches THREADS.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <unistd.h>
#include <unordered_map>
#include <vector>

enum { ENTRIES = 4000, BODIES = 20 };
std::atomic<int> ready;

static std::string &look_up(int key) {
    static thread_local std::unordered_map<int, std::string> cache;
    return cache.try_emplace(key, 500, 'x').first->second;
}

static void serve() {
    std::vector<char *> bodies;
    for (int i = 0; i < ENTRIES; i++) look_up(7 * i);
    for (int i = 0; i < BODIES; i++) bodies.push_back((char *)std::calloc(1, 1000));
    ready++;
    for (;;) pause();
    __asm__ volatile("" : : "r"(&bodies));
}

int main(int, char **words) {
    const int threads = std::atoi(words[1]);
    for (int i = 0; i < threads; i++) std::thread(serve).detach();
    while (ready < threads) usleep(1000);
    std::printf("%d\n", threads * (2 * ENTRIES + 1)); // nodes, strings, and the bucket arrays
    std::puts("ready"), std::fflush(stdout);
    for (;;) pause();
}
