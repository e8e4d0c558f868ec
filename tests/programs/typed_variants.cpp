// A program that prints the true type of each of its blocks, as typed_truth.c does: std::variant, std::optional and std::unordered_map of
// smart pointers, arrays of objects with destructors, and classes without virtual functions.
//
//   typed_variants COUNT SEED
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <unistd.h>
#include <unordered_map>
#include <variant>
#include <vector>

static unsigned long state = 1;
static unsigned random_number() {
    state = state * 6364136223846793005ul + 1442695040888963407ul;
    return static_cast<unsigned>(state >> 33);
}

static bool leaking;
static void told(const void *p, const char *type) { std::printf("%lx %s %s\n", reinterpret_cast<unsigned long>(p), leaking ? "leaked" : "reachable", type); }

struct Customer {
    std::string name;
    unsigned id;
    Customer *referrer;
    ~Customer() { referrer = nullptr; }
};
struct Item {
    Customer *seller;
    double price;
    long quantity;
    ~Item() { seller = nullptr; }
};
struct Invoice {
    Customer *customer;
    Item *items;
    unsigned count;
    std::unique_ptr<Customer> contact;
};
struct Refund {
    Invoice *invoice;
    std::optional<Item> item;
    long cents;
};
using Event = std::variant<long, Invoice *, std::unique_ptr<Refund>>;
struct Ledger {
    Event events[3];
    std::shared_ptr<Customer> owner;
    std::unordered_map<unsigned, std::unique_ptr<Refund>> refunds;
    std::vector<Invoice *> invoices;
};
struct Office {
    std::deque<Ledger *> ledgers;
    std::map<unsigned, Ledger *> by_number;
};
static Office *office;

template <typename T, typename... A> static T *made(const char *type, A &&...args) {
    T *p = new T{std::forward<A>(args)...};
    told(p, type);
    return p;
}

static Customer *customer(Customer *referrer) { return made<Customer>("Customer", std::string(random_number() % 30, 'c'), random_number(), referrer); }

static Invoice *invoice(Customer *of) {
    unsigned count = 2 + random_number() % 5;
    Item *items = new Item[count];
    told(reinterpret_cast<char *>(items) - sizeof(std::size_t), "Item[]");
    for (unsigned at = 0; at < count; at++) {
        items[at].seller = of;
        items[at].price = at * 1.5;
        items[at].quantity = random_number() % 10;
    }
    return made<Invoice>("Invoice", of, items, count, std::unique_ptr<Customer>(random_number() % 2 ? customer(of) : nullptr));
}

static Refund *refund(Invoice *of) {
    Refund *r = made<Refund>("Refund", of, std::nullopt, static_cast<long>(random_number()));
    if (random_number() % 2)
        r->item = Item{of->customer, 2.5, 1};
    return r;
}

static Ledger *ledger() {
    Ledger *l = made<Ledger>("Ledger");
    Customer *c = customer(nullptr), *d = customer(c);
    l->owner = std::shared_ptr<Customer>(c);
    l->events[0] = static_cast<long>(random_number());
    l->events[1] = invoice(d);
    l->events[2] = std::unique_ptr<Refund>(refund(std::get<1>(l->events[1])));
    for (unsigned at = 0; at < 3; at++) {
        Invoice *i = invoice(at ? c : d);
        l->invoices.push_back(i);
        l->refunds[random_number()] = std::unique_ptr<Refund>(refund(i));
    }
    return l;
}

int main(int argc, char **argv) {
    unsigned count = argc > 1 ? static_cast<unsigned>(std::atoi(argv[1])) : 500;
    state = argc > 2 ? std::strtoul(argv[2], nullptr, 0) : 1;
    office = new Office;
    told(office, "Office");
    for (unsigned at = 0; at < count; at++) {
        leaking = at % 5 == 4;
        Ledger *l = ledger();
        if (!leaking) {
            office->ledgers.push_back(l);
            office->by_number[random_number()] = l;
        }
        l = nullptr;
    }
    std::puts("ready");
    std::fflush(stdout);
    pause();
}
