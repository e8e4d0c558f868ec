/* Groups of slots of musl's mallocng (src/malloc/mallocng/meta.h and malloc.c of musl 1.2.1 to
 * 1.2.6). Metas, in separate pages, describe groups, which are in separate mappings or in a slot
 * of another group. Four bytes precede each slot's memory: 0, index in 5 bits and reserve in 3,
 * and the offset from the group's storage in units of 16 bytes. If the first byte is not 0, the
 * offset has 32 bits and precedes these four bytes. ../allocators/musl/engine.py defines the
 * results. */
#include "native.h"

#include <stdlib.h>

#define UNIT 16u
#define HEADER 4u
#define AREA 4096u
/* FIRST: offset of the metas in an area; the members `check`, `next` and `nslots` precede them.
 * META: size of a meta: previous, next, storage, two masks of 32 bits, a word of bit fields. */
#define FIRST (8 + 2 * WORD)
#define META (4 * WORD + 8)
#define METAS ((AREA - FIRST) / META)
#define LARGE 63u
#define MOVED 0xE0u
/* maximum nesting depth: strides shrink inwards, and there are fewer size classes */
#define DEEPEST 64u
#define MAX_LONE 1024u
#define CLASSES 64u
#define SUMS 7u

/* Also in ../allocators/musl/engine.py. */
enum { MISSING = 1, CORRUPT, NO_SLOT, NO_REGION, OVERLAPS, MISFIT, IN_FREE };
enum { UNREADABLE = 1, NOT_THERE, OVERRUN, UNKNOWN_GROUP, BETWEEN, OVERWRITTEN, GROUP_HEADER };
enum { MAIN, DONATED, MMAPPED };

/* `masks`: available slots, and above them freed ones. `bits`, from the lowest: last index (5),
 * freeable, size class (6), pages. */
typedef struct slot_group {
    uint64_t mem, meta, masks, bits, stride, end, outer, nested;
} group;

/* Return a meta's bit fields: big-endian compilers begin with the highest bit. */
INLINE uint64_t bits_of(uint64_t word) {
    if (!BIG)
        return word;
    unsigned pages = 8 * WORD - 12;
    uint64_t first = word >> pages;
    return first >> 7 | (first >> 6 & 1) << 5 | (first & 63) << 6 | (word & ((UINT64_C(1) << pages) - 1)) << 12;
}

/* Return the four bytes before a slot as on a little-endian target: two bytes, then the offset. */
INLINE uint32_t head_of(uint32_t bytes) { return BIG ? bytes >> 24 | (bytes >> 8 & 0xFF00) | bytes << 16 : bytes; }

INLINE uint32_t number_of(const group *g) { return g->bits >> 6 & 63; }
INLINE uint32_t count_of(const group *g) { return (uint32_t)(g->bits & 31) + 1; }
INLINE uint64_t maplen_of(const group *g) { return g->bits >> 12; }
INLINE bool freeable(const group *g) { return g->bits >> 5 & 1; }
INLINE uint32_t free_of(const group *g) { return (uint32_t)(g->masks | g->masks >> 32) & (uint32_t)((UINT64_C(1) << count_of(g)) - 1); }
INLINE unsigned label_of(const group *g) { return number_of(g) == LARGE ? MMAPPED : freeable(g) ? MAIN : DONATED; }
INLINE uint64_t *sums_of(const group *g, uint64_t *sums) { return sums + (label_of(g) * CLASSES + number_of(g)) * SUMS; }

/* ---- groups ---------------------------------------------------------------------------------- */

/* Compute stride and end; false if there can be no such group. */
static bool measured(group *g, const uint64_t *classes, uint64_t class_count) {
    uint64_t number = number_of(g), slots = count_of(g), bytes = maplen_of(g) * AREA;
    bool own = bytes && slots == 1;
    g->stride = own ? bytes - UNIT : number < class_count ? classes[number] * UNIT : 0;
    uint64_t taken = UNIT + slots * g->stride, length = bytes ? bytes : taken;
    if (g->mem % UNIT || __builtin_add_overflow(g->mem, length, &g->end) || g->end > HIGHEST)
        return false;
    return number == LARGE ? own : number < class_count && taken <= length;
}

static int push_problem(words *wrong, uint64_t code, uint64_t meta, uint64_t mem, uint64_t more) {
    return PUSH_ALL(wrong, code, meta, mem, more);
}

static int by_place(const void *one, const void *other) {
    const group *a = one, *b = other;
    if (a->mem != b->mem)
        return a->mem < b->mem ? -1 : 1;
    if (a->end != b->end)
        return a->end > b->end ? -1 : 1;
    return a->meta < b->meta ? -1 : a->meta > b->meta;
}

typedef LIST(group) groups;

static int read_area(uint64_t area, const uint8_t *data, const uint64_t *classes, uint64_t class_count, groups *found, words *wrong) {
    for (unsigned at = 0; at < METAS; at++) {
        const uint8_t *meta = data + FIRST + at * META;
        const uint8_t *masks = meta + 3 * WORD;
        group g = {.mem = load(meta + 2 * WORD), .meta = area + FIRST + at * META, .bits = bits_of(load(masks + 8))};
        g.masks = load32(masks) | (uint64_t)load32(masks + 4) << 32;
        if (!g.mem)
            continue;
        if (!measured(&g, classes, class_count)) {
            if (push_problem(wrong, CORRUPT, g.meta, g.mem, g.bits))
                return NO_MEMORY;
            continue;
        }
        if (PUSH(*found, g))
            return NO_MEMORY;
    }
    return DONE;
}

/* Return a code for what is wrong with the position of a group; 0 if it is right. `around`: the
 * group that contains it, or NULL. */
static unsigned misplaced(const group *g, const group *around, const range *regions, uint32_t region_count) {
    if (!around) {
        if (!maplen_of(g) && freeable(g))
            return NO_SLOT;
        const range *region = range_holding(regions, region_count, g->mem);
        return region && g->end <= region->end ? 0 : NO_REGION;
    }
    if (maplen_of(g) || !freeable(g))
        return OVERLAPS;
    uint64_t storage = around->mem + UNIT;
    if (g->mem < storage || (g->mem - storage) % around->stride)
        return MISFIT;
    uint64_t number = (g->mem - storage) / around->stride;
    if (number >= count_of(around) || g->end - g->mem > around->stride)
        return MISFIT;
    return free_of(around) >> number & 1 ? IN_FREE : 0;
}

/* Nest groups in the slots of others; drop those that fit nowhere. */
static int nest(groups *found, const range *regions, uint32_t region_count, words *wrong) {
    uint64_t open[DEEPEST], kept = 0;
    unsigned depth = 0;
    for (uint64_t at = 0; at < found->count; at++) {
        group g = found->items[at];
        while (depth && found->items[open[depth - 1]].end <= g.mem)
            depth--;
        group *around = depth ? &found->items[open[depth - 1]] : NULL;
        unsigned why = depth == DEEPEST ? MISFIT : misplaced(&g, around, regions, region_count);
        if (why) {
            if (push_problem(wrong, why, g.meta, g.mem, around ? around->mem : 0))
                return NO_MEMORY;
            continue;
        }
        if (around) {
            around->nested |= UINT64_C(1) << (g.mem - around->mem - UNIT) / around->stride;
            g.outer = open[depth - 1] + 1;
        }
        open[depth++] = kept;
        found->items[kept++] = g;
    }
    found->count = kept;
    return DONE;
}

static void add_up(const groups *found, uint64_t *sums) {
    for (size_t at = 0; at < found->count; at++) {
        const group *g = &found->items[at];
        uint64_t *sum = sums_of(g, sums), nested = (uint64_t)__builtin_popcountll(g->nested);
        sum[0]++;
        sum[1] += count_of(g);
        sum[2] += (uint64_t)__builtin_popcount(free_of(g));
        sum[3] += nested;
        sum[5] += (uint64_t)__builtin_popcount(free_of(g)) * (g->stride - HEADER);
        sum[4] += (g->outer ? found->items[g->outer - 1].stride : g->end - g->mem) - nested * g->stride;
    }
}

typedef struct {
    uint64_t label, start, end, first, last, slots, lone;
} batch;

static int batch_push(words *batches, const batch *b) { return words_append(batches, (const uint64_t *)b, sizeof *b / sizeof(uint64_t)); }

/* Divide groups into batches to read at once: adjacent, of one kind, and of some MiB. */
static int cut(const groups *found, uint64_t lone, uint64_t span, words *batches) {
    batch b = {0, 0, 0, 0, 0, 0, 0};
    for (uint64_t at = 0; at < found->count; at++) {
        const group *g = &found->items[at];
        if (!g->outer) {
            bool on = b.slots && b.label == label_of(g) && b.end == g->mem && b.lone == (g->stride > lone);
            if (!on || (b.lone ? b.last - b.first >= MAX_LONE : g->end - b.start > span)) {
                if (b.slots && batch_push(batches, &b))
                    return NO_MEMORY;
                b = (batch){label_of(g), g->mem, g->mem, at, at, 0, g->stride > lone};
            }
            b.end = g->end;
        }
        b.last = at + 1;
        b.slots += count_of(g);
    }
    return b.slots ? batch_push(batches, &b) : DONE;
}

/* Read the groups of these areas. Outputs: `records`: the groups, ascending, outer before inner;
 * `batches`: how to read their slots; `wrong`: problems; `sums`, which the caller has zeroed: sums
 * by label and class. */
API int fl_read_groups(const piece *pieces, uint64_t count, const uint64_t *areas, uint64_t area_count, const uint64_t *classes,
                       uint64_t class_count, const range *regions, uint32_t region_count, uint64_t lone, uint64_t span, words *records,
                       words *batches, words *wrong, uint64_t *sums) {
    groups found = {NULL, 0, 0};
    uint8_t data[AREA];
    int failed = DONE;
    for (uint64_t at = 0; !failed && at < area_count; at++)
        failed = copy_out(pieces, count, areas[at], AREA, data) ? read_area(areas[at], data, classes, class_count, &found, wrong)
                                                              : push_problem(wrong, MISSING, areas[at], 0, 0);
    if (!failed && found.count) {
        qsort(found.items, found.count, sizeof *found.items, by_place);
        failed = nest(&found, regions, region_count, wrong);
    }
    if (!failed) {
        add_up(&found, sums);
        failed = cut(&found, lone, span, batches);
    }
    *records = (words){(uint64_t *)found.items, found.count * (sizeof(group) / sizeof(uint64_t)), found.capacity};
    return failed;
}

/* ---- slots ----------------------------------------------------------------------------------- */

typedef struct {
    const piece *pieces;
    uint64_t count;
    const piece *now; /* piece of the last read */
} reader;

static bool read_slowly(reader *r, uint64_t address, uint8_t *out, uint64_t size) {
    const piece *p = piece_holding(r->pieces, r->count, address);
    if (!p || !copy_out(r->pieces, r->count, address, size, out))
        return false;
    r->now = p;
    return true;
}

INLINE bool read_int(reader *r, uint64_t address, uint32_t *value) {
    uint64_t offset = address - r->now->address;
    uint8_t bytes[sizeof *value];
    bool whole = offset < r->now->length && r->now->length - offset >= sizeof *value;
    if (!whole && !read_slowly(r, address, bytes, sizeof bytes))
        return false;
    *value = load32(whole ? r->now->data + offset : bytes);
    return true;
}

/* Read the header of a slot at `address`. */
INLINE bool read_head(reader *r, uint64_t address, uint32_t *head) {
    bool there = read_int(r, address - HEADER, head);
    *head = there ? head_of(*head) : 0;
    return there;
}

/* Return whether there is a block header before `block`. *reserve: bytes at the end of its slot
 * that were not requested. */
static bool reserve_of(reader *r, uint64_t block, uint64_t end, uint32_t number, uint64_t offset, uint32_t *reserve) {
    uint32_t head, recorded;
    if (!read_head(r, block, &head) || (head >> 8 & 31) != number)
        return false;
    recorded = head >> 16;
    if (head & 0xFF && (recorded || !read_int(r, block - 2 * HEADER, &recorded)))
        return false;
    if (recorded != offset)
        return false;
    *reserve = head >> 13 & 7;
    if (*reserve == 5)
        return read_int(r, end - HEADER, reserve) && *reserve >= 5 && *reserve <= end - block;
    return *reserve < 5 && *reserve <= end - block;
}

/* Find a block that is not at its slot's start. The 16 bits of its offset omit multiples of 1
 * MiB. */
static bool moved(reader *r, const group *g, uint32_t number, uint32_t head, uint64_t *start, uint64_t *size) {
    uint64_t end = *start + *size, begin = g->mem + UNIT;
    for (uint64_t ahead = (head >> 16) * (uint64_t)UNIT; ahead < *size; ahead += (uint64_t)UNIT << 16) {
        uint64_t block = *start + ahead;
        uint32_t reserve;
        if (ahead && reserve_of(r, block, end, number, (block - begin) / UNIT, &reserve)) {
            *start = block;
            *size = end - block - reserve;
            return true;
        }
    }
    return false;
}

/* Read start, size and state of the block in a slot in use; return a code for what is wrong with
 * it, or 0. */
static unsigned slot_read(reader *r, const group *g, uint32_t number, uint32_t right, uint64_t *start, uint64_t *size, uint8_t *state) {
    uint32_t head, reserved;
    if (!read_head(r, *start, &head))
        return UNREADABLE;
    uint32_t few = head >> 13 & 7, byte = head >> 8 & 0xFF;
    bool good = (head & 0xFFFF1FFF) == right;
    if (good && few < 5) {
        *size -= few;
        return 0;
    }
    if (good && few == 5) {
        if (!read_int(r, *start + *size - HEADER, &reserved))
            return UNREADABLE;
        if (reserved < 5 || reserved > *size)
            return OVERRUN;
        *size -= reserved;
        return 0;
    }
    if (byte == MOVED)
        return moved(r, g, number, head, start, size) ? 0 : NOT_THERE;
    if (few == 6) {
        *state = METADATA;
        return UNKNOWN_GROUP;
    }
    if ((byte == 0xFF || (!byte && number)) && !(head & 0xFFFF00FF)) {
        *state = FREE;
        return BETWEEN;
    }
    return OVERWRITTEN;
}

typedef struct {
    uint64_t *starts, *sizes;
    uint8_t *states;
    uint64_t made;
    words *troubles;
} output;

static int trouble(output *out, uint64_t code, uint64_t index, uint64_t number) {
    return PUSH_ALL(out->troubles, code, index, number);
}

/* Read slots [from, to) of a group, none of which contains another group. */
static int slots_read(reader *r, const group *g, uint64_t index, uint32_t from, uint32_t to, output *out, uint64_t *sums) {
    uint64_t units = g->stride / UNIT, used = 0, usable = g->stride - HEADER;
    uint32_t free = free_of(g);
    int failed = DONE;
    for (uint32_t number = from; !failed && number < to; number++) {
        uint64_t start = g->mem + UNIT + number * g->stride, size = usable;
        uint8_t state = IN_USE;
        if (free >> number & 1) {
            state = FREE;
        } else {
            uint32_t right = number << 8 | (uint32_t)(number * units & 0xFFFF) << 16;
            unsigned code = slot_read(r, g, number, right, &start, &size, &state);
            if (code)
                failed = trouble(out, code, index, number);
            if (state == IN_USE)
                used += size;
        }
        out->starts[out->made] = start;
        out->sizes[out->made] = size;
        out->states[out->made++] = state;
    }
    sums_of(g, sums)[6] += used;
    return failed;
}

/* Read slots of groups [first, last), the first of which is in no other group. There is space
 * for `capacity` blocks. Bytes in use are added to the last of `sums`. */
API int fl_read_slots(const piece *pieces, uint64_t count, const group *records, uint64_t first, uint64_t last, uint64_t capacity,
                      uint64_t *starts, uint64_t *sizes, uint8_t *states, uint64_t *made, uint64_t *sums, words *troubles) {
    static const piece none = {0, NULL, 0};
    reader r = {pieces, count, count ? pieces : &none};
    output out = {starts, sizes, states, 0, troubles};
    uint64_t open[DEEPEST];
    uint32_t at[DEEPEST]; /* next slot of each open group */
    unsigned depth = 0;
    int failed = DONE;
    for (uint64_t next = first; !failed && (depth || next < last);) {
        if (!depth) {
            open[0] = next++;
            at[depth++] = 0;
        }
        const group *g = &records[open[depth - 1]];
        uint32_t from = at[depth - 1], to = count_of(g);
        uint8_t back[WORD];
        if (!from && read_slowly(&r, g->mem, back, WORD) && load(back) != g->meta)
            failed = trouble(&out, GROUP_HEADER, open[depth - 1], 0);
        uint32_t inside = (uint32_t)(g->nested >> from);
        bool inner = from < to && inside;
        if (inner)
            to = from + (uint32_t)__builtin_ctz(inside);
        if (to > count_of(g) || to - from > capacity - out.made || (inner && (next >= last || depth == DEEPEST)))
            return DISORDER;
        failed = failed ? failed : slots_read(&r, g, open[depth - 1], from, to, &out, sums);
        if (inner) {
            at[depth - 1] = to + 1;
            open[depth] = next++;
            at[depth++] = 0;
        } else {
            depth--;
        }
    }
    *made = out.made;
    return failed;
}
