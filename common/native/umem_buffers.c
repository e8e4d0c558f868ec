/* Blocks in slabs' buffers: after malloc()'s tags, or as umem_alloc() returned them (malloc.c and
 * umem.c of OpenSolaris' usr/src/lib/libumem/common). Result: ../allocators/umem/engine.py. */
#include "blocks.h"
#include "umem_slabs.h"

#include <stdlib.h>

#define MAX_TAGGED (UINT64_C(1) << 18)
#define MALLOC_MAGIC 0x3A10C000u
#define SECOND_MAGIC 0x16BA7000u
#define FREED 0xDEADBEEFu
#define ENCODED 251u
#define TAG 8u
#define SECOND_ALIGN 16u
#define UNTAGGED UINT64_MAX
#define AHEAD 64u /* chunks */

enum { UNREADABLE = 1, DAMAGED }; /* also in ../allocators/umem/engine.py */

/* The size in a tag, or UNTAGGED. */
INLINE uint64_t tagged_size(const uint8_t *tag, uint32_t magic, uint64_t least, uint64_t most) {
    uint32_t size = load32(tag);
    return size + load32(tag + 4) == magic && size >= least && size <= most ? size : UNTAGGED;
}

/* The size that one half of a damaged tag still has (no size is 0). */
static uint64_t damaged(const cache *c, const uint8_t *tag, uint32_t magic) {
    uint64_t least = c->least > c->tag - 1 ? c->least : c->tag - 1, size = load32(tag), other = magic - load32(tag + 4);
    if (load32(tag + 4) == FREED)
        return 0;
    if (size > least && size <= c->bufsize)
        return size;
    other &= UINT32_MAX;
    return other > least && other <= c->bufsize ? other : 0;
}

/* The size requested of umem_alloc(): from a debugging cache's redzone, else the class's. */
static uint64_t requested(const cache *c, const uint8_t *chunk) {
    if (c->buftag && c->buftag <= c->chunksize - 8 && c->buftag % 4 == 0) {
        uint32_t encoded = load32(chunk + c->buftag + 4);
        if (encoded % ENCODED == 1 && encoded / ENCODED && encoded / ENCODED <= c->bufsize)
            return encoded / ENCODED;
    }
    return c->bufsize;
}

typedef struct {
    uint64_t *starts, *sizes;
    uint8_t *states;
    words *troubles;
} output;

static int trouble(const output *out, uint64_t code, uint64_t number, uint64_t chunk, uint64_t size, uint64_t status) {
    return PUSH_ALL(out->troubles, code, number, chunk, size, status);
}

/* A buffer in use without malloc's tag: returned by umem_alloc() itself, or its tag is damaged. */
static int untagged(const cache *c, const slab *s, uint64_t number, uint64_t at, const uint8_t *chunk, uint32_t magic, const output *out) {
    uint64_t start = s->base + at * c->chunksize, size = requested(c, chunk), said = damaged(c, chunk + c->tag - TAG, magic);
    uint32_t first = load32(chunk);
    int failed = DONE;
    if (c->tag > TAG && first + load32(chunk + 4) == MALLOC_MAGIC && TAG <= first && first <= SECOND_ALIGN) {
        start += TAG;
        size = first - TAG;
    } else if (said) {
        failed = trouble(out, DAMAGED, number, at, load32(chunk + c->tag - TAG), load32(chunk + c->tag - 4));
        start += c->tag;
        size = said - c->tag;
    }
    uint64_t least = at && out->sizes[at - 1] ? out->sizes[at - 1] : 1;
    if (!at || start >= out->starts[at - 1] + least) {
        out->starts[at] = start;
        out->sizes[at] = size;
    }
    return failed;
}

/* Slabs in which tags and states disagree: sizes[] is UNTAGGED for buffers without a tag. */
static int odd(const cache *c, const slab *s, uint64_t number, const uint8_t *data, uint32_t magic, const output *out) {
    uint64_t without = 0, used = 0, tag = c->tag;
    bool broken = false;
    int failed = DONE;
    for (uint64_t at = 0; at < s->chunks; at++) {
        used += out->states[at] == IN_USE;
        if (out->states[at] == IN_USE && out->sizes[at] == UNTAGGED) {
            without++;
            broken = broken || damaged(c, data + at * c->chunksize + tag - TAG, magic);
        }
    }
    if (without && without == used && !broken)
        tag = 0; /* no tags: the program calls umem_alloc() itself */
    for (uint64_t at = 0; !failed && at < s->chunks; at++) {
        bool none = out->sizes[at] == UNTAGGED;
        out->starts[at] = s->base + at * c->chunksize + tag;
        if (none || out->states[at] != IN_USE)
            out->sizes[at] = c->bufsize - tag;
        if (none && out->states[at] == IN_USE)
            failed = untagged(c, s, number, at, data + at * c->chunksize, magic, out);
    }
    return failed;
}

/* The blocks of a slab whose buffers are expected to have tags. */
static int tagged(const cache *c, const slab *s, uint64_t number, const uint8_t *data, const output *out) {
    uint32_t magic = c->tag > TAG ? SECOND_MAGIC : MALLOC_MAGIC;
    uint64_t least = c->least + 1 > c->tag ? c->least + 1 : c->tag, most = c->bufsize < MAX_TAGGED ? c->bufsize : MAX_TAGGED;
    uint64_t differ = 0;
    const uint8_t *tag = data + c->tag - TAG;
    for (uint64_t at = 0; at < s->chunks; at++, tag += c->chunksize) {
        prefetch_ahead(tag, AHEAD * c->chunksize, 1);
        uint64_t size = tagged_size(tag, magic, least, most);
        differ += (size == UNTAGGED) != (out->states[at] != IN_USE);
        out->starts[at] = s->base + at * c->chunksize + c->tag;
        out->sizes[at] = size == UNTAGGED ? UNTAGGED : size - c->tag;
    }
    if (differ)
        return odd(c, s, number, data, magic, out);
    for (uint64_t at = 0; at < s->chunks; at++)
        if (out->states[at] != IN_USE)
            out->sizes[at] = c->bufsize - c->tag;
    return DONE;
}

/* Prefetch the first tags of a slab. */
static void expect(const piece *pieces, uint64_t count, const cache *c, const slab *s) {
    const piece *p = c->tag ? piece_holding(pieces, count, s->base) : NULL;
    for (uint64_t at = 0; p && at < s->chunks && at < AHEAD; at++)
        prefetch_ahead(p->data, s->base - p->address + at * c->chunksize + c->tag - TAG, 1);
}

static int slab_read(const piece *pieces, uint64_t count, const cache *c, const slab *s, uint64_t number, const output *out) {
    uint64_t bytes = s->chunks * c->chunksize;
    if (c->tag) {
        const piece *p = piece_holding(pieces, count, s->base);
        uint64_t offset = p ? s->base - p->address : 0;
        if (p && offset < p->length && p->length - offset >= bytes)
            return tagged(c, s, number, p->data + offset, out);
        uint8_t *copy = malloc((size_t)bytes);
        if (!copy)
            return NO_MEMORY;
        bool there = copy_out(pieces, count, s->base, bytes, copy);
        int failed = there ? tagged(c, s, number, copy, out) : trouble(out, UNREADABLE, number, 0, 0, 0);
        free(copy);
        if (there || failed)
            return failed;
    }
    for (uint64_t at = 0; at < s->chunks; at++) {
        out->starts[at] = s->base + at * c->chunksize + c->tag;
        out->sizes[at] = c->bufsize - c->tag;
    }
    return DONE;
}

/* Make space for `count` blocks; contents are not kept. */
static int widen(output *out, uint64_t count, uint64_t *capacity) {
    if (count <= *capacity)
        return DONE;
    FREE_ALL(out->starts, out->sizes, out->states);
    out->starts = malloc((size_t)count * sizeof *out->starts);
    out->sizes = malloc((size_t)count * sizeof *out->sizes);
    out->states = malloc((size_t)count);
    *capacity = count;
    return out->starts && out->sizes && out->states ? DONE : NO_MEMORY;
}

static int append(blocks *b, const output *out, uint64_t count, uint64_t *sum) {
    uint64_t off = (UINT64_C(1) << b->granule_shift) - 1;
    for (uint64_t at = 0; at < count; at++) {
        uint64_t start = out->starts[at], size = out->sizes[at];
        if (start < b->floor || start & off || (size ? size : 1) > UINT64_MAX - start)
            return DISORDER;
        int failed = block_append(b, start, size, out->states[at]);
        if (failed)
            return failed;
        sum[2 * out->states[at]]++;
        sum[2 * out->states[at] + 1] += size;
    }
    return DONE;
}

/* Append blocks of users [*next, last) until some `enough` are added, and sums to `sums`. DISORDER
 * if blocks are already there or above. */
API int fl_read_buffers(blocks *b, const piece *pieces, uint64_t count, const cache *caches, const slab *slabs, const user *users,
                        uint64_t *next, uint64_t last, const uint8_t *states, uint64_t enough, uint64_t *sums, words *troubles) {
    output out = {NULL, NULL, NULL, troubles};
    uint64_t capacity = 0, done = 0;
    int failed = DONE;
    b->pending = false;
    for (; !failed && *next < last && done < enough; ++*next) {
        uint64_t number = users[*next].number, after = *next + 1 < last ? users[*next + 1].number : number;
        const slab *s = &slabs[number];
        expect(pieces, count, &caches[slabs[after].cache], &slabs[after]);
        failed = widen(&out, s->chunks, &capacity);
        if (failed)
            break;
        memcpy(out.states, states + s->first, (size_t)s->chunks);
        failed = slab_read(pieces, count, &caches[s->cache], s, number, &out);
        failed = failed ? failed : append(b, &out, s->chunks, sums + s->cache * 6);
        done += s->chunks;
    }
    FREE_ALL(out.starts, out.sizes, out.states);
    return failed;
}
