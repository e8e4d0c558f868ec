// Leaks cycles whose members were allocated in every order. Prints the number of each kind, then "ready", and waits.
//
// objects: three classes of one size, each of which refers to the next. structures: three plain ones of different sizes. owner: an
// object and its array, which is larger and refers back. The last cycle of each kind is held, so that stale words in registers do
// not matter.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <unistd.h>

namespace {

constexpr int ROUNDS = 40;

void *volatile held[3];

struct Node {
    Node *next = nullptr;
    virtual ~Node() = default;
};
struct Alpha : Node {
    long own[3] = {1, 2, 3};
};
struct Beta : Node {
    long own[3] = {4, 5, 6};
};
struct Gamma : Node {
    long own[3] = {7, 8, 9};
};

template <class Class>
Node *object(void *at) {
    return new (at) Class;
}

// The three blocks, allocated in this order.
void allocate(const int *order, const std::size_t *sizes, void **made) {
    for (int at = 0; at < 3; at++)
        std::memset(made[order[at]] = std::malloc(sizes[order[at]]), 0, sizes[order[at]]);
}

void lose_objects(const int *order) {
    const std::size_t sizes[] = {sizeof(Alpha), sizeof(Beta), sizeof(Gamma)};
    void *made[3];
    allocate(order, sizes, made);
    Node *nodes[] = {object<Alpha>(made[0]), object<Beta>(made[1]), object<Gamma>(made[2])};
    for (int at = 0; at < 3; at++)
        nodes[at]->next = nodes[(at + 1) % 3];
    held[0] = made[0];
}

void lose_structures(const int *order) {
    const std::size_t sizes[] = {56, 88, 120};
    void *made[3];
    allocate(order, sizes, made);
    for (int at = 0; at < 3; at++)
        static_cast<void **>(made[at])[2] = made[(at + 1) % 3];
    held[1] = made[0];
}

void lose_owner(const int *order) {
    const std::size_t sizes[] = {sizeof(Beta), 200, 300};
    void *made[3];
    allocate(order, sizes, made);
    object<Beta>(made[0])->next = static_cast<Node *>(made[1]);
    static_cast<void **>(made[1])[4] = made[2];
    static_cast<void **>(made[2])[7] = made[0];
    held[2] = made[0];
}

void lose_all() {
    for (int round = 0; round < ROUNDS; round++) {
        int order[] = {0, 1, 2};
        do {
            lose_objects(order);
            lose_structures(order);
            lose_owner(order);
        } while (std::next_permutation(order, order + 3));
    }
}

} // namespace

int main() {
    lose_all();
    std::printf("%d %zu\n", ROUNDS * 6 - 1, sizeof(Beta));
    std::puts("ready");
    std::fflush(stdout);
    for (;;)
        pause();
}
