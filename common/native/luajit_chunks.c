/* Walks chunks of LuaJIT's allocator: see ../allocators/luajit/engine.py and layout.py. */
#include "native.h"

#define HEADER (2 * WORD)
#define LEAST (4 * WORD)
#define AHEAD 2048u /* bytes */

/* Also in ../allocators/luajit/layout.py and engine.py. */
#define PREVIOUS_IN_USE UINT64_C(1)
#define CHUNK_IN_USE UINT64_C(2)
#define FLAGS UINT64_C(7)
enum { MORE, ENDS, DIFFERS, NO_SIZE };

/* Read at most `capacity` blocks of chunks from *chunk on (updated), up to `limit` or a fencepost.
 * Only chunks whose headers are in the piece are read. *free: the size of the previous chunk if it
 * is free, else 0 (updated). Returns why the walk stopped at *chunk. */
API int fl_walk_luajit(const piece *p, uint64_t *chunk, uint64_t *free, uint64_t limit, uint64_t capacity, uint64_t *starts,
                       uint64_t *sizes, uint8_t *states, uint64_t *made) {
    uint64_t at = *chunk, before = *free, count = 0, fetched = at - p->address;
    int code = MORE;
    while (count < capacity) {
        uint64_t offset = at - p->address;
        if (at == limit) {
            code = ENDS;
            break;
        }
        if (offset >= p->length || p->length - offset < HEADER)
            break;
        prefetch_on(p->data, offset, AHEAD, &fetched);
        uint64_t previous = load(p->data + offset), head = load(p->data + offset + WORD), size = head & ~FLAGS;
        if (head == (WORD | PREVIOUS_IN_USE | CHUNK_IN_USE)) {
            code = ENDS;
            break;
        }
        if (head & FLAGS & ~(PREVIOUS_IN_USE | CHUNK_IN_USE) || size < LEAST || at > limit || size > limit - at) {
            code = NO_SIZE;
            break;
        }
        if (!(head & PREVIOUS_IN_USE) != (before != 0) || (before && previous != before)) {
            code = DIFFERS;
            break;
        }
        starts[count] = at + HEADER;
        sizes[count] = size - WORD;
        states[count++] = head & CHUNK_IN_USE ? IN_USE : FREE;
        before = head & CHUNK_IN_USE ? 0 : size;
        at += size;
    }
    *chunk = at;
    *free = before;
    *made = count;
    return code;
}
