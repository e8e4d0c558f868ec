// Objects of every sort of C++ class. Prints "ADDRESS SIZE TYPE" for each block, then "ready", and sleeps until it is killed.
// The type is written as the C++ library's own demangler writes it.
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <malloc.h>
#include <unistd.h>

#include "types_library.h"

namespace osgeo { namespace proj { namespace datum {
struct Ellipsoid { virtual ~Ellipsoid() {} double axis = 1; };
} } }

struct Abstract { virtual ~Abstract() {} virtual int act() = 0; };
struct Concrete : Abstract { int act() override { return 1; } };
struct Left { virtual ~Left() {} long l = 1; };
struct Right { virtual ~Right() {} long r = 2; };
struct Both : Left, Right { long b = 3; };
struct Base { virtual ~Base() {} long v = 4; };
struct VirtualLeft : virtual Base { long vl = 5; };
struct VirtualRight : virtual Base { long vr = 6; };
struct Diamond : VirtualLeft, VirtualRight { long d = 7; };
struct OverLibrary : virtual library::Shape { int sides() override { return 9; } };
template <class T, int N> struct Box { virtual ~Box() {} T t{}; };
template <> struct Box<char, 0> { virtual ~Box() {} };
namespace { struct Hidden { virtual ~Hidden() {} }; }
struct alignas(16) Aligned { virtual ~Aligned() {} long pad[3] = {}; };
struct Plain { unsigned long a = 0x11223344; };

#ifdef __arm__ // this C++ ABI also stores the size of an element, and aligns nothing
#define COOKIE 8
#define ALIGNED_COOKIE 8
#else
#define COOKIE sizeof(size_t)
#define ALIGNED_COOKIE 16
#endif

static long expected_arrays;

static void say(const void *block, const char *type) {
    std::printf("%p %zu %s\n", block, malloc_usable_size(const_cast<void *>(block)), type);
}

// Stops inside the constructor of a base class: the object's first word then refers to a construction vtable.
struct Throwing : virtual Base {
    long t = 8;
    Throwing();
};
struct Whole : Throwing { long w = 9; virtual void own() {} };
static char frozen[256];
Throwing::Throwing() { std::memcpy(frozen, static_cast<void *>(this), sizeof(Throwing)); }

static int handler(int x) { return x + expected_arrays; }
static int other(int x) { return x - 1; }
typedef int (*operation)(int);
extern "C" { extern const operation c_operations[3] = {handler, other, handler}; }
struct Session { const operation *ops; long id; };
struct Callback { operation call; long id; };

int main() {
    say(new osgeo::proj::datum::Ellipsoid, "osgeo::proj::datum::Ellipsoid");
    say(new Concrete, "Concrete");
    say(new Left, "Left");
    say(new Both, "Both");
    say(new VirtualLeft, "VirtualLeft");
    say(new Diamond, "Diamond");
    say(new OverLibrary, "OverLibrary");
    say(new Box<int, 3>, "Box<int, 3>");
    say(new Box<char, 0>, "Box<char, 0>");
    say(new Box<Box<std::string, -1>, 7>, "Box<Box<std::string, -1>, 7>");
    say(new Box<int (*)(char const *, ...), 1>, "Box<int (*)(char const*, ...), 1>");
    say(new Hidden, "(anonymous namespace)::Hidden");
    struct Local { virtual ~Local() {} };
    say(new Local, "main::Local");
    say(new std::runtime_error("of the C++ library"), "std::runtime_error");
    say(new std::bad_alloc, "std::bad_alloc");
    say(new std::stringstream, "std::__cxx11::basic_stringstream<char, std::char_traits<char>, std::allocator<char> >");
    say(library::shape(), "library::Square");
    say(library::hidden(), "library::(anonymous namespace)::Secret");
    say(new library::Circle, "library::Circle");
    auto lambda = [](int x) { return x; };
    say(new Box<decltype(lambda) *, 2>, "Box<main::{lambda(int)#1}*, 2>");
    char *array = reinterpret_cast<char *>(new Both[5]);
    say(array - COOKIE, "Both[5]");
    array = reinterpret_cast<char *>(new Left[1]);
    say(array - COOKIE, "Left[1]");
    array = reinterpret_cast<char *>(new Aligned[3]);
    say(array - ALIGNED_COOKIE, "Aligned[3]");
    new Whole;
    void *half = std::malloc(sizeof(Throwing));
    std::memcpy(half, frozen, sizeof(Throwing));
    say(half, "Throwing in Whole");
    Session *session = static_cast<Session *>(std::malloc(sizeof(Session)));
    *session = {c_operations, 4};
    say(session, "table c_operations");
    Callback *callback = static_cast<Callback *>(std::malloc(sizeof(Callback)));
    *callback = {handler, 5};
    say(callback, "function handler(int)");
    say(std::fopen("/dev/null", "r"), "FILE");
    say(new std::string("short one"), "std::string");
    say(new std::string("this one is long enough to need a block of its own"), "std::string");
    say(new Plain, "");
    long *numbers = static_cast<long *>(std::malloc(64));
    for (int i = 0; i < 8; i++) numbers[i] = i + 1;
    say(numbers, "");
    std::printf("ready\n");
    std::fflush(stdout);
    for (;;) pause();
}
