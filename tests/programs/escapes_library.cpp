/* The library of escapes.cpp. NAME_… below stand for whole names: the test gives long ones (-DNAME_TYPE=…), whose bytes it replaces. */

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

#define TEXT_(name) #name
#define TEXT(name) TEXT_(name)

struct NAME_TYPE {
    virtual ~NAME_TYPE() = default;
    void *next = nullptr;
};

static void *volatile NAME_GLOBAL;
static thread_local void *volatile NAME_LOCAL;
static volatile int waiting;
void *kept[2];

/* Waits in a system call that it makes itself, so that its frame is found without libc's file. */
[[gnu::noinline]] static void NAME_FUNCTION()
{
    waiting++;
    for (;;) {
#ifdef __x86_64__
        long call = 34; /* pause */
        asm volatile("syscall" : "+a"(call) : : "rcx", "r11", "memory");
#else
        pause();
#endif
        waiting++;
    }
}

extern "C" [[gnu::visibility("default"), gnu::noinline]] void escapes_tick()
{
    asm volatile("" : : : "memory");
}

[[gnu::noinline]] static void NAME_CALLER()
{
    for (;;) {
        escapes_tick();
        usleep(5000);
    }
}

static void *text(size_t size)
{
    char *made = static_cast<char *>(std::malloc(size));
    std::memset(made, 0, size);
    std::strcpy(made, TEXT(NAME_TEXT));
    return made;
}

[[gnu::noinline]] static void lose()
{
    for (int i = 0; i < 3; i++) {
        auto *made = new NAME_TYPE;
        made->next = text(200);
        text(300);
        made = nullptr;
    }
}

extern "C" [[gnu::visibility("default")]] void begin(const char *file, const char *how)
{
    int data = open(file, O_RDWR);
    auto *mapped = static_cast<void **>(mmap(nullptr, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE, data, 0));
    if (data < 0 || mapped == MAP_FAILED)
        std::exit(1);
    mapped[16] = text(10000);
    auto **held = new void *[100];
    for (int i = 0; i < 100; i++)
        held[i] = text(240);
    NAME_GLOBAL = held;
    NAME_LOCAL = text(600);
    lose();
    if (!std::strcmp(how, "damaged")) {
        auto *block = static_cast<char *>(text(200)), *after = static_cast<char *>(text(200));
        kept[0] = block, kept[1] = after;
        std::memcpy(block + 180, TEXT(NAME_TEXT), sizeof TEXT(NAME_TEXT));
    }
    std::thread([] { NAME_LOCAL = text(700), NAME_FUNCTION(); }).detach();
    while (!waiting)
        usleep(1000);
    if (!std::strcmp(how, "ticking"))
        std::thread(NAME_CALLER).detach();
    std::puts("ready");
    std::fflush(stdout);
    NAME_FUNCTION();
}
