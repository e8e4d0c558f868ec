/* Memory that a program aligned by itself, in a larger block. To free the block, the program stores
 * its address before the aligned memory: directly before it (OpenCV 4.10 system.cpp, Eigen 3.3
 * Memory.h), or in a header (OCaml 4.14 memory.c, caml_alloc_for_heap, which aligns to pages). */
#include "interior_structures.h"

#define PAGE 4096u
#define HEADER_WORDS 8u

int aligned_at(const memory *m, const candidate *c) {
    uint64_t most = c->pointer % PAGE ? !(c->pointer % (2 * WORD)) : HEADER_WORDS, value;
    for (uint64_t at = 1; at <= most && at * WORD <= c->pointer - c->start; at++)
        if (read_word(m, c->pointer - at * WORD, &value) && value == c->start)
            return ALIGNED;
    return NOTHING;
}
