/* Variables whose declared types contradict what their memory looks like, and vectors of smart pointers. Prints their numbers of elements:
 * "NAME COUNT", then waits. Compiled with debug information or without. */
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <unistd.h>
#include <vector>

struct session {
    session *peer;
    char name[40];
    long id;
};
struct node {
    node *next;
    long value;
};
struct Order {
    std::unique_ptr<int> price;
    long id;
    long count;
};

session *g_array;          /* 100 structures, each of which begins with a pointer */
session **g_pointers;      /* 100 pointers to structures with a peer, which are no chains */
session *g_inside[100];    /* the same in the variable itself */
node *g_buckets[64];       /* a hash table, with three nodes in each chain */
std::vector<std::shared_ptr<session>> g_shared;
std::vector<std::weak_ptr<session>> g_weak;
std::vector<Order> g_orders;

static session *made(void) { return static_cast<session *>(calloc(1, sizeof(session))); }

int main() {
    g_array = static_cast<session *>(calloc(100, sizeof *g_array));
    g_pointers = static_cast<session **>(calloc(100, sizeof *g_pointers));
    for (int i = 0; i < 100; i++) {
        for (session *one : {&g_array[i], g_pointers[i] = made(), g_inside[i] = made()}) {
            one->peer = made();
            one->peer->peer = one == &g_array[i] ? made() : nullptr;
        }
        g_shared.push_back(i % 7 ? std::make_shared<session>() : nullptr);
        if (g_shared.back())
            g_weak.emplace_back(g_shared.back());
        g_orders.push_back({std::make_unique<int>(i), i, i});
    }
    for (int i = 0; i < 64; i++)
        for (int k = 0; k < 3; k++)
            g_buckets[i] = new node{g_buckets[i], k};
    printf("g_array 100\ng_pointers 100\ng_inside 100\ng_buckets 192\ng_shared 100\ng_weak %zu\ng_orders 100\nready\n", g_weak.size());
    fflush(stdout);
    for (;;)
        pause();
}
