/* A C++ program that prints the true type of the objects that it allocates; see typed_truth.c.
 *
 *   typed_truth BLOCKS SEED
 *
 * Classes with and without virtual functions, in containers of the standard library. */
#include <cstdio>
#include <cstdlib>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unistd.h>
#include <unordered_map>
#include <vector>

static unsigned long seed = 1, blocks;
static bool leaked;

static unsigned long drawn(unsigned long below) {
    seed = seed * 6364136223846793005ul + 1442695040888963407ul;
    return (seed >> 33) % below;
}

static void *made(size_t size, const char *type) {
    void *block = calloc(1, size);
    printf("%lx %s %s\n", (unsigned long)block, leaked ? "leaked" : "reachable", type);
    blocks++;
    return block;
}

#define RECORDED(type)                                            \
    static void *operator new(size_t size) { return made(size, #type); } \
    static void operator delete(void *block) { free(block); }

namespace shop {

struct Address {
    RECORDED(shop::Address)
    std::string street;
    long number;
    Address *previous;
};

struct Item {
    RECORDED(shop::Item)
    Item *next;
    const char *label;
    double price;
};

class Party {
public:
    RECORDED(shop::Party)
    virtual ~Party() = default;
    std::string name;
    Address *address = nullptr;
};

class Person : public Party {
public:
    RECORDED(shop::Person)
    Person *friends = nullptr;
    long born = 0;
};

class Company : public Party {
public:
    RECORDED(shop::Company)
    std::vector<Person *> staff;
    std::unique_ptr<Item> mascot;
};

struct Order {
    RECORDED(shop::Order)
    Party *customer;
    std::vector<Item *> items;
    std::shared_ptr<Address> destination;
    std::list<Item *> gifts;
};

template <typename Value> struct Box {
    RECORDED(shop::Box<shop::Order>)
    Value *value;
    Box *other;
};

struct Shop {
    std::map<std::string, Order *> orders;
    std::unordered_map<long, Party *> parties;
    std::vector<Company *> companies;
    Item *first = nullptr;
    Box<Order> *boxes = nullptr;
};

} // namespace shop

using namespace shop;

static Shop the_shop;

static __attribute__((noinline)) Address *new_address() {
    auto *one = new Address();
    one->street = "a street that is long enough for the heap " + std::to_string(drawn(1000));
    one->number = (long)drawn(200);
    if (drawn(4) == 0) {
        one->previous = new Address();
        one->previous->street = "another street that is long enough for the heap";
    }
    return one;
}

static __attribute__((noinline)) Item *new_item() {
    auto *one = new Item();
    one->label = "label";
    one->price = 0.5 + (double)drawn(100);
    return one;
}

static __attribute__((noinline)) Person *new_person() {
    auto *one = new Person();
    one->name = "person " + std::to_string(drawn(1000));
    one->address = new_address();
    one->born = 1950 + (long)drawn(60);
    return one;
}

static __attribute__((noinline)) Company *new_company() {
    auto *one = new Company();
    one->name = "a company with a name that does not fit in place " + std::to_string(drawn(1000));
    one->address = new_address();
    for (unsigned long i = 1 + drawn(4); i; i--) one->staff.push_back(new_person());
    if (drawn(2)) one->mascot.reset(new_item());
    return one;
}

static __attribute__((noinline)) Order *new_order(Party *customer) {
    auto *one = new Order();
    one->customer = customer;
    for (unsigned long i = 1 + drawn(4); i; i--) one->items.push_back(new_item());
    one->destination = std::shared_ptr<Address>(new_address());
    for (unsigned long i = drawn(3); i; i--) one->gifts.push_back(new_item());
    return one;
}

static __attribute__((noinline)) Party *any_party() {
    return the_shop.parties.empty() ? nullptr : the_shop.parties.begin()->second;
}

static __attribute__((noinline)) void keep(unsigned long kind) {
    if (kind == 0) {
        the_shop.orders["order number " + std::to_string(drawn(1000000))] = new_order(any_party());
    } else if (kind == 1) {
        the_shop.parties[(long)blocks] = drawn(2) ? (Party *)new_person() : (Party *)new_company();
    } else if (kind == 2) {
        the_shop.companies.push_back(new_company());
    } else if (kind == 3) {
        Item *one = new_item();
        one->next = the_shop.first;
        the_shop.first = one;
    } else {
        auto *one = new Box<Order>();
        one->value = new_order(any_party());
        one->other = the_shop.boxes;
        the_shop.boxes = one;
    }
}

static __attribute__((noinline)) void lose(unsigned long kind) {
    leaked = true;
    if (kind == 0) new_order(any_party());
    else if (kind == 1) new_person();
    else if (kind == 2) new_company();
    else if (kind == 3) new_item()->next = new_item();
    else (new Box<Order>())->value = new_order(any_party());
    leaked = false;
}

static __attribute__((noinline)) void build(unsigned long wanted) {
    while (blocks < wanted) {
        if (drawn(5)) keep(drawn(5));
        else lose(drawn(5));
    }
}

static __attribute__((noinline)) void clear_stack() {
    volatile char space[16384];
    for (size_t i = 0; i < sizeof space; i++) space[i] = 0;
}

int main(int argc, char **argv) {
    unsigned long wanted = argc > 1 ? strtoul(argv[1], nullptr, 10) : 20000;
    seed = argc > 2 ? strtoul(argv[2], nullptr, 10) : 1;
    static char buffer[1 << 16];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    build(wanted);
    clear_stack();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
