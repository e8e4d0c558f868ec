/* A program that prints the true type of each of its blocks, as typed_truth.cpp does. Owners have values in std::function, std::any and
 * (with C++23) std::move_only_function, vectors, objects of std::make_shared, and with -DBOOST, containers of Boost. A fifth of the owners
 * is leaked. main has a vector in a local variable. Blocks of the standard library and of Boost are not printed.
 *
 *   typed_wrappers OWNERS SEED */
#include <any>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <unistd.h>
#include <unordered_map>
#include <vector>
#ifdef BOOST
#include <boost/container/flat_map.hpp>
#include <boost/container/list.hpp>
#include <boost/container/map.hpp>
#include <boost/container/small_vector.hpp>
#include <boost/container/vector.hpp>
#include <boost/intrusive_ptr.hpp>
#include <boost/smart_ptr.hpp>
#include <boost/unordered_map.hpp>
#endif
static uintptr_t last; /* the complement of the address of the last block */
void *operator new(size_t size) {
    void *made = malloc(size);
    last = ~(uintptr_t)made;
    return made;
}
void operator delete(void *block) noexcept { free(block); }
void operator delete(void *block, size_t) noexcept { free(block); }
template <class T> T *told(T *block, const char *type) {
    printf("%lx block %s\n", (unsigned long)block, type);
    return block;
}
[[maybe_unused]] static void told_last(const char *type) { printf("%lx block %s\n", (unsigned long)~last, type); }
struct Item {
    long id;
    Item *next;
    double price;
};
struct Wide {
    Item *first;
    long numbers[5];
    Item *second;
};
struct Tag {
    std::string name;
    Item *item;
};
struct Call { /* too large for the storage in std::function */
    Item *first, *second;
    long numbers[2];
    Wide *wide;
    void operator()() const { printf("%p", (const void *)first); }
};
struct SmallCall { /* in std::function itself */
    Wide *wide;
    void operator()() const { printf("%p", (const void *)wide); }
};
#ifdef BOOST
struct Counted {
    long references = 0;
    Item *item;
    long numbers[5];
};
static void intrusive_ptr_add_ref(Counted *one) { one->references++; }
static void intrusive_ptr_release(Counted *one) { one->references--; }
#endif
struct Owner {
    std::function<void()> call, small;
    std::any wide, item;
    std::shared_ptr<Tag> made;
    std::vector<Item *> items;
    std::map<long, std::vector<Tag>> tags;
    std::unordered_map<long, Tag> by_number;
#if __cpp_lib_move_only_function
    std::move_only_function<void()> moved;
#endif
#ifdef BOOST
    boost::container::vector<Item *> vector;
    boost::container::small_vector<Item *, 4> few, many;
    boost::container::flat_map<long, Item *> flat;
    boost::container::map<long, Tag> map;
    boost::container::list<Tag> list;
    boost::unordered_map<long, Tag> hash;
    boost::intrusive_ptr<Counted> counted;
    boost::shared_ptr<Tag> shared;
#endif
};
std::vector<Owner *> *owners;
static Item *item(long number) { return told(new Item{number, number % 3 ? nullptr : told(new Item{1, nullptr, 2}, "Item"), 0.5}, "Item"); }
static Wide *wide(long number) { return told(new Wide{item(number), {number}, item(number)}, "Wide"); }
static Owner *owner(long number) {
    Owner *made = told(new Owner, "Owner");
    Call call{item(1), item(2), {3, 4}, wide(5)};
    Wide value{item(number), {number}, item(number)};
    made->call = call;
#ifndef _LIBCPP_VERSION
    told_last("Call"); /* libc++ has an object of its own around it */
#endif
    made->small = SmallCall{wide(6)};
    made->wide = value;
    told_last("Wide");
    made->item = item(7);
    made->made = std::make_shared<Tag>(Tag{"a name that is longer than the buffer", item(8)});
    for (long at = 0; at < 5; at++) {
        made->items.push_back(item(at));
        made->tags[at].push_back(Tag{"short", item(at)});
        told(made->tags[at].data(), "Tag");
        made->by_number[at] = Tag{"another name that is longer than the buffer", item(at)};
    }
    told(made->items.data(), "Item *[8]");
#if __cpp_lib_move_only_function
    Call other{item(1), item(2), {3, 4}, wide(5)};
    made->moved = other;
    told_last("Call");
#endif
#ifdef BOOST
    for (long at = 0; at < 6; at++) {
        made->vector.push_back(item(at));
        made->many.push_back(item(at));
        made->map[at] = Tag{"the name of a tag in a map", item(at)};
        made->list.push_back(Tag{"the name of a tag in a list", item(at)});
        made->hash[at] = Tag{"the name of a tag in a table", item(at)};
        made->flat[at] = item(at);
    }
    for (long at = 0; at < 3; at++)
        made->few.push_back(item(at));
    told(made->vector.data(), "Item *[8]");
    told(made->many.data(), "Item *[8]");
    Counted *counted = told(new Counted, "Counted");
    counted->item = item(9);
    made->counted.reset(counted);
    made->shared = boost::make_shared<Tag>(Tag{"the name of a shared tag", item(10)});
#endif
    return made;
}
int main(int count, char **arguments) {
    long wanted = count > 1 ? atol(arguments[1]) : 100;
    std::vector<Wide *> local;
    owners = new std::vector<Owner *>;
    for (long at = 0; at < wanted; at++) {
        Owner *made = owner(at);
        if (at % 5)
            owners->push_back(made);
        local.push_back(wide(at));
    }
    local.shrink_to_fit();
    told(local.data(), "Wide *[1]");
    puts("ready");
    fflush(stdout);
    pause();
    printf("%zu", local.size());
}
