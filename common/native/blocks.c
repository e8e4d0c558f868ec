/* Block directory: construction, and look-ups for Python. */
#include "blocks.h"

#include "threads.h"

#include <stdlib.h>

#define LIKELY_BLOCK 64u /* bytes: the mean block of most programs is larger */
#define MAX_RESERVED (UINT64_C(1) << 28) /* blocks */
#define LEAST_RESERVED ((size_t)8 << 20) /* bytes: smaller arrays grow on demand */
#define CHUNK (1u << 12) /* blocks added up together: their sizes and marks fit in the L1 cache */
#define ADDED (1u << 17) /* blocks that one thread adds up at a time */
#define SUMMED (1u << 13) /* blocks that share one stored total */
#define SET_AHEAD 16 /* blocks between the one that is prefetched and the one whose state is set */
#define STATES (METADATA + 1)
#define MARKS (INDIRECT + 1)

API void fl_blocks_free(blocks *b) {
    drop_spares(b);
    for (uint64_t place = 0; place < UINT64_C(1) << (64 - b->hash_shift); place++)
        free_zeros(b->tables[place].slots, TABLE_BYTES);
    FREE_ALL(b->tables, b->sizes, b->size_numbers, b->narrow_sizes, b->states, b->sums, b->samples.items, b->bigs.items, b->jumps.items, b);
}

/* `threads`: the number of threads that a call on these blocks may use, at most MOST_THREADS; 1:
 * only the caller's. */
API blocks *fl_blocks_new(unsigned granule_shift, unsigned threads) {
    blocks *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    b->granule_shift = granule_shift;
    b->threads = threads < MOST_THREADS ? threads : MOST_THREADS;
    b->slot_shift = granule_shift + 6;
    b->table_shift = b->slot_shift + TABLE_BITS;
    b->hash_shift = 64 - 6;
    b->tables = calloc(UINT64_C(1) << (64 - b->hash_shift), sizeof *b->tables);
    if (!b->tables) {
        free(b);
        return NULL;
    }
    return b;
}

static void place_table(blocks *b, table *tables, table made) {
    uint32_t mask = (uint32_t)((UINT64_C(1) << (64 - b->hash_shift)) - 1);
    uint32_t place = table_place(b, made.key);
    while (tables[place].slots)
        place = (place + 1) & mask;
    tables[place] = made;
}

/* A table has four hash entries: addresses outside of all heaps usually hash to an unused one. */
static int grow_table(blocks *b) {
    uint64_t places = UINT64_C(1) << (64 - b->hash_shift);
    if (b->table_count < places / 4)
        return DONE;
    table *tables = calloc(places * 4, sizeof *tables);
    if (!tables)
        return NO_MEMORY;
    b->hash_shift -= 2;
    for (uint64_t place = 0; place < places; place++)
        if (b->tables[place].slots)
            place_table(b, tables, b->tables[place]);
    free(b->tables);
    b->tables = tables;
    return DONE;
}

/* Return the slot of an address, created if necessary; NULL if out of memory. */
slot *ensure_slot(blocks *b, uint64_t address) {
    uint64_t key = address >> b->table_shift;
    if (b->recent.slots && b->recent.key == key)
        return &b->recent.slots[(address >> b->slot_shift) & (TABLE_SLOTS - 1)];
    slot *s = slot_of(b, address);
    if (!s) {
        table made = {key, NULL};
        if (grow_table(b) || !(made.slots = allocate_zeros(TABLE_BYTES)))
            return NULL;
        place_table(b, b->tables, made);
        b->table_count++;
        s = slot_of(b, address);
        if (b->count - b->counted > TABLE_SLOTS) /* probably as full as the last one */
            ready_pages(made.slots, TABLE_BYTES);
        b->counted = b->count;
    }
    b->recent.key = key;
    b->recent.slots = s - ((address >> b->slot_shift) & (TABLE_SLOTS - 1));
    return s;
}

big *big_of(const blocks *b, uint32_t index) {
    uint64_t at = 0;
    BISECT(at, b->bigs.count, middle, b->bigs.items[middle].index < index)
    return at < b->bigs.count && b->bigs.items[at].index == index ? &b->bigs.items[at] : NULL;
}

/* Record a block in the slots that it covers, or in the list of big blocks. */
int cover(blocks *b, uint32_t index, uint64_t start, uint64_t size) {
    uint64_t first = start >> b->slot_shift, last = (start + (size ? size - 1 : 0)) >> b->slot_shift;
    if (last - first > NEAR) {
        big *listed = big_of(b, index);
        if (listed) {
            *listed = (big){start, size, index};
            return DONE;
        }
        if (PUSH(b->bigs, (big){start, size, index}))
            return NO_MEMORY;
        for (uint64_t at = b->bigs.count - 1; at && b->bigs.items[at - 1].index > index; at--) {
            b->bigs.items[at] = b->bigs.items[at - 1];
            b->bigs.items[at - 1] = (big){start, size, index};
        }
        return DONE;
    }
    for (uint64_t at = first + 1; at <= last; at++) {
        slot *s = ensure_slot(b, at << b->slot_shift);
        if (!s)
            return NO_MEMORY;
        s->rank = index + 1;
        s->back = (uint32_t)(at - first);
    }
    return DONE;
}

int grow_blocks(blocks *b) {
    uint64_t states_capacity = b->capacity;
    if (b->count >= MAX_BLOCKS)
        return TOO_MANY_BLOCKS;
    if (!grow(&b->states, b->count, &states_capacity, sizeof *b->states) || !grow(&b->sizes, b->count, &b->capacity, sizeof *b->sizes))
        return NO_MEMORY;
    b->capacity = b->capacity < MAX_BLOCKS ? b->capacity : MAX_BLOCKS;
    return DONE;
}

/* Reserve space for the blocks of a heap of `bytes` bytes. Call before appending any. Growing
 * arrays would be moved often. Unused space is never resident. */
API void fl_reserve(blocks *b, uint64_t bytes) {
    uint64_t likely = bytes / LIKELY_BLOCK;
    likely = likely < MAX_RESERVED ? likely : MAX_RESERVED;
    if (b->capacity || likely * sizeof *b->sizes < LEAST_RESERVED)
        return;
    b->sizes = malloc(likely * sizeof *b->sizes);
    b->states = malloc(likely * sizeof *b->states);
    if (b->sizes && b->states) {
        b->capacity = likely;
    } else { /* on failure, the arrays grow on demand */
        DROP(b->sizes);
        DROP(b->states);
    }
}

int add_jump(blocks *b, uint64_t start) {
    if (!b->count)
        b->lowest = start;
    return PUSH(b->jumps, (jump){start, b->count});
}

/* Append blocks: all or none. Returns DISORDER unless they ascend from b->floor. */
API int fl_append(blocks *b, const uint64_t *starts, const uint64_t *sizes, const uint8_t *states, uint64_t count) {
    uint64_t floor = b->floor;
    for (uint64_t at = 0; at < count; at++) {
        uint64_t least = sizes[at] ? sizes[at] : 1;
        if (starts[at] < floor || starts[at] & ((UINT64_C(1) << b->granule_shift) - 1) || starts[at] > HIGHEST || least > HIGHEST - starts[at] ||
            states[at] > METADATA)
            return DISORDER;
        floor = starts[at] + least;
    }
    if (count > MAX_BLOCKS - b->count)
        return TOO_MANY_BLOCKS;
    b->pending = false;
    for (uint64_t at = 0; at < count; at++) {
        int failed = block_append(b, starts[at], sizes[at], states[at]);
        if (failed)
            return failed;
    }
    return DONE;
}

const big *big_at(const blocks *b, uint64_t address) {
    uint64_t after = 0;
    BISECT(after, b->bigs.count, middle, b->bigs.items[middle].start <= address)
    const big *found = after ? &b->bigs.items[after - 1] : NULL;
    return found && address - found->start < found->size ? found : NULL;
}

uint64_t big_size(const blocks *b, uint32_t index) {
    const big *found = big_of(b, index);
    return found ? found->size : 0;
}

/* Return the first jump whose start (or index) is at least this. */
static const jump *jump_from(const blocks *b, uint64_t start, uint32_t index) {
    uint64_t at = 0;
    BISECT(at, b->jumps.count, middle, b->jumps.items[middle].start < start || b->jumps.items[middle].index < index)
    return at < b->jumps.count ? &b->jumps.items[at] : NULL;
}

uint64_t jump_start(const blocks *b, uint32_t index) {
    const jump *found = jump_from(b, 0, index);
    return found ? found->start : 0;
}

uint64_t block_address(const blocks *b, uint32_t index) {
    uint64_t start = b->samples.items[index / SAMPLE];
    for (uint32_t at = index - index % SAMPLE; at < index; at++)
        start = start_after(b, start, at + 1);
    return start;
}

uint32_t block_at_or_after(const blocks *b, uint64_t address) {
    uint64_t granule = UINT64_C(1) << b->granule_shift;
    if (!b->count || address > b->last_start)
        return b->count;
    address = (address + granule - 1) & -granule;
    uint64_t base = slot_base(b, address), below = (UINT64_C(1) << granule_of(b, address)) - 1;
    for (unsigned step = 0; step <= NEAR; step++, below = 0) {
        const slot *s = slot_of(b, base);
        if (s && s->bits & ~below)
            return s->rank + (uint32_t)__builtin_popcountll(s->bits & below);
        base += UINT64_C(1) << b->slot_shift;
        if (!base)
            break;
    }
    const jump *found = jump_from(b, address, 0);
    return found ? found->index : b->count;
}

/* Return the first block that starts at or after `address`, and its start; b->count if there is
 * none. */
uint32_t block_from(const blocks *b, uint64_t address, uint64_t *start) {
    uint32_t index = block_at_or_after(b, address);
    if (index < b->count)
        *start = block_address(b, index);
    return index;
}

/* As block_from, but return the block before it if that one extends beyond `address`. */
uint32_t block_reaching(const blocks *b, uint64_t address, uint64_t *start) {
    uint32_t index = block_before(b, slot_of(b, address), address, start);
    return index != NONE && address - *start < size_of(b, index) ? index : block_from(b, address, start);
}

API uint32_t fl_count(const blocks *b) { return b->count; }
API uint64_t fl_floor(const blocks *b) { return b->floor; }
API uint32_t fl_find(const blocks *b, uint64_t address) { return block_find(b, address); }
API uint32_t fl_at_or_after(const blocks *b, uint64_t address) { return block_at_or_after(b, address); }
API uint64_t fl_address(const blocks *b, uint32_t index) { return block_address(b, index); }
API uint64_t fl_size(const blocks *b, uint32_t index) { return size_of(b, index); }
API uint8_t fl_state(const blocks *b, uint32_t index) { return b->states[index]; }

static void change_state(blocks *b, uint32_t index, uint8_t state) {
    if (b->sums) {
        block_total *sums = b->sums + (size_t)(index / SUMMED) * STATES, *before = &sums[b->states[index]];
        before->count--;
        before->bytes -= size_of(b, index);
        sums[state].count++;
        sums[state].bytes += size_of(b, index);
    }
    b->states[index] = state;
}

/* Set the state of the blocks that start at these addresses. Addresses at which no block starts
 * are moved to the front of the array; their number is returned. */
API uint64_t fl_set_state(blocks *b, uint64_t *addresses, uint64_t count, uint8_t state) {
    uint64_t unknown = 0;
    for (uint64_t at = 0; at < count; at++) {
        uint64_t start = 0;
        if (at + SET_AHEAD < count)
            __builtin_prefetch(slot_of(b, addresses[at + SET_AHEAD]));
        uint32_t index = block_before(b, slot_of(b, addresses[at]), addresses[at], &start);
        if (index != NONE && start == addresses[at])
            change_state(b, index, state);
        else
            addresses[unknown++] = addresses[at];
    }
    return unknown;
}

/* Count those of `count` blocks (at most CHUNK) with marks[at] == mark and others[at] == other.
 * There are no branches, and the halves of sizes are summed in 32 bits, which cannot overflow
 * for CHUNK blocks: compilers vectorise this loop. */
INLINE void add_chunk(const uint32_t *sizes, const uint8_t *marks, uint8_t mark, const uint8_t *others, uint8_t other, uint32_t count,
                      block_total *to) {
    uint32_t wanted = 0, low = 0, high = 0;
    for (uint32_t at = 0; at < count; at++) {
        uint32_t counts = (uint32_t)((marks[at] == mark) & (others[at] == other)), size = sizes[at] & -counts;
        wanted += counts;
        low += size & 0xFFFF;
        high += size >> 16;
    }
    to->count += wanted;
    to->bytes += low + ((uint64_t)high << 16);
}

#if defined(__x86_64__)
AVX2 static void add_avx2(const uint32_t *sizes, const uint8_t *marks, uint8_t mark, const uint8_t *others, uint8_t other, uint32_t count,
                          block_total *to) {
    add_chunk(sizes, marks, mark, others, other, count, to);
}
#else
#define add_avx2 add_chunk
#endif

/* The operands and the results of add_up. */
typedef struct {
    const blocks *b;
    const uint8_t *marks, *others;
    uint32_t first;
    uint8_t limit, other;
    block_total *totals;
} addition;

/* Add up one part, without the upper half of sizes beyond 32 bits. */
static void add_part(void *context, unsigned thread, uint64_t first, uint64_t end) {
    const addition *a = context;
    (void)thread;
    const blocks *b = a->b;
    uint32_t widened[CHUNK];
    const uint8_t *marks = a->marks + a->first, *others = a->others ? a->others + a->first : NULL;
    block_total sums[MARKS] = {{0, 0}};
    bool avx2 = has_avx2();
    for (uint64_t at = first; at < end; at += CHUNK) { /* read once: marks that fit the cache */
        uint32_t some = end - at < CHUNK ? (uint32_t)(end - at) : CHUNK;
        const uint32_t *sizes = b->sizes ? b->sizes + a->first + at : widened;
        for (uint32_t each = 0; !b->sizes && each < some; each++)
            widened[each] = short_size(b, (uint32_t)(a->first + at + each));
        for (uint8_t mark = 0; mark < a->limit; mark++)
            (avx2 ? add_avx2 : add_chunk)(sizes, marks + at, mark, others ? others + at : marks + at, others ? a->other : mark, some, &sums[mark]);
    }
    for (uint8_t mark = 0; mark < a->limit; mark++) {
        (void)__atomic_fetch_add(&a->totals[mark].count, sums[mark].count, __ATOMIC_RELAXED);
        (void)__atomic_fetch_add(&a->totals[mark].bytes, sums[mark].bytes, __ATOMIC_RELAXED);
    }
}

void add_up(const blocks *b, uint32_t first, uint32_t end, const uint8_t *marks, uint8_t limit, const uint8_t *others, uint8_t other,
            block_total *totals) {
    addition a = {b, marks, others, first, limit, other, totals};
    memset(totals, 0, limit * sizeof *totals);
    if (first < end)
        run_in_parts(b->threads, end - first, ADDED, add_part, &a);
    uint64_t at = 0;
    BISECT(at, b->bigs.count, middle, b->bigs.items[middle].index < first)
    for (; at < b->bigs.count && b->bigs.items[at].index < end; at++) {
        uint32_t index = b->bigs.items[at].index;
        if (short_size(b, index) == NONE && marks[index] < limit && (!others || others[index] == other))
            totals[marks[index]].bytes += b->bigs.items[at].size - NONE;
    }
}

static void sum_some(void *context, unsigned thread, uint64_t first, uint64_t end) {
    blocks *b = context;
    (void)thread;
    add_up(b, (uint32_t)first, (uint32_t)end, b->states, STATES, NULL, 0, b->sums + first / SUMMED * STATES);
}

/* Add up all blocks, SUMMED at a time, so that the totals of any range are computed quickly. */
static bool sum_all(blocks *b) {
    if (!b->sums && (b->sums = malloc((b->count / SUMMED + 1) * STATES * sizeof *b->sums)))
        run_in_parts(b->threads, b->count, SUMMED, sum_some, b);
    return b->sums;
}

static void add_totals(block_total *to, const block_total *from) {
    for (unsigned state = 0; state < STATES; state++) {
        to[state].count += from[state].count;
        to[state].bytes += from[state].bytes;
    }
}

/* Write the totals of each state to totals[4]. */
API void fl_totals(blocks *b, uint32_t first, uint32_t last, block_total *totals) {
    block_total some[STATES];
    uint32_t whole = (first + SUMMED - 1) / SUMMED, end = last / SUMMED;
    if (whole >= end || !sum_all(b)) {
        add_up(b, first, last, b->states, STATES, NULL, 0, totals);
        return;
    }
    add_up(b, first, whole * SUMMED, b->states, STATES, NULL, 0, totals);
    add_up(b, end * SUMMED, last, b->states, STATES, NULL, 0, some);
    add_totals(totals, some);
    for (; whole < end; whole++)
        add_totals(totals, b->sums + (size_t)whole * STATES);
}

/* Write the totals of the blocks that start in one of these ranges to totals[4]. There may be many
 * short ranges. */
API void fl_totals_in(const blocks *b, const range *ranges, uint64_t count, block_total *totals) {
    memset(totals, 0, STATES * sizeof *totals);
    for (const range *r = ranges; r < ranges + count; r++)
        for (uint32_t index = block_at_or_after(b, r->start), end = block_at_or_after(b, r->end); index < end; index++) {
            totals[b->states[index]].count++;
            totals[b->states[index]].bytes += size_of(b, index);
        }
}
