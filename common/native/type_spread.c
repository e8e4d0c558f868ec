/* Spreads types over blocks, along the pointers of typed memory. ../engine/type_spread.py explains
 * the terms; ../engine/reference/type_spread.py is the same in Python.
 *
 * Example: a variable has the layout of `struct server`, whose word 0 has the reference "struct
 * client *". The word refers to the start of a block of 56 bytes. The rule for (reference, 0, 56)
 * is the layout of `struct client`: the block gets this claim and is queued, and its pointers are
 * followed in turn. */
#include "type_spread.h"

#include <stdlib.h>

API void fl_spread_free(spread *s) {
    for (uint64_t at = 0; at < s->lists.count; at++)
        FREE_ALL(s->lists.items[at].untyped.rows.items, s->lists.items[at].typed.rows.items);
    FREE_ALL(s->bounds.items, s->groups.items, s->slots.items, s->checks.items, s->roots.items, s->ordered_roots.items, s->rules, s->asked.items, s->queue.items,
             s->disputes.items, s->lists.items, s->choices.items, s->choice_bounds.items, s->options.items, s->keyed.items,
             s->decisions.items, s->owner_words.items, s->decides.items, s->counts.items, s->doubtful_blocks.items, s->limits,
             s->pooled, s->recent, s->pool_pointers.items, s);
}

/* `claims` and `origins`: arrays of the caller, with a zero for each block. */
API spread *fl_spread_new(const blocks *b, uint32_t *claims, uint32_t *origins) {
    spread *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    memset(origins, 0xFF, (size_t)b->count * sizeof *origins);
    s->b = b;
    s->claims = claims;
    s->origins = origins;
    s->rule_mask = 1023;
    s->rules = calloc(s->rule_mask + 1, sizeof *s->rules);
    /* Layout 0 has no words. */
    if (!s->rules || PUSH(s->bounds, 0) || PUSH(s->bounds, 0) || PUSH(s->counts, b->count) || PUSH(s->choice_bounds, 0) || PUSH(s->choice_bounds, 0)) {
        fl_spread_free(s);
        return NULL;
    }
    return s;
}

/* Set the memory to read. The caller keeps the pieces until the next call or fl_spread_free. */
API void fl_spread_use(spread *s, const piece *pieces, uint64_t count) {
    s->pieces = pieces;
    s->piece_count = count;
    s->ahead_next = s->ahead_count = 0;
}

/* Add a layout. Returns its number, NO_MEMORY, or DISORDER if it is impossible. */
API int fl_spread_layout(spread *s, const uint64_t *groups, uint64_t group_count, const uint64_t *slots, uint64_t slot_count,
                        const uint64_t *checks, uint64_t check_count) {
    uint64_t number = s->bounds.count - 1, first = s->slots.count, first_check = s->checks.count;
    if (number > LAYOUT_MASK || first + slot_count > UINT32_MAX || first_check + check_count > UINT32_MAX ||
        s->groups.count + group_count > UINT32_MAX)
        return DISORDER;
    for (uint64_t at = 0; at < group_count; at++) {
        const uint64_t *row = groups + GROUP_WORDS * at;
        if (!row[1] || row[3] > row[4] || row[4] > slot_count || row[5] > row[6] || row[6] > check_count)
            return DISORDER;
    }
    for (uint64_t at = 0; at < slot_count; at++) {
        uint32_t reference = (uint32_t)slots[2 * at + 1];
        if (PUSH(s->slots, (slot_of_pointer){slots[2 * at], reference}))
            return NO_MEMORY;
        if (reference > s->highest)
            s->highest = reference;
    }
    for (uint64_t at = 0; at < check_count; at++)
        if (PUSH(s->checks, check_of(checks[2 * at], checks[2 * at + 1])))
            return NO_MEMORY;
    for (uint64_t at = 0; at < group_count; at++) {
        const uint64_t *row = groups + GROUP_WORDS * at;
        elements one = {row[0], row[1], row[2], (uint32_t)(first + row[3]), (uint32_t)(first + row[4]), (uint32_t)(first_check + row[5]), (uint32_t)(first_check + row[6])};
        if (PUSH(s->groups, one))
            return NO_MEMORY;
    }
    return PUSH(s->counts, 0) || PUSH(s->bounds, (uint32_t)s->groups.count) ? NO_MEMORY : (int)number;
}

API int fl_spread_roots(spread *s, const uint64_t *addresses, const uint64_t *sizes, const uint32_t *layouts, uint64_t count) {
    for (uint64_t at = 0; at < count; at++) {
        uint64_t number = s->roots.count;
        if (layouts[at] + 1 >= s->bounds.count || number >= ROOT_BIT - 1)
            return DISORDER;
        if (PUSH(s->roots, (root){addresses[at], sizes[at], layouts[at], is_in_pool(s, addresses[at])}) || words_push(&s->queue, QUEUED_ROOT | number << 1))
            return NO_MEMORY;
    }
    return DONE;
}

uint64_t offset_in_element(const spread *s, uint32_t layout, uint64_t offset) {
    const elements *first = s->bounds.items[layout] < s->bounds.items[layout + 1] ? &s->groups.items[s->bounds.items[layout]] : NULL;
    bool is_array = first && s->bounds.items[layout + 1] - s->bounds.items[layout] == 1 && !first->start && !first->count;
    return is_array ? offset % first->stride : offset;
}

int claim_block(spread *s, uint32_t index, uint64_t start, uint32_t claim, bool inferred, uint32_t origin) {
    if (inferred || level_of(claim) >= LEVEL_BASE)
        claim |= INFERRED;
    if (s->limits)
        s->limits[index] = 0;
    set_claim(s, index, claim);
    s->origins[index] = origin;
    s->claimed++;
    return words_push(&s->queue, start);
}

/* Claim the block that a pointer refers to, and note which part of it is in use. */
static int claim_target(spread *s, const followed *p, uint32_t claim) {
    if (claim_block(s, p->index, p->start, claim, !p->certain, p->owner))
        return NO_MEMORY;
    uint8_t flags = limits_of(s, p, claim);
    if (!flags)
        return DONE;
    uint64_t used = used_size(s, p, claim);
    if (!s->limits && !(s->limits = calloc((size_t)s->b->count + 1, sizeof *s->limits)))
        return NO_MEMORY;
    if (used < LIMIT_BYTES)
        s->limits[p->index] = (uint32_t)used + 1 + (flags & TABLE ? IS_TABLE : 0);
    return DONE;
}

/* A block has a claim that is certain, or that may become so. Compare it with the rule of another
 * pointer to the block. */
static int compare(spread *s, uint32_t index, uint32_t found, uint32_t reference, uint64_t offset) {
    uint32_t layout = layout_of(s, index), agrees = 0;
    if ((found & LAYOUT_MASK) == layout || found >> LEVEL_SHIFT >= LEVEL_BASE)
        return DONE;
    int failed = rule_answer(s, AGREES, reference, offset_in_element(s, layout, offset), layout, &agrees);
    if (failed)
        return failed;
    if (agrees)
        return agrees == UNKNOWN_RULE ? ASKED : DONE;
    set_claim(s, index, DISPUTED);
    return words_push(&s->disputes, index);
}

/* A block has an inferred claim. Make the claim certain if a certain pointer to the block
 * determines the same layout. The pointers of the block are then followed again. If it determines
 * a layout that contradicts the claim, dispute the claim, so that another pointer does not make it
 * certain. Which elements of a buffer are in use depends on the first pointer, so buffers keep
 * their claims. */
static int confirm(spread *s, const followed *p, uint32_t claim) {
    bool is_buffer = limits_of(s, p, claim) || (s->limits && s->limits[p->index]);
    if (is_buffer || level_of(claim) >= LEVEL_BASE)
        return DONE;
    if ((claim & LAYOUT_MASK) != layout_of(s, p->index))
        return compare(s, p->index, claim, p->reference, p->value - p->start);
    return claim_block(s, p->index, p->start, claim, false, p->owner);
}

/* Let a decision choose a claim for the block that a pointer refers to, and set this claim. If the
 * decision chooses none, or if the block already has a claim, note the pointer. */
static int follow_decision(spread *s, const decision *d, const followed *p) {
    if (s->claims[p->index])
        return note_pointer(s, p);
    matching m = {.s = s};
    uint32_t claim = decide(&m, d, p);
    if (m.failed || m.asked)
        return m.failed ? m.failed : ASKED;
    return claim ? claim_target(s, p, claim) : note_pointer(s, p);
}

/* Claim the block that a pointer in a doubtful element refers to, if may_claim
 * allows it. */
static int claim_if_fitting(spread *s, const followed *p, uint32_t claim) {
    matching m = {.s = s};
    bool is_certain = false, may = may_claim(&m, p, claim, &is_certain);
    if (m.failed || m.asked)
        return m.failed ? m.failed : ASKED;
    followed known = *p;
    known.certain = p->certain && is_certain;
    return may ? claim_target(s, &known, claim) : DONE;
}

/* Follow a pointer to a block. If it returns ASKED, the pointer is followed again later. */
static int follow(spread *s, const followed *p) {
    uint32_t answer;
    uint64_t size = size_of(s->b, p->index), offset = p->value - p->start;
    if (s->b->states[p->index] != IN_USE || (offset && offset >= size) || is_too_far(s, p->reference, offset))
        return DONE;
    int failed = rule_answer(s, RULE, p->reference, offset, size, &answer);
    if (failed || answer == NO_CLAIM || (answer < DECISION && may_be_stale(s, p, answer)))
        return failed;
    if (answer == UNKNOWN_RULE)
        return ASKED;
    if (answer == DEFERRED)
        return note_pointer(s, p);
    if (answer & DECISION)
        return follow_decision(s, &s->decisions.items[answer & LAYOUT_MASK], p);
    if (!s->claims[p->index])
        return p->doubtful ? claim_if_fitting(s, p, answer) : claim_target(s, p, answer);
    if (!p->certain || p->doubtful || s->claims[p->index] & DISPUTED)
        return DONE;
    if (!(s->claims[p->index] & INFERRED))
        return compare(s, p->index, answer, p->reference, offset);
    return s->confirms ? confirm(s, p, answer) : DONE;
}

/* Follow the oldest pointer of the ring. The pointer stays in the ring if an answer is missing. */
static int follow_oldest(spread *s) {
    followed *p = &s->ring[s->followed % RING];
    bool is_block = p->index != NONE && p->index != p->owner;
    /* A pointer in the ring may have disputed or confirmed the owner's type. */
    uint32_t owned = p->owner < ROOT_BIT ? s->claims[p->owner] : 0;
    bool is_typed = !(owned & DISPUTED);
    p->certain = !(owned & INFERRED);
    int more = !is_block || !is_typed ? DONE : is_pooled(s, p->index) ? note_pool_pointer(s, p) : follow(s, p);
    s->followed += !more;
    s->skipped += !is_typed;
    return more;
}

/* Look up the blocks of the pointers in the ring that were not looked up before. */
INLINE void find_blocks(spread *s) {
    while (s->found < s->added) {
        followed *p = &s->ring[s->found++ % RING];
        p->index = block_before(s->b, p->near, p->value, &p->start);
        if (p->index == NONE)
            continue;
        prefetch_size(s->b, p->index);
        __builtin_prefetch(&s->b->states[p->index]);
        __builtin_prefetch(&s->claims[p->index], 1);
        __builtin_prefetch(&s->origins[p->index], 1);
        const piece *of = has_decision(s, p->reference) ? piece_holding(s->pieces, s->piece_count, p->start) : NULL;
        if (of && p->start - of->address < of->length) /* a decision reads the block's content */
            __builtin_prefetch(of->data + (p->start - of->address));
    }
}

static void find_blocks_plain(spread *s) { find_blocks(s); }
POPCNT static void find_blocks_popcnt(spread *s) { find_blocks(s); }

/* Follow all pointers that are in the ring. */
static int follow_all(spread *s) {
    (has_popcnt() ? find_blocks_popcnt : find_blocks_plain)(s);
    while (s->followed < s->added) {
        int more = follow_oldest(s);
        if (more)
            return more;
    }
    return DONE;
}

/* Add a pointer to the ring, which must not be full. When the ring is full, its pointers are looked
 * up, and then followed in the order in which they were added. Thus, in each step, the processor
 * fetches memory for many pointers at once: first the slots of the directory, then the sizes,
 * states and claims of the blocks. */
static void add_pointer(spread *s, uint64_t place, uint64_t value, uint32_t reference) {
    const slot *near = slot_of(s->b, value);
    s->ring[s->added++ % RING] = (followed){value, place, 0, near, reference, s->owner, NONE, false, s->doubtful};
    if (near)
        __builtin_prefetch(near);
}

/* Begin to visit an item of the queue. Return false if the item has no pointers. */
static bool begin(spread *s, uint64_t item, const upcoming *next) {
    uint32_t layout;
    s->element = s->table = 0;
    s->slot = NONE;
    s->doubtful = false;
    if (item & QUEUED_ROOT) {
        const root *r = &s->roots.items[item >> 1];
        s->owner = ROOT_BIT + (uint32_t)(item >> 1);
        s->address = r->address;
        s->size = r->size;
        s->data = memory_at(s->pieces, s->piece_count, s->address, s->size);
        layout = r->layout;
    } else {
        s->owner = next->index;
        layout = s->owner == NONE ? 0 : layout_of(s, s->owner);
        if (!layout)
            return false;
        s->address = item;
        s->size = size_of(s->b, s->owner);
        uint32_t limit = s->limits ? s->limits[s->owner] : 0;
        if (limit) {
            uint64_t used = (limit & (IS_TABLE - 1)) - 1;
            s->size = used < s->size ? used : s->size;
            s->table = limit & IS_TABLE ? s->address + s->size : 0;
        }
        s->data = s->size <= next->length ? next->data : NULL;
    }
    s->group = s->bounds.items[layout];
    s->group_end = s->bounds.items[layout + 1];
    return s->group < s->group_end;
}

/* Visit the pointers of the current element from `s->slot` on. */
static int visit_element(spread *s, const elements *one) {
    uint64_t base = one->start + s->element * one->stride;
    for (; s->slot < one->last; s->slot++) {
        int more = s->added - s->followed == RING ? follow_all(s) : DONE;
        if (more)
            return more;
        slot_of_pointer pointer = s->slots.items[s->slot];
        uint64_t value = word_of(s, s->data, s->address, s->size, base + pointer.offset);
        if (value)
            add_pointer(s, s->address + base + pointer.offset, value, pointer.reference);
    }
    return DONE;
}

/* Visit elements of the current owner. Return 1 if the budget was used up, ASKED if an answer is
 * missing. */
static int visit(spread *s, int64_t *budget) {
    for (; s->group < s->group_end; s->group++, s->element = 0) {
        elements one = s->groups.items[s->group];
        uint64_t count = one.first < one.last ? element_count(&one, s->size) : 0, requested;
        int more = requested_count(s, &one, count, &requested);
        if (more)
            return more;
        uint64_t end = s->doubtful ? count : requested;
        if (s->doubtful && s->element < requested)
            s->element = requested;
        for (; s->element < end; s->element++) {
            if (--*budget < 0)
                return 1;
            if (is_empty_element(s, one.stride))
                continue;
            if (s->slot < one.first || s->slot >= one.last)
                s->slot = one.first;
            more = visit_element(s, &one);
            if (more)
                return more;
            s->slot = NONE;
        }
        if (end < count && s->doubts && words_push(&s->doubtful_blocks, s->address))
            return NO_MEMORY;
    }
    return DONE;
}

INLINE void prefetch_slot(const spread *s, uint64_t item) {
    const slot *near = item & QUEUED_ROOT ? NULL : slot_of(s->b, item);
    if (near)
        __builtin_prefetch(near);
}

/* Look up the blocks of the next items in the queue. The processor then fetches the memory for all
 * these visits at the same time, so that the cache misses overlap. */
INLINE void look_up_queued(spread *s) {
    uint64_t start, left = s->queue.count - s->head;
    uint32_t count = left < AHEAD ? (uint32_t)left : AHEAD;
    for (uint32_t at = 0; at < count; at++)
        prefetch_slot(s, s->queue.items[s->head + at]);
    for (uint32_t at = 0; at < count; at++) {
        uint64_t item = s->queue.items[s->head + at];
        upcoming *next = &s->ahead[at];
        *next = (upcoming){NULL, 0, item & QUEUED_ROOT ? NONE : block_before(s->b, slot_of(s->b, item), item, &start)};
        if (next->index == NONE)
            continue;
        prefetch_size(s->b, next->index);
        __builtin_prefetch(&s->claims[next->index]);
        const piece *p = piece_holding(s->pieces, s->piece_count, item);
        if (p && item - p->address < p->length) {
            next->data = p->data + (item - p->address);
            next->length = p->length - (item - p->address);
            __builtin_prefetch(next->data);
        }
    }
    s->ahead_count = count;
    s->ahead_next = 0;
}

static void look_up_plain(spread *s) { look_up_queued(s); }
POPCNT static void look_up_popcnt(spread *s) { look_up_queued(s); }

/* Take the next item of the queue and begin to visit it. Return false if the item has no pointers.
 * */
static bool begin_next(spread *s) {
    if (s->ahead_next == s->ahead_count)
        (has_popcnt() ? look_up_popcnt : look_up_plain)(s);
    uint64_t item = s->queue.items[s->head++];
    if (s->head >= SPENT && s->head >= s->queue.count / 2) {
        s->queue.count -= s->head;
        memmove(s->queue.items, s->queue.items + s->head, s->queue.count * sizeof *s->queue.items);
        s->head = 0;
    }
    return begin(s, item, &s->ahead[s->ahead_next++]);
}

/* Take the next block with doubtful elements, and begin to visit these. Return false if there are
 * none. */
static bool begin_doubtful(spread *s) {
    uint64_t start, item = s->doubtful_blocks.items[s->doubtful_head++];
    upcoming next = {NULL, 0, block_before(s->b, slot_of(s->b, item), item, &start)};
    if (!begin(s, item, &next))
        return false;
    s->doubtful = true;
    return true;
}

/* Visit the queued memory. Return 1 if the budget was used up, ASKED if questions must be answered,
 * 0 when no visit is left. */
API int fl_spread_run(spread *s, int64_t budget) {
    for (;;) {
        if (!s->visiting && s->head >= s->queue.count) {
            int more = follow_all(s);
            if (more)
                return more;
            if (s->head >= s->queue.count && s->doubtful_head >= s->doubtful_end)
                break;
        }
        if (!s->visiting) {
            if (--budget < 0)
                return 1;
            if (!(s->head < s->queue.count ? begin_next(s) : begin_doubtful(s)))
                continue;
            s->visiting = true;
        }
        int more = visit(s, &budget);
        if (more)
            return more;
        s->visiting = false;
    }
    s->queue.count = s->head = 0;
    return DONE;
}
