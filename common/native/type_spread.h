/* Types of blocks: declarations that the files type_*.c share. The constants have the same values
 * in ../engine/type_spread.py, which explains the terms. */
#ifndef FINDLEAKS_TYPE_SPREAD_H
#define FINDLEAKS_TYPE_SPREAD_H

#include "blocks.h"

typedef struct spread spread;

#define LAYOUT_MASK 0xFFFFFFu
#define LEVEL_SHIFT 24
#define LEVEL_MASK 15u
#define INFERRED (1u << 28)
#define DISPUTED (1u << 29) /* the whole claim of a disputed block, which has no layout */
#define LEVEL_ARRAY 5u
#define LEVEL_BASE 6u /* claims of this level and of higher ones are inferred */
#define LEVEL_UNION 7u
#define LEVEL_LEARNED 8u
#define NO_CLAIM 0u
#define DEFERRED UINT32_MAX
#define UNKNOWN_RULE (UINT32_MAX - 1)
#define DECISION (1u << 30) /* set in an answer whose low bits are the number of a decision */
#define ROOT_BIT (1u << 31)
#define FARTHEST (1u << 16)
#define FARTHEST_TABLE (1u << 28)
#define MOST_RULES (1u << 20)
#define MOST_POINTERS (1u << 9)
#define MOST_OPTIONS 128u /* of one decision or one call of fl_spread_choose */
#define NOT_ARRAY UINT32_MAX /* option.single of a content that is not an array */
/* Flags of a reference: ../engine/type_spread.py, Flag. */
enum { ANYTHING = 1, OPTIONAL = 2, NUMBER_POSSIBLE = 4, LENGTH_SHIFT = 3, RING_START = 32, TABLE = 64, END = 128 };
#define LIMITED 0xF8u /* the flags of references whose blocks may have a limit */
#define IS_TABLE (1u << 31)
#define LIMIT_BYTES (IS_TABLE - 2)
#define GROUP_WORDS 7u
#define QUESTION_WORDS 3u
/* An item of the queue is the address of a block, which is even, or the number of root memory << 1
 * with this bit set. */
#define QUEUED_ROOT UINT64_C(1)
#define SPENT (1u << 16)                /* least items of the queue to drop at once */
#define RING 64u                        /* pointers that wait to be followed: see add_pointer */
#define AHEAD 32u                       /* items of the queue that are looked up at once */

#define ASKED 2 /* returned if an answer is missing */

enum { RULE = 0, AGREES = 1, POSSIBLE_LAYOUTS = 2, UNREQUESTED = 3, RIVALS = 4, QUESTIONS };
enum { CODE = 1, DATA = 2, PLAIN = 3, CHARACTERS = 4, FLOATING = 5 };
/* What the comparison of a word with a layout finds. All but NEUTRAL are also the indices of their
 * counts. */
enum { WRONG = 0, STRONG = 1, WEAK = 2, LOOSE = 3, TEXT_NUMBER = 4, NEUTRAL = 5 };
#define COUNTS NEUTRAL /* number of these counts */

/* Equal elements of a layout: slots and checks are those of each element. */
typedef struct {
    uint64_t start, stride, count;
    uint32_t first, last, first_check, last_check;
} elements;

/* Return the number of elements in memory of `size` bytes. */
INLINE uint64_t element_count(const elements *one, uint64_t size) {
    uint64_t room = size > one->start ? (size - one->start) / one->stride : 0;
    return one->count && one->count < room ? one->count : room;
}

typedef struct {
    uint64_t offset;
    uint32_t reference;
} slot_of_pointer;

/* A word that is not a pointer to a block: CODE, DATA, PLAIN, CHARACTERS or FLOATING. If `stride`
 * is not 0, the word is the capacity of a buffer with elements of `stride` bytes. The pointer to
 * the buffer is `distance` bytes after the word. */
typedef struct {
    uint64_t offset;
    uint32_t role, stride;
    int64_t distance;
} check_of_word;

INLINE check_of_word check_of(uint64_t offset, uint64_t role) {
    return (check_of_word){offset, role & 0xFF, (uint32_t)(role >> 16), (int64_t)(role >> 8 & 0xFF) - 128};
}

typedef struct {
    uint64_t address, size;
    uint32_t layout;
    bool in_pool;
} root;

typedef struct {
    uint64_t key, third; /* an entry with key 0 is not used */
    uint32_t value, list; /* list: number in `lists`, or NONE */
} rule;

/* A sample of `count` pointers. Each has three words in `rows`: owner, place, block. The sample has
 * fewer than MOST_POINTERS pointers: those whose hash has no bit in common with `mask`. */
typedef struct {
    words rows;
    uint64_t count, mask;
} pointer_sample;

typedef struct {
    uint64_t key, third;
    pointer_sample untyped, typed; /* pointers to untyped, and to typed blocks */
} pointer_list;

/* A possible content of a block. fl_spread_decision explains `single`. */
typedef struct {
    uint32_t claim, single;
    uint64_t size;
} option;

typedef struct {
    uint64_t key;
    uint32_t claim;
} keyed_claim;

typedef struct {
    uint32_t first, last, first_key, last_key; /* in `options` and `keyed` */
    uint32_t feature;
} decision;

/* A word of the nearest owner with a layout: see fl_spread_owner_word. */
typedef struct {
    uint32_t layout, size;
    uint64_t offset;
} owner_word;

/* A pointer with the value `value`, stored at `place` in the block or root memory `owner`. After
 * find_blocks, `index` and `start` describe the block at or before `value`. */
typedef struct {
    uint64_t value, place, start;
    const slot *near; /* the directory's slot for `value` */
    uint32_t reference, owner, index;
    bool certain, doubtful; /* doubtful: the pointer may be a stale word; see fl_spread_doubtful */
} followed;

/* A block that will be visited soon: its index, and `length` bytes of memory from its start on. For
 * roots, the index is NONE. */
typedef struct {
    const uint8_t *data;
    uint64_t length;
    uint32_t index;
} upcoming;

/* A pointer that type_pools.c noted recently. */
typedef struct {
    uint64_t value;
    uint32_t reference;
} pool_pointer;

#define RECENT (1u << 14) /* number of these */

struct spread {
    const blocks *b;
    uint32_t *claims, *origins; /* the caller's */
    /* For each block: 1 + the bytes that are in use, up to LIMIT_BYTES, and IS_TABLE; 0: all. NULL
     * until a block has a limit. */
    uint32_t *limits;
    uint8_t *pooled; /* for each block: whether it belongs to a pool; NULL if there are no pools */
    pool_pointer *recent;
    words pool_pointers;
    const piece *pieces;
    uint64_t piece_count;
    LIST(uint32_t) bounds; /* first group of each layout, and the end of the last one */
    LIST(elements) groups;
    LIST(slot_of_pointer) slots;
    LIST(check_of_word) checks;
    LIST(root) roots;
    LIST(root) ordered_roots; /* the roots, ascending; see root_at */
    rule *rules; /* open addressing */
    uint64_t rule_count, rule_mask;
    words asked, queue, disputes;
    uint64_t head; /* next in `queue` */
    LIST(pointer_list) lists;
    uint32_t highest; /* reference */
    LIST(uint32_t) choices, choice_bounds; /* lists of layouts, added by fl_spread_choices */
    LIST(option) options;
    LIST(keyed_claim) keyed; /* ascending by key, for each decision */
    LIST(decision) decisions;
    LIST(owner_word) owner_words;
    LIST(bool) decides; /* for each reference: whether a rule of it is answered with a decision */
    const uint8_t *flags; /* of references; the caller's */
    uint32_t flag_count;
    uint64_t claimed; /* claims made so far */
    LIST(uint32_t) counts; /* the number of blocks of each layout */
    const range *mapped, *code, *instructions; /* the caller's; sorted, disjoint */
    uint32_t mapped_count, code_count, instruction_count;
    /* The owner that is being visited: its number, address and size, and the next element and
     * slot. */
    uint32_t owner, group, group_end, slot;
    uint64_t address, size, element;
    uint64_t table; /* address of the bytes of a table's elements; 0: no table */
    const uint8_t *data; /* of the owner, if one piece has all of it */
    bool visiting, confirms; /* confirms: see fl_spread_confirm */
    /* Blocks with doubtful elements (fl_spread_doubtful), if `doubts` is set. Those from
     * `doubtful_head` up to `doubtful_end` are visited when the queue is empty. `doubtful`: the
     * doubtful elements of the owner are being visited. */
    words doubtful_blocks;
    uint64_t doubtful_head, doubtful_end;
    bool doubts, doubtful;
    upcoming ahead[AHEAD]; /* the next items of the queue */
    uint32_t ahead_next, ahead_count;
    followed ring[RING]; /* pointers that wait to be followed */
    /* Numbers of pointers so far: added to the ring, looked up by find_blocks, and followed or
     * skipped. */
    uint64_t added, found, followed, skipped;
};

/* type_rules.c. rule_answer: write the answer to a question. If the question is new, it is asked,
 * and the answer is UNKNOWN_RULE; after MOST_RULES questions, it is one that leads to no claim and
 * to no dispute. note_pointer: add a pointer to the list of its rule. */
int rule_answer(spread *s, uint64_t sort, uint32_t reference, uint64_t offset, uint64_t third, uint32_t *answer);
int note_pointer(spread *s, const followed *p);
/* type_pools.c. note_pool_pointer: note a pointer to a block of a pool. is_in_pool: return whether
 * an address is in a block of a pool. may_be_stale: return whether this claim is only inferred, and
 * the pointer belongs to an object of a pool, which may refer to a former pool. */
int note_pool_pointer(spread *s, const followed *p);
bool is_in_pool(const spread *s, uint64_t address);
bool may_be_stale(const spread *s, const followed *p, uint32_t claim);
/* type_spread.c. Return the offset in the element, if the layout is an array of equal elements;
 * else the offset itself. */
uint64_t offset_in_element(const spread *s, uint32_t layout, uint64_t offset);
/* Claim a block that starts at `start`, and queue it. */
int claim_block(spread *s, uint32_t index, uint64_t start, uint32_t claim, bool inferred, uint32_t origin);

/* type_match.c. A comparison of blocks with layouts. If `asked` is set, an answer is missing, and
 * the result is not valid. compare_block counts the words that contradict the layout (WRONG), fit
 * it well (STRONG), may fit it (WEAK), are an address where it has any pointer (LOOSE), or are text
 * where it has a number (TEXT_NUMBER); these are indices of `counts`. It stops at the first wrong
 * word. */
typedef struct {
    spread *s;
    uint64_t block; /* the start of the block that is compared */
    bool asked;
    int failed;
} matching;

/* Return whether the first word of a block is text. A valid address is not text, even if all its
 * bytes are characters, as in "@ZnUUU". */
bool begins_with_text(const spread *s, uint64_t start, uint64_t size);
void compare_block(matching *m, uint32_t layout, uint64_t start, uint64_t size, unsigned depth, uint32_t *counts);

/* type_used.c. limits_of: return the flags of a pointer that say which part of its block is in use,
 * if the block gets this claim; 0 if all of it is. A member of an enum may refer to the buffer of a
 * container or, depending on the discriminant, to one object. used_size: return the bytes of the
 * block that are in use. stride_of: return the bytes of each element, if a layout has equal
 * elements. is_empty_element: return whether the element that is being visited
 * is one of a table and not in use; each element has `stride` bytes. */
uint8_t limits_of(const spread *s, const followed *p, uint32_t claim);
uint64_t used_size(const spread *s, const followed *p, uint32_t claim);
uint64_t stride_of(const spread *s, uint32_t layout);
bool is_empty_element(const spread *s, uint64_t stride);
/* requested_count: write how many of `count` elements of the owner fit into the smallest request
 * that results in a block of its size. The last of them may be only partly inside. */
int requested_count(spread *s, const elements *one, uint64_t count, uint64_t *requested);

/* type_decisions.c. Decide which claim the block gets that a pointer refers to. Return 0 if no
 * option fits, or if m->asked is set. */
uint32_t decide(matching *m, const decision *d, const followed *p);
bool may_claim(matching *m, const followed *p, uint32_t claim, bool *is_certain);
/* type_features.c. Return the value of a feature of a pointer, such as a word near the pointer. */
uint64_t feature_value(const spread *s, uint32_t feature, uint32_t owner, uint64_t place, uint32_t target);

INLINE bool is_mapped(const spread *s, uint64_t address) { return in_ranges(s->mapped, s->mapped_count, address); }

INLINE bool has_decision(const spread *s, uint32_t reference) { return reference < s->decides.count && s->decides.items[reference]; }

INLINE uint8_t flags_of(const spread *s, uint32_t reference) { return reference < s->flag_count ? s->flags[reference] : 0; }

/* Return whether this offset in a block is too large for a pointer to it to make a claim on the
 * block's type. Pointers refer to one such offset of the table of a Rust HashMap, its end. Pointers
 * to other buffers may refer to a million such offsets. */
INLINE bool is_too_far(const spread *s, uint32_t reference, uint64_t offset) {
    return offset >= FARTHEST && (offset >= FARTHEST_TABLE || !(flags_of(s, reference) & TABLE));
}

INLINE bool is_pooled(const spread *s, uint32_t index) { return s->pooled && s->pooled[index]; }

/* Return the layout of a block; 0 if it is untyped or disputed. */
INLINE uint32_t layout_of(const spread *s, uint32_t index) { return s->claims[index] & LAYOUT_MASK; }

/* Change the claim of a block, and update the numbers of blocks by layout. */
INLINE void set_claim(spread *s, uint32_t index, uint32_t claim) {
    s->counts.items[s->claims[index] & LAYOUT_MASK]--;
    s->counts.items[claim & LAYOUT_MASK]++;
    s->claims[index] = claim;
}

INLINE uint32_t level_of(uint32_t claim) { return claim >> LEVEL_SHIFT & LEVEL_MASK; }

/* Return the word at an offset of a block or of root memory; 0 if it is missing. `data`: the whole
 * memory, or NULL if it is not in one piece. */
INLINE uint64_t word_of(const spread *s, const uint8_t *data, uint64_t start, uint64_t size, uint64_t offset) {
    bool is_inside = data && offset <= size && size - offset >= WORD;
    const uint8_t *at = is_inside ? data + offset : word_at(s->pieces, s->piece_count, start + offset);
    return at ? load(at) : 0;
}

/* Return the block in use that contains an address, and write its start; NONE if there is none. */
INLINE uint32_t used_block(const spread *s, uint64_t address, uint64_t *start) {
    uint32_t index = block_before(s->b, slot_of(s->b, address), address, start);
    bool inside = index != NONE && (address == *start || address - *start < size_of(s->b, index));
    return inside && s->b->states[index] == IN_USE ? index : NONE;
}

#endif
