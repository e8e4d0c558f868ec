/* Values of Rust's Arc and Rc after their two counters: {strong, weak, value}. ArcInner and
 * RcInner (library/alloc/src/sync.rs, rc.rs) are repr(C); Arc::into_raw returns the address of
 * the value. */
#include "interior_structures.h"

#define MOST_COUNTED (1u << 16)

int counted_at(const memory *m, const candidate *c) {
    uint64_t strong, weak;
    if (c->pointer - c->start != 2 * WORD || !read_word(m, c->start, &strong) || !read_word(m, c->start + WORD, &weak))
        return NOTHING;
    return strong && strong <= MOST_COUNTED && weak && weak <= MOST_COUNTED ? COUNTED_VALUE : NOTHING;
}
