/* Keeps the rules of the spread of types in a hash table, and the pointers of each rule that the
 * caller has to judge. A rule is the caller's answer to the question what pointers with a reference
 * say about the blocks that they refer to. */
#include "type_spread.h"

#include <stdlib.h>

INLINE uint64_t key_of(uint64_t sort, uint64_t reference, uint64_t offset) {
    return UINT64_C(1) << 63 | sort << 60 | offset << 32 | reference;
}

static rule *rule_place(const rule *rules, uint64_t mask, uint64_t key, uint64_t third) {
    uint64_t place = ((key ^ third * UINT64_C(0xC2B2AE3D27D4EB4F)) * UINT64_C(0x9E3779B97F4A7C15)) >> 20 & mask;
    while (rules[place].key && (rules[place].key != key || rules[place].third != third))
        place = (place + 1) & mask;
    return (rule *)&rules[place];
}

static int rules_reserve(spread *s) {
    if (s->rule_count <= s->rule_mask / 2)
        return DONE;
    uint64_t mask = s->rule_mask * 2 + 1;
    rule *wider = calloc(mask + 1, sizeof *wider);
    if (!wider)
        return NO_MEMORY;
    for (uint64_t at = 0; at <= s->rule_mask; at++)
        if (s->rules[at].key)
            *rule_place(wider, mask, s->rules[at].key, s->rules[at].third) = s->rules[at];
    free(s->rules);
    s->rules = wider;
    s->rule_mask = mask;
    return DONE;
}

/* Set the answer of a rule. Add the rule if it is new. */
static int rule_set(spread *s, uint64_t key, uint64_t third, uint32_t value) {
    rule *at = rule_place(s->rules, s->rule_mask, key, third);
    if (at->key) {
        at->value = value;
        return DONE;
    }
    *at = (rule){key, third, value, NONE};
    s->rule_count++;
    return rules_reserve(s);
}

int rule_answer(spread *s, uint64_t sort, uint32_t reference, uint64_t offset, uint64_t third, uint32_t *answer) {
    uint64_t key = key_of(sort, reference, offset);
    const rule *at = rule_place(s->rules, s->rule_mask, key, third);
    if (at->key) {
        *answer = at->value;
        return DONE;
    }
    if (s->rule_count >= MOST_RULES) {
        *answer = sort == AGREES;
        return DONE;
    }
    *answer = UNKNOWN_RULE;
    return PUSH_ALL(&s->asked, sort << 32 | reference, offset, third) ? NO_MEMORY : rule_set(s, key, third, UNKNOWN_RULE);
}

/* Return a hash of the address of a pointer, by which pointers are sampled. A sample at equal steps
 * could miss one of two types that alternate. */
INLINE uint64_t hash_of(uint64_t place) { return (place * UINT64_C(0x9E3779B97F4A7C15)) >> 32; }

/* Drop about half of the pointers, and keep only half as many of those that follow. */
static void thin_out(pointer_sample *one) {
    uint64_t kept = 0;
    one->mask = one->mask * 2 + 1;
    for (uint64_t at = 0; at < one->rows.count; at += 3)
        if (!(hash_of(one->rows.items[at + 1]) & one->mask)) {
            memmove(one->rows.items + kept, one->rows.items + at, 3 * sizeof *one->rows.items);
            kept += 3;
        }
    one->rows.count = kept;
}

static int sample_pointer(pointer_sample *one, uint64_t owner, uint64_t place, uint64_t index) {
    one->count++;
    if (hash_of(place) & one->mask)
        return DONE;
    if (PUSH_ALL(&one->rows, owner, place, index))
        return NO_MEMORY;
    if (one->rows.count >= 3 * MOST_POINTERS)
        thin_out(one);
    return DONE;
}

int note_pointer(spread *s, const followed *p) {
    if (s->claims[p->index] & DISPUTED)
        return DONE;
    rule *at = rule_place(s->rules, s->rule_mask, key_of(RULE, p->reference, p->value - p->start), size_of(s->b, p->index));
    if (at->list == NONE) {
        at->list = (uint32_t)s->lists.count;
        if (PUSH(s->lists, (pointer_list){at->key, at->third, {{0}, 0, 0}, {{0}, 0, 0}}))
            return NO_MEMORY;
    }
    pointer_list *list = &s->lists.items[at->list];
    return sample_pointer(s->claims[p->index] ? &list->typed : &list->untyped, p->owner, p->place, p->index);
}

/* Add a list of layouts that blocks may have. Returns the number of the list. */
API int fl_spread_choices(spread *s, const uint32_t *layouts, uint64_t count) {
    uint64_t number = s->choice_bounds.count - 1;
    for (uint64_t at = 0; at < count; at++)
        if (layouts[at] + 1 >= s->bounds.count)
            return DISORDER;
    for (uint64_t at = 0; at < count; at++)
        if (PUSH(s->choices, layouts[at]))
            return NO_MEMORY;
    return PUSH(s->choice_bounds, (uint32_t)s->choices.count) ? NO_MEMORY : (int)number;
}

API int fl_spread_questions(spread *s, words *found) {
    int failed = words_append(found, s->asked.items, s->asked.count);
    s->asked.count = 0;
    return failed;
}

static int note_decision(spread *s, uint32_t reference) {
    while (reference <= s->highest && s->decides.count <= reference)
        if (PUSH(s->decides, false))
            return NO_MEMORY;
    if (reference < s->decides.count)
        s->decides.items[reference] = true;
    return DONE;
}

API int fl_spread_answer(spread *s, const uint64_t *questions, const uint32_t *answers, uint64_t count) {
    for (uint64_t at = 0; at < count; at++) {
        const uint64_t *row = questions + QUESTION_WORDS * at;
        uint64_t sort = row[0] >> 32;
        if (sort >= QUESTIONS || row[1] >= FARTHEST_TABLE)
            return DISORDER;
        if (sort == RULE && answers[at] < UNKNOWN_RULE &&
            (answers[at] & LAYOUT_MASK) + 1 >= (answers[at] & DECISION ? s->decisions.count + 1 : s->bounds.count))
            return DISORDER;
        if ((sort == POSSIBLE_LAYOUTS || sort == RIVALS) && answers[at] + 1 >= s->choice_bounds.count)
            return DISORDER;
        bool is_decision = sort == RULE && answers[at] < UNKNOWN_RULE && answers[at] & DECISION;
        if ((is_decision && note_decision(s, (uint32_t)row[0])) || rule_set(s, key_of(sort, row[0] & UINT32_MAX, row[1]), row[2], answers[at]))
            return NO_MEMORY;
    }
    return DONE;
}

static int take_rows(words *found, pointer_sample *one) {
    int failed = words_append(found, one->rows.items, one->rows.count);
    DROP(one->rows.items);
    return failed;
}

/* Append six words for each rule: reference, offset, size, the number of its pointers to untyped
 * blocks, and the numbers of sampled pointers to untyped and to typed blocks. Three words for each
 * sampled pointer follow: owner, place, block. */
API int fl_spread_deferred(spread *s, words *found) {
    for (uint64_t at = 0; at < s->lists.count; at++) {
        pointer_list *list = &s->lists.items[at];
        rule_place(s->rules, s->rule_mask, list->key, list->third)->list = NONE;
        if (PUSH_ALL(found, list->key & UINT32_MAX, list->key >> 32 & (FARTHEST_TABLE - 1), list->third, list->untyped.count,
                     list->untyped.rows.count / 3, list->typed.rows.count / 3) ||
            take_rows(found, &list->untyped) || take_rows(found, &list->typed))
            return NO_MEMORY;
    }
    s->lists.count = 0;
    return DONE;
}

/* From now on, certain pointers make inferred claims certain. Queue the typed memory with pointers
 * whose rules determine a layout of blocks with inferred claims. */
API int fl_spread_confirm(spread *s) {
    uint8_t *inferred = calloc(s->bounds.count, 1);
    LIST(uint32_t) found = {0};
    int failed = inferred ? DONE : NO_MEMORY;
    for (uint32_t index = 0; index < s->b->count && !failed; index++)
        if (s->claims[index] & INFERRED)
            inferred[layout_of(s, index)] = 1;
    for (uint64_t at = 0; at <= s->rule_mask && !failed; at++) {
        const rule *one = &s->rules[at];
        bool is_rule = one->key >> 60 == key_of(RULE, 0, 0) >> 60, is_claim = !(one->value & DECISION) && level_of(one->value) < LEVEL_BASE;
        if (is_rule && is_claim && inferred[one->value & LAYOUT_MASK] && PUSH(found, (uint32_t)one->key))
            failed = NO_MEMORY;
    }
    s->confirms = true;
    if (found.count && !failed)
        failed = fl_spread_revisit(s, found.items, found.count);
    FREE_ALL(inferred, found.items);
    return failed;
}
