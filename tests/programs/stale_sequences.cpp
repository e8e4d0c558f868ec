/* Vectors and deques whose heads are in blocks, with slots outside their elements that still hold pointers to blocks; and structures that look
 * like these and whose slots are in use. Prints "lost ADDRESS" for each block that only such a slot refers to, "held ADDRESS" for each that a
 * container has, "ready", and waits. */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <new>
#include <queue>
#include <stack>
#include <string>
#include <unistd.h>
#include <unordered_map>
#include <utility>
#include <vector>

#define NOINLINE __attribute__((noinline, noclone))

struct Order {
    char pad[200];
};

static uintptr_t hidden[20000]; /* complemented, so that they are not references */
static bool is_lost[20000];
static int noted;

NOINLINE static Order *made(bool lost) {
    Order *one = static_cast<Order *>(calloc(1, sizeof(Order)));
    hidden[noted] = ~reinterpret_cast<uintptr_t>(one);
    is_lost[noted++] = lost;
    return one;
}

using Orders = std::vector<Order *>;

/* 20 elements, of which the last 15 were removed. */
NOINLINE static void shorten(Orders &orders) {
    for (int i = 0; i < 20; i++)
        orders.push_back(made(i >= 5));
    orders.resize(5);
}

/* -- vectors in blocks */

struct Session {
    long id = 7;
    Orders orders;
    std::string name = "a session with a name that is long";
};
struct Shop {
    std::unique_ptr<Session> own;
    std::shared_ptr<Session> shared, separate;
    std::vector<Session> many;
    std::map<int, Session> by_number;
    std::unordered_map<std::string, Session> by_name;
    std::list<Session> listed;
    Session *next_to = nullptr;
};
Shop *g_shop;

NOINLINE static void vectors() {
    g_shop = new Shop;
    g_shop->own = std::make_unique<Session>();
    g_shop->shared = std::make_shared<Session>();
    g_shop->separate = std::shared_ptr<Session>(new Session);
    g_shop->next_to = new Session;
    g_shop->many.resize(3);
    g_shop->listed.resize(3);
    shorten(g_shop->own->orders);
    shorten(g_shop->shared->orders);
    shorten(g_shop->separate->orders);
    shorten(g_shop->next_to->orders);
    shorten(g_shop->many[1].orders);
    shorten(g_shop->listed.back().orders);
    for (int i = 0; i < 5; i++)
        shorten(g_shop->by_number[i].orders);
    for (const char *name : {"one", "two", "three"})
        shorten(g_shop->by_name[name].orders);
}

/* -- deques: 300 elements, of which 100 were removed at one end and 50 at the other */

struct Server {
    long id;
    std::deque<Order *> waiting;
};
std::deque<Order *> g_waiting;
Server *g_server;
std::vector<std::unique_ptr<std::deque<std::pair<long, Order *>>>> g_deques;
std::queue<Order *> g_queue;
std::stack<Order *> g_stack;
std::deque<Order *> g_whole, g_moved_from, *g_moved_to;

/* `count` elements, of which the first and last ones were removed: from chunks that were freed, and from those that are left. */
template <class Deque, class Make> NOINLINE static void cut(Deque &deque, int count, int first, int last, Make make) {
    for (int i = 0; i < count; i++)
        deque.push_back(make(i < first || i >= count - last));
    for (int i = 0; i < first; i++)
        deque.pop_front();
    for (int i = 0; i < last; i++)
        deque.pop_back();
}

NOINLINE static void deques() {
    cut(g_waiting, 300, 100, 50, made);
    g_server = new Server{7, {}};
    cut(g_server->waiting, 300, 70, 20, made);
    for (int i = 0; i < 3; i++) {
        g_deques.push_back(std::make_unique<std::deque<std::pair<long, Order *>>>());
        cut(*g_deques.back(), 40, 40 - i, 0, [](bool lost) { return std::pair<long, Order *>(5, made(lost)); });
    }
    for (int i = 0; i < 60; i++) {
        g_queue.push(made(i < 40));
        g_stack.push(made(i >= 20));
        g_moved_from.push_back(made(false));
        g_whole.push_front(made(false));
    }
    for (int i = 0; i < 40; i++) {
        g_queue.pop();
        g_stack.pop();
    }
    g_moved_to = new std::deque<Order *>(std::move(g_moved_from));
    g_whole.shrink_to_fit();
}

/* -- structures that are in use, but look like containers with stale slots */

struct Cursor {
    long id;
    Order **begin, **at, **end;
};
struct Iterators { /* an iterator at the beginning of a chunk looks like an empty vector of 512 bytes */
    std::deque<Order *> deque;
    std::deque<Order *>::iterator first;
};
template <int N> struct Small { /* a vector with elements of its own: begin, size, capacity */
    Order **begin = own;
    long size = 0, capacity = N;
    Order *own[N] = {};
};
union Either { /* a vector that may be three pointers */
    Orders orders;
    struct {
        Order **begin, **at, **end;
    } cursor;
    Either() { cursor = {}; }
    ~Either() {}
};
namespace own {
template <class T> struct vector {
    T *begin, *at, *end;
};
} // namespace own
struct Similar {
    Cursor cursor;
    own::vector<Order *> same;
    Either either;
    Iterators *iterators;
    Small<4> small;
    void *nothing;
};
Similar *g_similar;

NOINLINE static Order **array(int count) {
    Order **found = static_cast<Order **>(malloc(count * sizeof *found));
    for (int i = 0; i < count; i++)
        found[i] = made(false);
    return found;
}

NOINLINE static void similar() {
    g_similar = new Similar;
    g_similar->cursor = {7, array(50), nullptr, nullptr};
    g_similar->same = {array(50), nullptr, nullptr};
    g_similar->either.cursor = {array(50), nullptr, nullptr};
    g_similar->cursor.at = g_similar->cursor.begin + 20;
    g_similar->cursor.end = g_similar->cursor.begin + 50;
    g_similar->same.at = g_similar->same.begin;
    g_similar->same.end = g_similar->same.begin + 50;
    g_similar->either.cursor.at = g_similar->either.cursor.begin + 10;
    g_similar->either.cursor.end = g_similar->either.cursor.begin + 50;
    g_similar->iterators = new Iterators;
    for (int i = 0; i < 64; i++)
        g_similar->iterators->deque.push_back(made(false));
    g_similar->iterators->first = g_similar->iterators->deque.begin();
    g_similar->small.own[3] = made(false);
}

/* A block with the head of a deque that was destroyed, whose storage the next one has; `words`: as the next one's head was, empty. */
static void **g_destroyed;
static std::deque<Order *> *g_next;
NOINLINE static void destroyed() {
    g_destroyed = static_cast<void **>(calloc(12, sizeof(void *)));
    g_next = new std::deque<Order *>;
    memcpy(static_cast<void *>(g_destroyed), static_cast<void *>(g_next), sizeof *g_next);
    for (int i = 0; i < 60; i++)
        g_next->push_back(made(false));
}

/* Sessions that were destroyed in a vector, whose elements' storage others have now: far from any variable, at the end of a long list. */
struct Link {
    Link *next;
    Orders orders;
};
Link *g_first;
std::vector<Session> *g_destroyed_sessions;

NOINLINE static void reused() {
    for (int i = 0; i < 5000; i++)
        g_first = new Link{g_first, {}};
    g_destroyed_sessions = new std::vector<Session>(2);
    for (Session &one : *g_destroyed_sessions) {
        one.orders.reserve(700);
        one.orders.push_back(nullptr);
    }
    g_destroyed_sessions->resize(0);
    Link *last = g_first;
    while (last->next)
        last = last->next;
    for (Link *one : {last, g_first->next}) {
        one->orders.reserve(700);
        for (int i = 0; i < 700; i++)
            one->orders.push_back(made(false));
    }
}

/* Overwrites what earlier calls have left below the stack pointer. */
NOINLINE static void wipe() {
    volatile char space[65536];
    memset(const_cast<char *>(space), 0, sizeof space);
    __asm__ volatile("" : : "r"(space) : "memory");
}

int main() {
    vectors();
    deques();
    similar();
    destroyed();
    reused();
    wipe();
    for (int i = 0; i < noted; i++)
        printf("%s %#lx\n", is_lost[i] ? "lost" : "held", ~hidden[i]);
    printf("ready\n");
    fflush(stdout);
    for (;;)
        pause();
}
