/* Spreads types over blocks, along the pointers of typed memory. See ../engine/type_spread.py for
 * the terms, and ../engine/reference/type_spread.py for the same in Python.
 *
 * Example: a variable has the layout of `struct server`, whose word 0 has the reference "struct
 * client *". The word refers to the start of a block of 56 bytes. The rule for (reference, 0, 56)
 * is the layout of `struct client`: the block gets this claim and is queued, and its pointers are
 * followed in turn. */
#include "type_spread.h"

#include <stdlib.h>

API void fl_spread_free(spread *s) {
    for (uint64_t at = 0; at < s->lists.count; at++)
        free(s->lists.items[at].rows.items);
    FREE_ALL(s->bounds.items, s->groups.items, s->slots.items, s->checks.items, s->roots.items, s->rules, s->asked.items, s->queue.items, s->waiting.items,
             s->disputes.items, s->lists.items, s->choices.items, s->choice_bounds.items, s);
}

API spread *fl_spread_new(const blocks *b, uint32_t *claims, uint32_t *origins) {
    spread *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->b = b;
    s->claims = claims;
    s->origins = origins;
    s->rule_mask = 1023;
    s->rules = calloc(s->rule_mask + 1, sizeof *s->rules);
    /* Layout 0 has no words. */
    if (!s->rules || PUSH(s->bounds, 0) || PUSH(s->bounds, 0) || PUSH(s->choice_bounds, 0) || PUSH(s->choice_bounds, 0)) {
        fl_spread_free(s);
        return NULL;
    }
    return s;
}

/* The pieces must exist until the next call or the end. */
API void fl_spread_use(spread *s, const piece *pieces, uint64_t count) {
    s->pieces = pieces;
    s->piece_count = count;
}

/* Return the number of the new layout, NO_MEMORY, or DISORDER for an impossible one. */
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
        if (PUSH(s->checks, (check_of_word){checks[2 * at], (uint32_t)checks[2 * at + 1]}))
            return NO_MEMORY;
    for (uint64_t at = 0; at < group_count; at++) {
        const uint64_t *row = groups + GROUP_WORDS * at;
        elements one = {row[0], row[1], row[2], (uint32_t)(first + row[3]), (uint32_t)(first + row[4]), (uint32_t)(first_check + row[5]), (uint32_t)(first_check + row[6])};
        if (PUSH(s->groups, one))
            return NO_MEMORY;
    }
    return PUSH(s->bounds, (uint32_t)s->groups.count) ? NO_MEMORY : (int)number;
}

API int fl_spread_root(spread *s, uint64_t address, uint64_t size, uint32_t layout) {
    uint64_t number = s->roots.count;
    if (layout + 1 >= s->bounds.count || number >= ROOT_BIT - 1)
        return DISORDER;
    if (PUSH(s->roots, (root){address, size, layout}) || words_push(&s->queue, QUEUED_ROOT | number << 1))
        return NO_MEMORY;
    return (int)number;
}

/* In an array, all elements are alike. */
uint64_t offset_in_element(const spread *s, uint32_t layout, uint64_t offset) {
    const elements *first = s->bounds.items[layout] < s->bounds.items[layout + 1] ? &s->groups.items[s->bounds.items[layout]] : NULL;
    bool is_array = first && s->bounds.items[layout + 1] - s->bounds.items[layout] == 1 && !first->start && !first->count;
    return is_array ? offset % first->stride : offset;
}

static int claim_block(spread *s, uint32_t index, uint64_t start, uint32_t claim, bool inferred, uint32_t origin) {
    if (inferred || (claim >> LEVEL_SHIFT & LEVEL_MASK) >= FIRST_INFERRED)
        claim |= INFERRED;
    s->claims[index] = claim;
    s->origins[index] = origin;
    return words_push(&s->queue, start);
}

/* Returns 1 if the block was claimed, 0 if it has a type or is not in use. */
API int fl_spread_seed(spread *s, uint32_t index, uint32_t claim, bool inferred, uint32_t origin) {
    if (index >= s->b->count || (claim & LAYOUT_MASK) + 1 >= s->bounds.count)
        return DISORDER;
    if (s->claims[index] || s->b->states[index] != IN_USE)
        return 0;
    return claim_block(s, index, block_address(s->b, index), claim, inferred, origin) ? NO_MEMORY : 1;
}

API int fl_spread_seed_words(spread *s, const uint64_t *sought, const uint32_t *layouts, const uint64_t *least, uint64_t count) {
    uint64_t start = s->b->lowest;
    if (!s->b->count || !count)
        return DONE;
    for (uint32_t index = 0;;) {
        const uint8_t *at = NULL;
        if (!s->claims[index] && s->b->states[index] == IN_USE && size_of(s->b, index) >= WORD && start % WORD == 0)
            at = word_at(s->pieces, s->piece_count, start);
        uint64_t value = at ? load(at) : 0, found = 0;
        if (value >= sought[0] && value <= sought[count - 1]) {
            BISECT(found, count, middle, sought[middle] < value)
            if (found < count && sought[found] == value && size_of(s->b, index) >= least[found] &&
                claim_block(s, index, start, layouts[found] | SEED << LEVEL_SHIFT, false, NONE))
                return NO_MEMORY;
        }
        if (!next_block(s->b, &index, &start))
            return DONE;
    }
}

/* Compare a certain claim of a block with the rule of another pointer to it. */
static int compare(spread *s, uint32_t index, uint32_t found, uint32_t reference, uint64_t offset) {
    uint32_t layout = s->claims[index] & LAYOUT_MASK, agrees = 0;
    if ((found & LAYOUT_MASK) == layout || found >> LEVEL_SHIFT >= FIRST_INFERRED)
        return DONE;
    int failed = rule_answer(s, AGREES, reference, offset_in_element(s, layout, offset), layout, &agrees);
    if (failed)
        return failed;
    s->waits |= agrees == UNKNOWN_RULE;
    if (agrees)
        return DONE;
    s->claims[index] = DISPUTED;
    return words_push(&s->disputes, index);
}

/* Follow the pointer `value`, stored at `place`. */
static int follow(spread *s, uint64_t place, uint64_t value, uint32_t reference) {
    uint64_t start = 0;
    uint32_t answer, index = used_block(s, value, &start);
    uint64_t size = index == NONE ? 0 : size_of(s->b, index), offset = value - start;
    if (index == NONE || index == s->owner || offset >= FARTHEST)
        return DONE;
    int failed = rule_answer(s, RULE, reference, offset, size, &answer);
    if (failed || answer == NO_CLAIM)
        return failed;
    if (answer == UNKNOWN_RULE) {
        s->waits = true;
        return DONE;
    }
    if (answer == DEFERRED)
        return note_pointer(s, reference, offset, size, place, index);
    if (!s->claims[index])
        return claim_block(s, index, start, answer, !s->certain, s->owner);
    if (s->certain && !(s->claims[index] & (INFERRED | DISPUTED)))
        return compare(s, index, answer, reference, offset);
    return DONE;
}

/* Begin to visit an item of the queue; false if it has no pointers. */
static bool begin(spread *s, uint64_t item) {
    uint32_t layout;
    s->waits = false;
    s->element = 0;
    if (item & QUEUED_ROOT) {
        const root *r = &s->roots.items[item >> 1];
        s->owner = ROOT_BIT + (uint32_t)(item >> 1);
        s->address = r->address;
        s->size = r->size;
        s->certain = true;
        layout = r->layout;
    } else {
        s->owner = block_find(s->b, item);
        uint32_t claim = s->owner == NONE ? 0 : s->claims[s->owner];
        if (!claim || claim & DISPUTED)
            return false;
        s->address = item;
        s->size = size_of(s->b, s->owner);
        s->certain = !(claim & INFERRED);
        layout = claim & LAYOUT_MASK;
    }
    s->group = s->bounds.items[layout];
    s->group_end = s->bounds.items[layout + 1];
    const piece *p = piece_holding(s->pieces, s->piece_count, s->address);
    uint64_t offset = p ? s->address - p->address : 0;
    s->data = p && offset < p->length && p->length - offset >= s->size ? p->data + offset : NULL;
    return s->group < s->group_end;
}

/* Visit elements of the current owner; 1 if the budget was used up. */
static int visit(spread *s, int64_t *budget) {
    for (; s->group < s->group_end; s->group++, s->element = 0) {
        elements one = s->groups.items[s->group];
        uint64_t room = s->size > one.start ? (s->size - one.start) / one.stride : 0;
        uint64_t count = one.count && one.count < room ? one.count : room;
        for (; s->element < count; s->element++) {
            if (--*budget < 0)
                return 1;
            uint64_t base = one.start + s->element * one.stride;
            for (uint32_t at = one.first; at < one.last; at++) {
                slot_of_pointer pointer = s->slots.items[at];
                uint64_t place = base + pointer.offset;
                const uint8_t *data = s->data && place + WORD <= s->size ? s->data + place : NULL;
                if (!data && !(data = word_at(s->pieces, s->piece_count, s->address + place)))
                    continue;
                uint64_t value = load(data);
                if (value && follow(s, s->address + place, value, pointer.reference))
                    return NO_MEMORY;
            }
        }
    }
    return DONE;
}

INLINE void look_ahead(const spread *s) {
    if (s->head + FAR >= s->queue.count || s->queue.items[s->head + FAR] & QUEUED_ROOT)
        return;
    uint64_t address = s->queue.items[s->head + FAR];
    const piece *p = piece_holding(s->pieces, s->piece_count, address);
    if (p && address - p->address < p->length)
        __builtin_prefetch(p->data + (address - p->address));
}

/* Returns 1 if work is left, 0 at the end. */
API int fl_spread_run(spread *s, int64_t budget) {
    while (s->visiting || s->head < s->queue.count) {
        if (!s->visiting) {
            if (--budget < 0)
                return 1;
            look_ahead(s);
            uint64_t item = s->queue.items[s->head++];
            if (s->head >= SPENT && s->head >= s->queue.count / 2) {
                s->queue.count -= s->head;
                memmove(s->queue.items, s->queue.items + s->head, s->queue.count * sizeof *s->queue.items);
                s->head = 0;
            }
            if (!begin(s, item))
                continue;
            s->visiting = true;
        }
        int more = visit(s, &budget);
        if (more)
            return more;
        s->visiting = false;
        if (s->waits && words_push(&s->waiting, s->owner & ROOT_BIT ? QUEUED_ROOT | (uint64_t)(s->owner - ROOT_BIT) << 1 : s->address))
            return NO_MEMORY;
    }
    s->queue.count = s->head = 0;
    return DONE;
}

static bool has_reference(const spread *s, uint32_t layout, const uint8_t *wanted) {
    for (uint32_t group = s->bounds.items[layout]; group < s->bounds.items[layout + 1]; group++)
        for (uint32_t at = s->groups.items[group].first; at < s->groups.items[group].last; at++)
            if (!wanted || wanted[s->slots.items[at].reference])
                return true;
    return false;
}

API int fl_spread_revisit(spread *s, const uint32_t *references, uint64_t count) {
    uint64_t layouts = s->bounds.count - 1;
    uint8_t *wanted = calloc((size_t)s->highest + 1, 1), *has = calloc(layouts, 1);
    int failed = wanted && has ? DONE : NO_MEMORY;
    for (uint64_t at = 0; at < count && !failed; at++)
        if (references[at] <= s->highest)
            wanted[references[at]] = 1;
    for (uint32_t layout = 0; layout < layouts && !failed; layout++)
        has[layout] = has_reference(s, layout, count ? wanted : NULL);
    for (uint64_t at = 0; at < s->roots.count && !failed; at++)
        if (has[s->roots.items[at].layout])
            failed = words_push(&s->queue, QUEUED_ROOT | at << 1);
    uint64_t start = s->b->lowest;
    for (uint32_t index = 0; index < s->b->count && !failed;) {
        if (has[s->claims[index] & LAYOUT_MASK] && !(s->claims[index] & DISPUTED))
            failed = words_push(&s->queue, start);
        if (!next_block(s->b, &index, &start))
            break;
    }
    FREE_ALL(wanted, has);
    return failed;
}

API int fl_spread_disputes(spread *s, words *found) {
    int failed = words_append(found, s->disputes.items, s->disputes.count);
    s->disputes.count = 0;
    return failed;
}

/* Returns the number of claims removed. */
API uint64_t fl_spread_retract(spread *s) {
    for (uint64_t fallen = 0, before;;) {
        before = fallen;
        for (uint32_t index = 0; index < s->b->count; index++) {
            uint32_t claim = s->claims[index], origin = s->origins[index];
            if (!claim || claim & DISPUTED || origin & ROOT_BIT)
                continue;
            if (!s->claims[origin] || s->claims[origin] & DISPUTED) {
                s->claims[index] = 0;
                s->origins[index] = NONE;
                fallen++;
            }
        }
        if (fallen == before)
            return fallen;
    }
}
