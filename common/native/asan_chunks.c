/* Reads AddressSanitizer's chunks of one size class by their headers: see
 * ../allocators/asan/engine.py and layout.py. */
#include "native.h"

#define HEADER 16u
#define MAGIC UINT64_C(0xCC6E96B9CC6E96B9)
#define AHEAD 4096u /* bytes */

/* Also in ../allocators/asan/layout.py and engine.py. */
enum { UNUSED, ALLOCATED = 2, QUARANTINED, DAMAGED = 255 };

/* Return the offset of a chunk's header in the piece; UINT64_MAX if the chunk refers to a header
 * outside of the chunk. */
INLINE uint64_t header_of(const piece *p, uint64_t at, uint64_t chunk) {
    if (load(p->data + at) != MAGIC)
        return at;
    uint64_t header = load(p->data + at + WORD) - p->address;
    return header % HEADER == (0 - p->address) % HEADER && header > at && header < at + chunk - HEADER ? header : UINT64_MAX;
}

/* Read chunks of `chunk` bytes (at least 32); the piece consists of whole chunks. Outputs for
 * each: block address, size, state, and the stacks that allocated and freed it (0: none). */
API void fl_asan_chunks(const piece *p, uint64_t chunk, uint64_t *blocks, uint64_t *sizes, uint8_t *states, uint32_t *stacks,
                        uint32_t *frees) {
    uint64_t count = p->length / chunk, fetched = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = i * chunk, header = header_of(p, at, chunk);
        prefetch_on(p->data, at, AHEAD, &fetched);
        uint64_t place = header == UINT64_MAX ? at : header, first = load(p->data + place);
        uint64_t capacity = at + chunk - place - HEADER, size = first >> 32 | (first >> 16 & 0xFFFF) << 32;
        uint8_t state = (uint8_t)first;
        if (state == UNUSED) {
            size = capacity;
        } else if (header == UINT64_MAX || (state != ALLOCATED && state != QUARANTINED) || !size || size > capacity) {
            size = capacity;
            state = DAMAGED;
        }
        blocks[i] = p->address + place + HEADER;
        sizes[i] = size;
        states[i] = state;
        stacks[i] = (uint32_t)load(p->data + place + WORD);
        frees[i] = state == QUARANTINED && size >= WORD ? (uint32_t)load(p->data + place + HEADER) : 0;
    }
}
