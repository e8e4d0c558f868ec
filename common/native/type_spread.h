/* Types of blocks: declarations that type_spread.c, type_rules.c and type_match.c share. The
 * numbers are those of ../engine/type_spread.py. */
#ifndef FINDLEAKS_TYPE_SPREAD_H
#define FINDLEAKS_TYPE_SPREAD_H

#include "blocks.h"

typedef struct spread spread;

#define LAYOUT_MASK 0xFFFFFFu
#define LEVEL_SHIFT 24
#define LEVEL_MASK 15u
#define INFERRED (1u << 28)
#define DISPUTED (1u << 29)
#define FIRST_INFERRED 5u /* Level.BASE */
#define SEED 1u
#define NO_CLAIM 0u
#define DEFERRED UINT32_MAX
#define UNKNOWN_RULE (UINT32_MAX - 1)
#define ROOT_BIT (1u << 31)
#define FARTHEST (1u << 16)
#define MOST_RULES (1u << 20)
#define MOST_POINTERS (1u << 12)
#define GROUP_WORDS 7u
#define QUESTION_WORDS 3u
/* In the queue: set in the number of root memory << 1. Addresses of blocks are even. */
#define QUEUED_ROOT UINT64_C(1)
#define SPENT (1u << 16)                /* queue items that are done before they are dropped */
#define FAR 16u                         /* queue items ahead whose memory is prefetched */

enum { RULE = 0, AGREES = 1, POSSIBLE_LAYOUTS = 2, QUESTIONS };
enum { CODE = 1, DATA = 2, PLAIN = 3 };

/* Equal elements of a layout: slots and checks are those of each element. */
typedef struct {
    uint64_t start, stride, count;
    uint32_t first, last, first_check, last_check;
} elements;

typedef struct {
    uint64_t offset;
    uint32_t reference;
} slot_of_pointer;

/* A word that is no pointer to a block: CODE, DATA or PLAIN. */
typedef struct {
    uint64_t offset;
    uint32_t role;
} check_of_word;

typedef struct {
    uint64_t address, size;
    uint32_t layout;
} root;

typedef struct {
    uint64_t key, third; /* key 0: unused entry */
    uint32_t value, list; /* list: number in `lists`, or NONE */
} rule;

typedef struct {
    uint64_t key, third, count;
    words rows;
} pointer_list;

struct spread {
    const blocks *b;
    uint32_t *claims, *origins; /* the caller's */
    const piece *pieces;
    uint64_t piece_count;
    LIST(uint32_t) bounds; /* first group of each layout, and the end of the last one */
    LIST(elements) groups;
    LIST(slot_of_pointer) slots;
    LIST(check_of_word) checks;
    LIST(root) roots;
    rule *rules; /* open addressing */
    uint64_t rule_count, rule_mask;
    words asked, queue, waiting, disputes;
    uint64_t head; /* next in `queue` */
    LIST(pointer_list) lists;
    uint32_t highest; /* reference */
    LIST(uint32_t) choices, choice_bounds; /* lists of layouts: see fl_spread_choices */
    const range *mapped, *code;            /* the caller's; sorted, disjoint */
    uint32_t mapped_count, code_count;
    /* The owner that is being visited: its number, address and size, and the next element. */
    uint32_t owner, group, group_end;
    uint64_t address, size, element;
    const uint8_t *data; /* of the owner, if one piece has all of it */
    bool visiting, certain, waits;
};

/* type_rules.c. rule_answer: the answer to a question; UNKNOWN_RULE if it is asked now, and the
 * harmless one if there are too many. note_pointer: add a pointer to the list of its rule. */
int rule_answer(spread *s, uint64_t sort, uint32_t reference, uint64_t offset, uint64_t third, uint32_t *answer);
int note_pointer(spread *s, uint32_t reference, uint64_t offset, uint64_t size, uint64_t place, uint32_t index);
/* Return the offset in an element of an array, or the offset itself. */
uint64_t offset_in_element(const spread *s, uint32_t layout, uint64_t offset);

/* Return the block in use that contains an address, or NONE, and its start. */
INLINE uint32_t used_block(const spread *s, uint64_t address, uint64_t *start) {
    uint32_t index = block_before(s->b, slot_of(s->b, address), address, start);
    bool inside = index != NONE && (address == *start || address - *start < size_of(s->b, index));
    return inside && s->b->states[index] == IN_USE ? index : NONE;
}

#endif
