/* A program with the associative containers of the C++ library, which prints the true type of each of their nodes. Some containers leak.
 *
 *   typed_trees COUNT */
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <unistd.h>
#include <unordered_map>

#define NOINLINE __attribute__((noinline))
#ifdef _LIBCPP_VERSION
#define LIBRARY "std::__1::"
#define STRING "std::__1::basic_string<char, std::__1::char_traits<char>, std::__1::allocator<char> >"
#define TREE_OF_ORDERS LIBRARY "__tree_node<" LIBRARY "__value_type<long, Order>, void *>"
#define TREE_OF_NAMES LIBRARY "__tree_node<" LIBRARY "__value_type<" STRING ", Order>, void *>"
#define TREE_OF_POINTERS LIBRARY "__tree_node<Order *, void *>"
#define HASH_OF_ORDERS LIBRARY "__hash_node<" LIBRARY "__hash_value_type<long, Order>, void *>"
enum { BEFORE_HASH_VALUE = 16 };
#else
#define STRING "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >"
#define TREE_OF_ORDERS "std::_Rb_tree_node<std::pair<long const, Order> >"
#define TREE_OF_NAMES "std::_Rb_tree_node<std::pair<const " STRING ", Order> >"
#define TREE_OF_POINTERS "std::_Rb_tree_node<Order*>"
#define HASH_OF_ORDERS "std::__detail::_Hash_node<std::pair<long const, Order>, false>"
enum { BEFORE_HASH_VALUE = 8 };
#endif
enum { BEFORE_TREE_VALUE = 32 };

struct Order { long number; double price; const char *note; };
struct Shop {
    std::map<long, Order> orders;
    std::map<std::string, Order> names;
    std::multiset<Order *> open;
    std::unordered_map<long, Order> index;
    std::map<long, std::map<long, Order>> years;
};
__attribute__((used)) Shop *shop; /* the optimizer would remove a variable that is only written */

template <class T> static void print(const T &container, int before, const char *type) {
    for (auto &value : container) std::printf("%lx - %s\n", (unsigned long)&value - before, type);
}

static NOINLINE Shop *build(int count) {
    Shop *made = new Shop;
    for (int at = 0; at < count; at++) {
        Order order{at, at * 1.5, "static text"};
        Order *known = &made->orders.emplace(at * 7 % count, order).first->second;
        made->open.insert(known);
        made->names.emplace("the name of an order: " + std::to_string(at), order);
        made->index.emplace(at, order);
        made->years[at % 4].emplace(at, order);
    }
    print(made->orders, BEFORE_TREE_VALUE, TREE_OF_ORDERS);
    print(made->names, BEFORE_TREE_VALUE, TREE_OF_NAMES);
    print(made->open, BEFORE_TREE_VALUE, TREE_OF_POINTERS);
    print(made->index, BEFORE_HASH_VALUE, HASH_OF_ORDERS);
    for (auto &year : made->years) print(year.second, BEFORE_TREE_VALUE, TREE_OF_ORDERS);
    return made;
}

static NOINLINE void leak(int count) {
    for (int at = 0; at < 3; at++) build(count / 4 + at);
}

static NOINLINE void wipe_stack() {
    volatile char unused[1 << 16];
    for (unsigned at = 0; at < sizeof unused; at++) unused[at] = 0;
}

int main(int argc, char **argv) {
    int count = argc > 1 ? std::atoi(argv[1]) : 100;
    shop = build(count);
    leak(count);
    wipe_stack();
    std::puts("ready");
    std::fflush(stdout);
    pause();
}
