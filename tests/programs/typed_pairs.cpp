// A program that prints the true type of its own objects, as typed_truth.cpp does. All pairs are leaked. They have the content of vectors with
// two names, which are reachable.
//
//   typed_pairs COUNT SEED
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
#include <vector>
struct Name { char *bytes; unsigned long length; };
struct Pair { Name key, value; };
struct Bag { std::vector<Name> names; };
static std::vector<Bag *> *bags;
__attribute__((noinline)) static Name name(int n) { char text[64]; int size = snprintf(text, sizeof text, "name %d of this program", n); return {strdup(text), (unsigned long)size}; }
__attribute__((noinline)) static void leak(int n) { Pair *made = new Pair{name(n), name(n + 1)}; printf("%lx leaked Pair\n", (unsigned long)made); }
__attribute__((noinline)) static void bag(int n) {
    Bag *made = new Bag;
    made->names.reserve(2);
    for (int at = 0; at < 2; at++) made->names.push_back(name(n + at));
    printf("%lx reachable Bag\n%lx reachable Name[]\n", (unsigned long)made, (unsigned long)made->names.data());
    bags->push_back(made);
}
__attribute__((noinline)) static void clear_stack() { volatile char space[32768]; for (size_t at = 0; at < sizeof space; at++) space[at] = 0; }
int main(int argc, char **argv) {
    bags = new std::vector<Bag *>;
    for (int n = 0; n < (argc > 1 ? atoi(argv[1]) : 200); n++) { bag(n); leak(n); }
    clear_stack();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
