/* Decides which of several possible contents a block has. A decision is the answer to a rule (see
 * type_rules.c) whose pointers refer to blocks of several types.
 * ../engine/reference/type_decisions.py is the same in Python. */
#include "type_spread.h"

#include <stdlib.h>

#define OPTION_WORDS 3u
#define LEAST_STRONG 2u /* pointers to blocks of the expected type that BY_SHAPE needs */
#define LEAST_VOID 8u   /* void pointers that an inferred array needs after its first element */
#define EXCLUDING UINT64_MAX /* option.size of an option that excludes a layout */
#define UNSPLIT (UINT64_C(1) << 62) /* flag of option.size: blocks seldom have this size */
#define MOST_FITS 64u   /* bits of a mask of fl_spread_fits */

/* ../engine/type_spread.py, Choosing. */
enum { BY_CONTENT, BY_SHAPE, BY_END };

/* Whether memory has only zeros. Missing memory counts as zeros. */
static bool is_zero(const spread *s, uint64_t address, uint64_t size) {
    const piece *p = piece_holding(s->pieces, s->piece_count, address);
    uint64_t offset = p ? address - p->address : 0;
    for (uint64_t at = 0; p && at < size && offset + at < p->length; at++)
        if (p->data[offset + at])
            return false;
    return true;
}

/* Of the options with the rank `best`, choose the smallest one behind which there are only zeros,
 * up to the end of the largest one. Return its claim; 0 if no option or more than one is chosen. */
static uint32_t choose_by_end(const spread *s, const option *options, uint32_t count, const uint64_t *ranks, uint64_t best, uint64_t start) {
    uint64_t most = 0, ignored = 0;
    const option *smallest = NULL;
    bool is_only = true;
    for (uint32_t at = 0; at < count; at++)
        if (ranks[at] == best && !(options[at].size & UNSPLIT))
            ignored = UNSPLIT; /* a type for which blocks usually have this size comes first */
    for (uint32_t at = 0; at < count; at++)
        if (ranks[at] == best && !(options[at].size & ignored) && (options[at].size & ~UNSPLIT) > most)
            most = options[at].size & ~UNSPLIT;
    for (uint32_t at = 0; at < count; at++) {
        const option *one = &options[at];
        uint64_t size = one->size & ~UNSPLIT;
        if (ranks[at] != best || one->size & ignored || (smallest && one->size > smallest->size) || !is_zero(s, start + size, most - size))
            continue;
        is_only = !smallest || one->size < smallest->size;
        smallest = one;
    }
    return smallest && is_only ? smallest->claim : 0;
}

/* Return how well a block fits an option. Higher numbers are better; 0 means that the block
 * contradicts the option. Of two options with the same pointers, the one without text in place of a
 * number is better. Set `is_likely` if a word is an address where the option has one. */
static uint64_t rank_of(matching *m, const option *one, unsigned mode, uint64_t start, uint64_t size, bool *is_likely) {
    uint32_t counts[COUNTS] = {0};
    if (mode != BY_END)
        compare_block(m, one->claim & LAYOUT_MASK, start, size, 1, counts);
    *is_likely = counts[STRONG] || counts[WEAK] || counts[LOOSE];
    if (counts[WRONG])
        return 0;
    uint64_t pointers = (uint64_t)counts[STRONG] << 32 | (mode == BY_SHAPE ? 0 : counts[WEAK]);
    return 1 + 2 * pointers - (pointers && counts[TEXT_NUMBER]);
}

/* Return whether the block may get the only option, even without pointers. At UNION, the block may
 * be text or numbers that another member refers to, so an array of pointers needs a pointer. */
static bool suffices(const spread *s, uint32_t claim, uint64_t start, uint64_t size) {
    uint32_t level = level_of(claim), group = s->bounds.items[claim & LAYOUT_MASK];
    if (level != LEVEL_UNION)
        return level != LEVEL_LEARNED;
    const elements *one = group < s->bounds.items[(claim & LAYOUT_MASK) + 1] ? &s->groups.items[group] : NULL;
    bool is_pointers = one && !one->start && !one->count && one->stride == WORD && one->first < one->last;
    return !is_pointers && !begins_with_text(s, start, size);
}

/* Return the claim of the option that fits best; 0 if there is none. Arrays are skipped.
 * ../engine/type_spread.py, Choosing, explains the modes. */
static uint32_t choose(matching *m, const option *options, uint32_t count, unsigned mode, uint64_t start, uint64_t size) {
    uint64_t ranks[MOST_OPTIONS], best = 0;
    uint32_t alternatives = 0, number = 0, claim = 0;
    bool all_base = true, is_likely = false;
    for (uint32_t at = 0; at < count; at++) {
        bool is_alternative = options[at].single == NOT_ARRAY;
        ranks[at] = is_alternative ? rank_of(m, &options[at], mode, start, size, &is_likely) : 0;
        if (m->asked || m->failed)
            return 0;
        alternatives += is_alternative;
        best = ranks[at] > best ? ranks[at] : best;
    }
    if (!best)
        return 0;
    for (uint32_t at = 0; at < count; at++)
        if (ranks[at] == best) {
            number++;
            claim = options[at].claim;
            all_base = all_base && level_of(claim) == LEVEL_BASE;
        }
    if (mode == BY_SHAPE)
        return number == 1 && best >> 33 >= LEAST_STRONG ? claim : 0;
    if (mode == BY_CONTENT && number == 1)
        return best > 1 || (alternatives == 1 && (is_likely || suffices(m->s, claim, start, size))) ? claim : 0;
    if (mode == BY_CONTENT && !all_base)
        return 0;
    return choose_by_end(m->s, options, count, ranks, best, start);
}

/* Return whether all elements fit, and an element after the first has a pointer. If the claim is
 * inferred, the elements after the first need at least LEAST_VOID void pointers instead. An example
 * is a hash table whose keys and values have the type void *. */
static bool has_elements(matching *m, const option *one, uint64_t start, uint64_t size) {
    uint32_t all[COUNTS] = {0}, first[COUNTS] = {0};
    bool is_inferred = level_of(one->claim) >= LEVEL_BASE;
    compare_block(m, one->claim & LAYOUT_MASK, start, size, 1, all);
    if (all[WRONG] || !(is_inferred ? all[LOOSE] : all[STRONG] + all[WEAK]))
        return false;
    if (one->single)
        compare_block(m, one->single, start, size, 1, first);
    if (is_inferred)
        return all[LOOSE] >= first[LOOSE] + LEAST_VOID;
    return all[STRONG] + all[WEAK] > first[STRONG] + first[WEAK];
}

/* Return whether a block is an array. `used`: the bytes that are in use. If this is the whole block
 * of `size` bytes, the last elements may contain stale words: those for which the smallest request
 * has no room. */
static bool is_array(matching *m, const option *one, uint64_t start, uint64_t used, uint64_t size) {
    uint64_t stride = stride_of(m->s, one->claim & LAYOUT_MASK);
    uint32_t unrequested = 0;
    if (has_elements(m, one, start, used))
        return true;
    if (m->asked || m->failed || used < size || !stride)
        return false;
    m->failed = rule_answer(m->s, UNREQUESTED, 0, 0, size, &unrequested);
    m->asked = unrequested == UNKNOWN_RULE;
    if (m->failed || m->asked)
        return false;
    uint64_t least = size > unrequested ? size - unrequested : 0, requested = (least + stride - 1) / stride * stride;
    return requested < size && has_elements(m, one, start, requested);
}

/* Whether two options that exclude a layout belong together. */
static bool belong(const option *first, const option *other) {
    return first->size == EXCLUDING && other->size == EXCLUDING && first->claim == other->claim;
}

/* Return whether the block fits an option, and contradicts all layouts that this option and the
 * ones that belong to it exclude. */
static bool excludes(matching *m, const option *first, const option *end, uint64_t start, uint64_t size) {
    uint32_t counts[COUNTS] = {0};
    compare_block(m, first->claim & LAYOUT_MASK, start, size, 1, counts);
    bool found = !counts[WRONG] && counts[STRONG] + counts[WEAK];
    for (const option *one = first; found && one < end && belong(first, one); one++) {
        uint32_t rival[COUNTS] = {0};
        compare_block(m, one->single, start, size, 1, rival);
        found = rival[WRONG];
    }
    return found;
}

static uint64_t pointer_rank(const uint32_t *counts) { return (uint64_t)counts[STRONG] << 32 | counts[WEAK]; }

/* Whether a pointer that may be a stale word may claim a block: the content must not contradict the
 * claim, and no other type of this size may explain more words of it as addresses. The claim is
 * certain only if pointers of the block fit it better than all other types. */
bool may_claim(matching *m, const followed *p, uint32_t claim, bool *is_certain) {
    const spread *s = m->s;
    uint64_t size = size_of(s->b, p->index);
    uint32_t counts[COUNTS] = {0}, list = UNKNOWN_RULE;
    compare_block(m, claim & LAYOUT_MASK, p->start, used_size(s, p, claim), 1, counts);
    *is_certain = counts[STRONG] || counts[WEAK];
    if (m->failed || m->asked || counts[WRONG])
        return false;
    m->failed = rule_answer(m->s, RIVALS, 0, 0, size, &list);
    m->asked = list == UNKNOWN_RULE;
    if (m->failed || m->asked)
        return false;
    for (uint32_t at = s->choice_bounds.items[list]; at < s->choice_bounds.items[list + 1]; at++) {
        uint32_t rival[COUNTS] = {0}, layout = s->choices.items[at];
        if (layout != (claim & LAYOUT_MASK))
            compare_block(m, layout, p->start, size, 1, rival);
        if (layout == (claim & LAYOUT_MASK) || rival[WRONG])
            continue;
        *is_certain &= pointer_rank(rival) < pointer_rank(counts);
        if (rival[STRONG] + rival[WEAK] + rival[LOOSE] > counts[STRONG] + counts[WEAK] + counts[LOOSE])
            return false;
    }
    return true;
}

static uint32_t claim_of_key(const spread *s, const decision *d, uint64_t key) {
    uint64_t at = d->first_key;
    BISECT(at, d->last_key, middle, s->keyed.items[middle].key < key)
    return at < d->last_key && s->keyed.items[at].key == key ? s->keyed.items[at].claim : 0;
}

uint32_t decide(matching *m, const decision *d, const followed *p) {
    const spread *s = m->s;
    uint64_t size = size_of(s->b, p->index), start = p->start;
    for (uint32_t at = d->first; at < d->last; at++) {
        const option *one = &s->options.items[at];
        bool found = false;
        if (one->size == EXCLUDING)
            found = !(at > d->first && belong(one - 1, one)) && excludes(m, one, s->options.items + d->last, start, used_size(s, p, one->claim));
        else if (one->single != NOT_ARRAY)
            found = is_array(m, one, start, used_size(s, p, one->claim), size);
        if (m->asked || m->failed)
            return 0;
        if (found)
            return s->options.items[at].claim;
    }
    uint32_t keyed = d->first_key < d->last_key ? claim_of_key(s, d, feature_value(s, d->feature, p->owner, p->place, p->index)) : 0;
    if (keyed && !(keyed & LAYOUT_MASK))
        return 0;
    if (keyed) {
        uint32_t counts[COUNTS] = {0};
        compare_block(m, keyed & LAYOUT_MASK, start, used_size(s, p, keyed), 1, counts);
        if (m->asked || m->failed)
            return 0;
        if (!counts[WRONG])
            return keyed;
    }
    return choose(m, s->options.items + d->first, d->last - d->first, BY_CONTENT, start, size);
}

static int add_options(spread *s, const uint64_t *rows, uint64_t count) {
    if (count > MOST_OPTIONS)
        return DISORDER;
    for (uint64_t at = 0; at < count; at++) {
        const uint64_t *row = rows + OPTION_WORDS * at;
        uint32_t single = row[1] >= NOT_ARRAY ? 0 : (uint32_t)row[1];
        if ((row[0] & LAYOUT_MASK) + 1 >= s->bounds.count || (uint64_t)single + 1 >= s->bounds.count)
            return DISORDER;
        if (PUSH(s->options, (option){(uint32_t)row[0], (uint32_t)row[1], row[2]}))
            return NO_MEMORY;
    }
    return DONE;
}

/* Add a decision; return its number. Each option has OPTION_WORDS words: its claim; `single`; and
 * the size of its type in bytes. `single` is NOT_ARRAY, or for an array, the layout of its first
 * element: the block must have a pointer behind that element. If it is 0, any pointer is enough.
 * If the size is EXCLUDING, `single` is a layout that the block must contradict.
 * `keys` (ascending) are the values of the feature that select the claims. A claim with the layout
 * 0 means that the block gets no claim. */
API int fl_spread_decision(spread *s, const uint64_t *options, uint64_t count, uint32_t feature, const uint64_t *keys, const uint32_t *claims,
                           uint64_t key_count) {
    decision made = {(uint32_t)s->options.count, 0, (uint32_t)s->keyed.count, 0, feature};
    int failed = s->decisions.count > LAYOUT_MASK ? DISORDER : add_options(s, options, count);
    for (uint64_t at = 0; at < key_count && !failed; at++) {
        if ((claims[at] & LAYOUT_MASK) + 1 >= s->bounds.count)
            return DISORDER;
        failed = PUSH(s->keyed, (keyed_claim){keys[at], claims[at]});
    }
    made.last = (uint32_t)s->options.count;
    made.last_key = (uint32_t)s->keyed.count;
    failed = failed ? failed : PUSH(s->decisions, made);
    return failed ? failed : (int)(s->decisions.count - 1);
}

/* Write the claim of the option that fits each block best; 0 if there is none. Returns 1 if
 * answers are missing. */
API int fl_spread_choose(spread *s, const uint64_t *options, uint64_t count, uint32_t mode, const uint32_t *indices, uint64_t index_count,
                         uint32_t *claims) {
    matching m = {.s = s};
    uint64_t before = s->options.count;
    bool asked = false;
    int failed = add_options(s, options, count);
    for (uint64_t at = 0; at < index_count && !failed; at++) {
        m.asked = false;
        claims[at] = 0;
        if (indices[at] < s->b->count)
            claims[at] = choose(&m, s->options.items + before, (uint32_t)count, mode, block_address(s->b, indices[at]), size_of(s->b, indices[at]));
        asked |= m.asked;
        failed = m.failed;
    }
    s->options.count = before;
    return failed ? failed : asked;
}

/* Write a mask for each block, with a bit for each of at most MOST_FITS layouts that the block does
 * not contradict. Returns 1 if answers are missing. */
API int fl_spread_fits(spread *s, const uint32_t *layouts, uint32_t count, const uint32_t *indices, uint64_t index_count, uint64_t *masks) {
    matching m = {.s = s};
    if (count > MOST_FITS)
        return DISORDER;
    for (uint32_t at = 0; at < count; at++)
        if ((uint64_t)layouts[at] + 1 >= s->bounds.count)
            return DISORDER;
    for (uint64_t at = 0; at < index_count && !m.failed; at++) {
        masks[at] = 0;
        for (uint32_t one = 0; one < count && indices[at] < s->b->count; one++) {
            uint32_t counts[COUNTS] = {0};
            compare_block(&m, layouts[one], block_address(s->b, indices[at]), size_of(s->b, indices[at]), 1, counts);
            masks[at] |= (uint64_t)!counts[WRONG] << one;
        }
    }
    return m.failed ? m.failed : m.asked;
}

/* Append the first `most` untyped blocks in use whose kind has its bit set in `wanted`. */
API int fl_spread_untyped(const spread *s, const uint8_t *kinds, uint32_t wanted, uint64_t most, words *found) {
    /* The kind is tested first, because it is the same for most blocks. */
    for (uint32_t index = 0; index < s->b->count && found->count < most; index++)
        if (wanted >> (kinds[index] & 31) & 1 && !s->claims[index] && s->b->states[index] == IN_USE &&
            words_push(found, index))
            return NO_MEMORY;
    return DONE;
}

/* Append the first `most` blocks with a layout. */
API int fl_spread_with_layout(const spread *s, uint32_t layout, uint64_t most, words *found) {
    uint64_t wanted = layout < s->counts.count ? s->counts.items[layout] : 0;
    most = wanted < most ? wanted : most;
    for (uint32_t index = 0; index < s->b->count && found->count < most; index++)
        if (layout_of(s, index) == layout && words_push(found, index))
            return NO_MEMORY;
    return DONE;
}

/* Append at most `most` typed blocks of each layout, at equal intervals. */
API int fl_spread_sample(const spread *s, uint32_t most, words *found) {
    uint64_t layouts = s->bounds.count - 1;
    uint32_t *skip = calloc(layouts, sizeof *skip);
    int failed = skip ? DONE : NO_MEMORY;
    for (uint32_t index = 0; index < s->b->count && !failed; index++) {
        uint32_t layout = layout_of(s, index);
        if (!layout || skip[layout]--)
            continue;
        skip[layout] = s->counts.items[layout] / most;
        failed = words_push(found, index);
    }
    free(skip);
    return failed;
}
