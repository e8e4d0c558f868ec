/* Rules of the spread of types: what pointers of some type say about blocks, as the caller
 * answered; and the pointers that wait for a decision. Rules are in a hash table. */
#include "type_spread.h"

#include <stdlib.h>

INLINE uint64_t key_of(uint64_t sort, uint64_t reference, uint64_t offset) {
    return UINT64_C(1) << 63 | sort << 48 | offset << 32 | reference;
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

/* Set the answer of a rule, which is added if it is new. */
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

int note_pointer(spread *s, uint32_t reference, uint64_t offset, uint64_t size, uint64_t place, uint32_t index) {
    rule *at = rule_place(s->rules, s->rule_mask, key_of(RULE, reference, offset), size);
    if (at->list == NONE) {
        at->list = (uint32_t)s->lists.count;
        if (PUSH(s->lists, (pointer_list){at->key, size, 0, {0}}))
            return NO_MEMORY;
    }
    pointer_list *list = &s->lists.items[at->list];
    if (list->count++ >= MOST_POINTERS)
        return DONE;
    return PUSH_ALL(&list->rows, s->owner, place, index);
}

/* Add a list of layouts, the possible contents of blocks; returns its number. */
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

API int fl_spread_answer(spread *s, const uint64_t *questions, const uint32_t *answers, uint64_t count) {
    for (uint64_t at = 0; at < count; at++) {
        const uint64_t *row = questions + QUESTION_WORDS * at;
        uint64_t sort = row[0] >> 32;
        if (sort >= QUESTIONS || row[1] >= FARTHEST)
            return DISORDER;
        if (sort == RULE && answers[at] < UNKNOWN_RULE && (answers[at] & LAYOUT_MASK) + 1 >= s->bounds.count)
            return DISORDER;
        if (sort == POSSIBLE_LAYOUTS && answers[at] + 1 >= s->choice_bounds.count)
            return DISORDER;
        if (rule_set(s, key_of(sort, row[0] & UINT32_MAX, row[1]), row[2], answers[at]))
            return NO_MEMORY;
    }
    int failed = words_append(&s->queue, s->waiting.items, s->waiting.count);
    s->waiting.count = 0;
    return failed;
}

/* Return reference, offset, size, count and number of listed pointers of each rule, each followed
 * by three words for each pointer: owner, place, block. */
API int fl_spread_deferred(spread *s, words *found) {
    for (uint64_t at = 0; at < s->lists.count; at++) {
        pointer_list *list = &s->lists.items[at];
        rule_place(s->rules, s->rule_mask, list->key, list->third)->list = NONE;
        if (PUSH_ALL(found, list->key & UINT32_MAX, list->key >> 32 & (FARTHEST - 1), list->third, list->count, list->rows.count / 3) ||
            words_append(found, list->rows.items, list->rows.count))
            return NO_MEMORY;
        DROP(list->rows.items);
    }
    s->lists.count = 0;
    return DONE;
}
