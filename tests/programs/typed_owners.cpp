// A program that prints the true type of each of its blocks, as typed_truth.c does: objects own maps, lists and deques, and a fifth
// of these objects is leaked; polymorphic classes with std::string as a template argument; structs smaller than their blocks.
//
//   typed_owners OWNERS SEED
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>
static bool leaking;
static unsigned long state = 1;
static unsigned chance(unsigned below) {
    state = state * 6364136223846793005ul + 1442695040888963407ul;
    return static_cast<unsigned>((state >> 33) % below);
}
template <typename T> static T *told(T *block, const char *type) {
    std::printf("%lx %s %s\n", reinterpret_cast<unsigned long>(block), leaking ? "leaked" : "reachable", type);
    return block;
}
#define NEW(type, ...) told(new type{__VA_ARGS__}, #type)
struct Leaf {
    long weight;
    Leaf *other;
};
struct Pair { /* malloc returns blocks of the same size for a Pair and for a Leaf */
    long key;
    Leaf *value;
    Pair *next;
};
struct Part {
    int number;
    Part *needs;
    std::string note;
};
template <typename T> struct Holder {
    virtual ~Holder() = default;
    T value;
    Part *part = nullptr;
};
using Name = std::string;
struct Owner {
    struct Private;
    Private *own;
};
struct Owner::Private {
    std::map<std::string, Part *> parts;
    std::list<Leaf *> leaves;
    std::deque<std::string> lines;
    Owner *owner;
    Holder<Name> *holder;
    Pair *pairs;
};
static struct {
    std::vector<std::unique_ptr<Owner>> owners;
} all;
static Part *part() {
    Part *one = NEW(Part, static_cast<int>(chance(1000)), nullptr, std::string(chance(40), 'n'));
    if (chance(2))
        one->needs = NEW(Part, 1, nullptr, "short");
    return one;
}
static Owner *owner() {
    Owner *made = leaking ? all.owners.back().get() : NEW(Owner);
    auto *own = NEW(Owner::Private);
    own->owner = made;
    if (!leaking)
        made->own = own;
    for (unsigned at = 1 + chance(4); at; at--) {
        own->parts[std::string(chance(30), 'k') + std::to_string(at)] = part();
        own->leaves.push_back(NEW(Leaf, static_cast<long>(chance(100)), nullptr));
        own->lines.push_back(std::string(chance(40), 'l'));
        own->pairs = NEW(Pair, static_cast<long>(chance(1000)), NEW(Leaf, 1, NEW(Leaf, 2, nullptr)), own->pairs);
    }
    auto *holder = new Holder<Name>;
    own->holder = told(holder, "Holder<std::string>");
    holder->part = part();
    return made;
}
int main(int argc, char **argv) {
    unsigned count = argc > 1 ? static_cast<unsigned>(std::atoi(argv[1])) : 200;
    state = argc > 2 ? std::strtoul(argv[2], nullptr, 0) : 1;
    for (unsigned at = 0; at < count; at++) {
        leaking = at % 5 == 4;
        Owner *made = owner();
        if (!leaking)
            all.owners.emplace_back(made);
        made = nullptr;
    }
    std::puts("ready");
    std::fflush(stdout);
    for (;;)
        pause();
}
