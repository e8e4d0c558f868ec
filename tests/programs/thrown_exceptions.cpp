// Exceptions that are stored, caught, or lost, with a message and a member in other blocks. Prints the number of blocks of lost exceptions.
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

struct Failure : std::runtime_error {
    std::shared_ptr<std::string> cause;
    explicit Failure(int number)
        : std::runtime_error("the connection was closed, number " + std::to_string(number)),
          cause(std::make_shared<std::string>("a reason that is too long for the string itself")) {}
};

static std::vector<std::exception_ptr> failures;

static std::exception_ptr fail(int number) {
    try {
        throw Failure(number);
    } catch (...) {
        return std::current_exception();
    }
}

static void wipe() {
    volatile char dead[64 << 10];
    memset(const_cast<char *>(dead), 0, sizeof dead);
    __asm__ volatile("" : : "r"(dead) : "memory");
}

int main() {
    enum { LOST = 3 };
    for (int i = 0; i < 5; i++) failures.push_back(fail(i));
    std::thread([] {
        for (int i = 0; i < LOST; i++) {
            alignas(std::exception_ptr) unsigned char storage[sizeof(std::exception_ptr)];
            new (storage) std::exception_ptr(fail(100 + i)); // the object is never destroyed
            memset(storage, 0, sizeof storage);
        }
        wipe();
    }).join();
    try {
        throw Failure(50);
    } catch (...) { // only the thread's list of caught exceptions refers to it
        try {
            std::rethrow_exception(failures[1]);
        } catch (...) {
            wipe();
            printf("%d\nready\n", LOST);
            fflush(stdout);
            for (;;) pause();
        }
    }
}
