/* Containers with slots beyond their length, which still hold pointers to blocks: vectors, and Rust's channels and BTreeMaps as rustc 1.95 lays
 * them out; and structures that look like these and whose slots are in use. Prints "lost ADDRESS" for each block that only such a slot refers
 * to, "held ADDRESS" for each that a container has, "ready", and waits. */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <unistd.h>
#include <utility>
#include <vector>

#define NOINLINE __attribute__((noinline, noclone))
using word = uint64_t;

struct Order {
    char pad[200];
};

static uintptr_t hidden[20000]; /* complemented, so that they are not references */
static bool is_lost[20000];
static int noted;

NOINLINE static Order *made(bool lost) {
    Order *one = new Order();
    memset(one, 0, sizeof *one);
    hidden[noted] = ~reinterpret_cast<uintptr_t>(one);
    is_lost[noted++] = lost;
    return one;
}
static word as_word(void *pointer) { return reinterpret_cast<word>(pointer); }

/* -- vectors */

struct Server {
    long id;
    std::vector<Order *> orders;
};
struct Cursor {
    Order **begin, **at, **end;
};
namespace own {
template <class T> struct vector {
    T *begin, *at, *end;
};
} // namespace own
std::vector<Order *> g_popped, g_moved_from, g_grown;
Server g_server;
std::vector<std::unique_ptr<Order>> g_owned;
Cursor g_cursor;             /* elements on both sides of `at` are in use */
own::vector<Order *> g_same; /* only its name is that of a vector */

NOINLINE static void vectors() {
    for (int i = 0; i < 100; i++) {
        g_popped.push_back(made(i >= 10));
        g_server.orders.push_back(made(true));
        g_owned.push_back(std::unique_ptr<Order>(made(false)));
        g_moved_from.push_back(made(false));
        g_grown.push_back(made(false)); /* old arrays are freed */
    }
    g_popped.resize(10);
    g_server.orders.clear();
    g_owned.reserve(1000);
    std::vector<Order *> *moved = new std::vector<Order *>(std::move(g_moved_from));
    g_moved_from.swap(*moved);
    delete moved;
    g_cursor.begin = new Order *[100];
    g_same.begin = new Order *[100];
    for (int i = 0; i < 100; i++) {
        g_cursor.begin[i] = made(false);
        g_same.begin[i] = made(false);
    }
    g_cursor.at = g_cursor.begin + 50;
    g_cursor.end = g_cursor.begin + 100;
    g_same.at = g_same.begin;
    g_same.end = g_same.begin + 100;
}

/* -- channels */

word *g_list, *g_array, *g_list_like, *g_array_like;

/* An unbounded channel after 100 messages, of which 50 were received. `sound`: no thread is about to change it. */
NOINLINE static word *list_channel(bool sound) {
    const int head = 32 + 19, tail = 3 * 32 + 7;
    word *channel = static_cast<word *>(aligned_alloc(128, 512)), *blocks[4];
    memset(channel, 0, 512);
    for (int number = 1; number < 4; number++) {
        blocks[number] = static_cast<word *>(calloc(63, 8)); /* 31 slots {message, state}, the next block */
        for (int slot = 0; slot < 31 && number * 32 + slot < tail; slot++) {
            bool received = number * 32 + slot < head;
            blocks[number][2 * slot] = as_word(made(received && sound));
            blocks[number][2 * slot + 1] = received && (sound || slot != 7) ? 3 : 1;
        }
        if (number > 1)
            blocks[number - 1][62] = as_word(blocks[number]);
    }
    channel[0] = head << 1 | 1;
    channel[1] = as_word(blocks[1]);
    channel[16] = tail << 1;
    channel[17] = as_word(blocks[3]);
    return channel;
}

/* A bounded channel for 100 messages, after 210, of which 170 were received. */
NOINLINE static word *array_channel(bool sound) {
    const word capacity = 100, mark = 128, lap = 256, head = lap + 70, tail = 2 * lap + 10;
    word *channel = static_cast<word *>(aligned_alloc(128, 640)), *slots = static_cast<word *>(malloc(capacity * 16));
    memset(channel, 0, 640);
    for (word slot = 0; slot < capacity; slot++) {
        bool holds = slot >= 70 || slot < 10;
        slots[2 * slot] = holds ? (slot >= 70 ? lap : 2 * lap) + slot + 1 : 2 * lap + slot;
        slots[2 * slot + 1] = as_word(made(!holds && sound));
    }
    if (!sound)
        slots[2 * 33] += 1;
    channel[0] = head;
    channel[16] = tail;
    const word rest[] = {as_word(slots), capacity, capacity, lap, mark};
    memcpy(channel + 32, rest, sizeof rest);
    return channel;
}

/* -- maps */

struct Map {
    word *root, height, length;
};
Map g_numbers, g_intervals, g_wrong;

/* A map of one internal node with five entries, and six leaves with as many; KEYS words of a key, then a pointer. Slots behind the entries have
 * other pointers. `length`: the number of entries that it says that it has, 0: the right one. */
NOINLINE static void fill_map(Map &map, int keys, bool lost, word length) {
    const int end = 1 + 11 * keys + 11; /* the word with the index and the number of entries; then edges */
    word next = 1000;
    word *nodes[7];
    for (word *&node : nodes)
        node = static_cast<word *>(malloc((end + 1 + (&node == nodes ? 12 : 0)) * 8));
    for (int leaf = 0; leaf < 6; leaf++) {
        for (int place = 0; place < 2; place++) { /* a leaf, then the entry behind it in the root */
            word *node = place ? nodes[0] : nodes[leaf + 1];
            if (place && leaf == 5)
                continue;
            for (int entry = place ? leaf : 0; entry < (place ? leaf + 1 : 5); entry++) {
                for (int at = 0; at < keys; at++)
                    node[1 + keys * entry + at] = next++;
                node[1 + 11 * keys + entry] = as_word(made(false));
            }
        }
    }
    for (word *node : nodes) {
        for (int entry = 5; entry < 11; entry++) {
            for (int at = 0; at < keys; at++)
                node[1 + keys * entry + at] = 17 * entry;
            node[1 + 11 * keys + entry] = lost ? as_word(made(true)) : 0;
        }
        node[0] = 0;
        node[end] = 5 << 16;
    }
    for (int leaf = 0; leaf < 6; leaf++) {
        nodes[0][end + 1 + leaf] = as_word(nodes[leaf + 1]);
        nodes[leaf + 1][0] = as_word(nodes[0]);
        nodes[leaf + 1][end] |= leaf;
    }
    for (int edge = 6; edge < 12; edge++)
        nodes[0][end + 1 + edge] = 0;
    map = {nodes[0], 1, length ? length : 35};
}

/* Overwrites what earlier calls have left below the stack pointer. */
NOINLINE static void wipe() {
    volatile char room[65536];
    memset(const_cast<char *>(room), 0, sizeof room);
}

int main() {
    vectors();
    g_list = list_channel(true);
    g_array = array_channel(true);
    g_list_like = list_channel(false);
    g_array_like = array_channel(false);
    fill_map(g_numbers, 1, true, 0);
    fill_map(g_intervals, 2, false, 0); /* both words of its keys are in ascending order */
    fill_map(g_wrong, 1, false, 34);
    wipe();
    for (int i = 0; i < noted; i++)
        printf("%s %#lx\n", is_lost[i] ? "lost" : "held", ~hidden[i]);
    printf("ready\n");
    fflush(stdout);
    for (;;)
        pause();
}
