// Memory that only a pointer to the inside of a block holds: chunks of pmr resources, frames of C++20 coroutines that wait in a list of
// their awaiters, and stacks of suspended coroutines. Writes the number of blocks that are reachable and that are lost; then "ready".
//
//   interior_coroutines [boost]     (with Boost.Context where compiled with -DBOOST)
#include <coroutine>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>
#ifdef BOOST
#include <boost/context/fiber.hpp>
#include <boost/context/fixedsize_stack.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <boost/coroutine2/all.hpp>
#endif

static constexpr int COUNT = 40, LOST = 25;

// -- a list of awaiters, as mutexes and events in coroutine libraries have it

struct Task {
    struct promise_type {
        Task get_return_object() { return {}; }
        std::suspend_never initial_suspend() { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { abort(); }
    };
};

struct Waiting {
    Waiting *next = nullptr;
    std::coroutine_handle<> handle;
    bool await_ready() const { return false; }
    void await_suspend(std::coroutine_handle<> own);
    void await_resume() {}
};
static Waiting *waiting_list;

void Waiting::await_suspend(std::coroutine_handle<> own) {
    handle = own;
    next = waiting_list;
    waiting_list = this;
}

static Task wait_with(int number) {
    auto value = std::make_unique<std::vector<std::string>>(3, "a text that needs a block of its own " + std::to_string(number));
    co_await Waiting{};
    printf("%zu", value->size());
}

// -- stacks: a switch that saves the same registers as Boost.Context, in the same order

extern "C" void *switch_to(void *to, void **from); // `from`: where the suspended context is stored
__asm__(".text\n.globl switch_to\n.type switch_to, @function\nswitch_to:\n"
        "leaq -0x38(%rsp), %rsp\n"
        "stmxcsr (%rsp)\nfnstcw 4(%rsp)\nmovq %r12, 8(%rsp)\nmovq %r13, 16(%rsp)\nmovq %r14, 24(%rsp)\nmovq %r15, 32(%rsp)\n"
        "movq %rbx, 40(%rsp)\nmovq %rbp, 48(%rsp)\n"
        "movq %rsp, (%rsi)\nmovq %rdi, %rsp\n"
        "movq 8(%rsp), %r12\nmovq 16(%rsp), %r13\nmovq 24(%rsp), %r14\nmovq 32(%rsp), %r15\nmovq 40(%rsp), %rbx\nmovq 48(%rsp), %rbp\n"
        "leaq 0x38(%rsp), %rsp\nret\n.size switch_to, .-switch_to\n");

static void *main_context, *contexts[COUNT]; // the only pointers into the stacks
static int starting;

static void run_coroutine() {
    int number = starting;
    {
        std::string own = "what a coroutine has on its stack, number " + std::to_string(number);
        switch_to(main_context, &contexts[number]);
        printf("%s", own.c_str());
    }
    abort();
}

static void start_coroutine(int number) {
    constexpr size_t size = 16384;
    char *stack = static_cast<char *>(malloc(size));
    memset(stack, 0, size);
    uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + size) & ~uintptr_t(15);
    uintptr_t *words = reinterpret_cast<uintptr_t *>(top - 8 - 0x40);
    uint32_t control[2] = {0x1f80, 0x037f};
    memcpy(words, control, sizeof control);
    words[7] = reinterpret_cast<uintptr_t>(&run_coroutine);
    starting = number;
    switch_to(words, &main_context);
}

#ifdef BOOST
static std::vector<boost::context::fiber> *fibers;
static std::vector<boost::coroutines2::coroutine<int>::pull_type> *pulls;

// `Stack`: of memory from malloc, or mapped.
template <class Stack> static void start_boost(int number) {
    fibers->emplace_back(std::allocator_arg, Stack(16384), [number](boost::context::fiber &&back) {
        std::string own = "what a fiber has on its stack, number " + std::to_string(number);
        back = std::move(back).resume();
        printf("%s", own.c_str());
        return std::move(back);
    });
    fibers->back() = std::move(fibers->back()).resume();
    pulls->emplace_back(Stack(16384), [number](boost::coroutines2::coroutine<int>::push_type &push) {
        std::string own = "what a coroutine has on its stack, number " + std::to_string(number);
        push(number);
        printf("%s", own.c_str());
    });
}

static void start_boost() {
    fibers = new std::vector<boost::context::fiber>;
    pulls = new std::vector<boost::coroutines2::coroutine<int>::pull_type>;
    for (int i = 0; i < COUNT; i++) {
        start_boost<boost::context::fixedsize_stack>(i);
        start_boost<boost::context::protected_fixedsize_stack>(i);
    }
}
#endif

static void lose_some() {
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
    static std::pmr::monotonic_buffer_resource resource;
    static std::pmr::vector<std::pmr::string> texts(&resource);
    static std::vector<std::pmr::monotonic_buffer_resource> *many = new std::vector<std::pmr::monotonic_buffer_resource>(COUNT);
    static std::pmr::unsynchronized_pool_resource pool;
    static std::pmr::vector<std::pmr::string> pooled(&pool);
    for (int i = 0; i < 3000; i++) {
        texts.emplace_back("a text that is too long for the string itself, number " + std::to_string(i));
        pooled.emplace_back("a text that is too long for the string itself, number " + std::to_string(i));
    }
    for (auto &one : *many) { // each chunk contains a block that nothing else holds
        void **cell = static_cast<void **>(one.allocate(64));
        *cell = malloc(100);
    }
    texts.clear();
    texts.shrink_to_fit();
    for (int i = 0; i < COUNT; i++) {
        wait_with(i);
        start_coroutine(i);
    }
#ifdef BOOST
    start_boost();
#endif
    std::thread(lose_some).join(); // in a thread, so that no register keeps an address
    wipe();
    printf("%d\nready\n", LOST);
    fflush(stdout);
    for (;;) pause();
}
