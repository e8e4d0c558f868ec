/* Walks boundary-tagged chunks of musl's oldmalloc (src/malloc/malloc.c before 1.2.1,
 * src/malloc/oldmalloc/ since): a header consists of the csize of the previous chunk, and the csize
 * of this chunk. A csize is a multiple of four words; bit 0 is set if the chunk is in use. A chunk
 * in use with size 0 ends a heap segment. */
#include "native.h"

#define OVERHEAD (2 * WORD)
#define ALIGN (4 * WORD)
#define AHEAD 2048u /* bytes */
#define ODD (ALIGN - 2) /* bits that must be 0 in a size */

enum { MORE, ENDS, DIFFERS, NO_SIZE }; /* also in ../allocators/musl/engine.py */

/* Read at most `capacity` blocks of chunks from *chunk on (updated). The header of each chunk is in
 * the piece, and agrees with the csize of the chunk before, which is *before (updated). No chunk
 * ends after `limit` minus a header. Returns why the walk stopped at *chunk. */
API int fl_walk_tags(const piece *p, uint64_t *chunk, uint64_t *before, uint64_t limit, uint64_t capacity, uint64_t *starts, uint64_t *sizes,
                     uint8_t *states, uint64_t *made) {
    uint64_t at = *chunk, last = *before, count = 0;
    uint64_t fetched = at - p->address; /* prefetched up to here */
    int code = MORE;
    while (count < capacity) {
        uint64_t offset = at - p->address;
        if (offset >= p->length || p->length - offset < OVERHEAD)
            break;
        prefetch_on(p->data, offset, AHEAD, &fetched);
        uint64_t psize = load(p->data + offset), csize = load(p->data + offset + WORD), size = csize & ~UINT64_C(1);
        if (psize != last) {
            code = DIFFERS;
            break;
        }
        if (csize == 1) {
            code = ENDS;
            break;
        }
        if (csize & ODD || !size || at > limit || limit - at < OVERHEAD || size > limit - at - OVERHEAD) {
            code = NO_SIZE;
            break;
        }
        starts[count] = at + OVERHEAD;
        sizes[count] = size - OVERHEAD;
        states[count++] = csize & 1 ? IN_USE : FREE;
        last = csize;
        at += size;
    }
    *chunk = at;
    *before = last;
    *made = count;
    return code;
}
