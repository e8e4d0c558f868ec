// A program that frees a block of a C++ container twice, or at a wrong address. It prints the address first. Usage: crash_containers WORD.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#define SEPARATE __attribute__((noinline, noclone))

void *volatile kept; // so that the compiler does not remove calls of malloc
template <typename T> SEPARATE T *copy(const T &one) { // a second object that owns the same memory, as memcpy() makes it
    void *made = std::malloc(sizeof(T));
    kept = made;
    return static_cast<T *>(std::memcpy(made, static_cast<const void *>(&one), sizeof(T)));
}
template <typename T> SEPARATE void destroy(T *one) { one->~T(); }
// std::string::_M_dispose() of the library, which jumps to operator delete. Compilers call it, or inline it.
void dispose(std::string *) __asm__("_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE10_M_disposeEv");
void print(const void *block) { std::fprintf(stderr, "block=%p\n", block); }

SEPARATE void free_string() {
    auto *one = new std::string(100, 'a'), *other = copy(*one);
    print(one->data());
    delete one;
    dispose(other);
}
SEPARATE void free_vector() {
    auto *one = new std::vector<long>(40, 1), *other = copy(*one);
    print(one->data());
    delete one;
    destroy(other);
}
SEPARATE void free_map() {
    auto *one = new std::map<int, std::string>;
    for (int i = 0; i < 5; i++) (*one)[i] = std::string(50, 'm');
    std::string *third = copy((*one)[3]);
    print(third->data());
    destroy(third);
    delete one;
}
SEPARATE void free_shared() {
    auto *number = new long[1];
    std::shared_ptr<long> one(number), other(number);
    print(number);
    one.reset();
    other.reset();
}
SEPARATE void free_interior() {
    std::string one(100, 'z');
    char *data = &one[0], *inside = data + 16;
    std::memcpy(static_cast<void *>(&one), &inside, sizeof inside);
    print(data);
    dispose(&one);
}
SEPARATE void free_either(int wanted, char *first, char *second) { // the compiler jumps to free() from one place
    std::free(wanted ? first : second);
}

int main(int count, char **words) {
    const std::string word = words[1];
    if (word == "string") free_string();
    if (word == "vector") free_vector();
    if (word == "map") free_map();
    if (word == "shared") free_shared();
    if (word == "interior") free_interior();
    if (word == "either") {
        char *first = static_cast<char *>(std::malloc(64)), *second = static_cast<char *>(std::malloc(64));
        print(second);
        std::free(second);
        free_either(count > 5, first, second);
    }
    return 0;
}
