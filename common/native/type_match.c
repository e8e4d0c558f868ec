/* Compares blocks with layouts: pointers must refer to blocks that can be what the layout says.
 * Used where several types are possible. The same in Python: ../engine/reference/type_spread.py. */
#include "type_spread.h"

#define MOST_WORDS 1024u /* words of one block that are compared */
#define SMALL_NUMBER (UINT64_C(1) << 20)
#define LEAST_TEXT 3u /* characters */

/* Of a reference, in the caller's `flags`. */
enum { ANYTHING = 1, OPTIONAL = 2, NUMBER_POSSIBLE = 4 };
/* Of a word; also the index of its count in a result. */
enum { WRONG = 0, STRONG = 1, WEAK = 2, NEUTRAL = 3 };
/* Classes of words: ../engine/type_spread.py, WordClass. */
enum { ZERO, SMALL, NUMBER, TEXT, CODE_ADDRESS, STATIC_ADDRESS, BLOCK_START, BLOCK_MIDDLE, MISSING };

typedef struct {
    spread *s;
    const uint8_t *flags; /* by reference */
    uint32_t flag_count;
    bool asked; /* an answer is missing: the result is not valid */
    int failed;
} matching;

static void compare_block(matching *m, uint32_t layout, uint64_t start, uint64_t size, unsigned depth, uint32_t *counts);

static bool is_mapped(const spread *s, uint64_t address) { return in_ranges(s->mapped, s->mapped_count, address); }

static uint32_t answer_of(matching *m, uint64_t sort, uint32_t reference, uint64_t offset, uint64_t third) {
    uint32_t answer = UNKNOWN_RULE;
    m->failed = m->failed ? m->failed : rule_answer(m->s, sort, reference, offset, third, &answer);
    m->asked |= answer == UNKNOWN_RULE;
    return answer;
}

/* Whether an untyped block can be what a pointer refers to. */
static bool is_possible(matching *m, uint32_t reference, uint64_t offset, uint64_t start, uint64_t size, unsigned depth) {
    const spread *s = m->s;
    uint32_t list = answer_of(m, POSSIBLE_LAYOUTS, reference, offset, size);
    if (list == UNKNOWN_RULE)
        return true;
    uint32_t first = s->choice_bounds.items[list], last = s->choice_bounds.items[list + 1];
    if (!depth)
        return first < last;
    for (uint32_t at = first; at < last; at++) {
        uint32_t counts[3] = {0};
        compare_block(m, s->choices.items[at], start, size, depth - 1, counts);
        if (!counts[WRONG])
            return true;
    }
    return false;
}

static int compare_pointer(matching *m, uint32_t reference, uint64_t value, unsigned depth) {
    const spread *s = m->s;
    uint8_t flags = reference < m->flag_count ? m->flags[reference] : ANYTHING;
    uint64_t start = 0;
    if (flags & ANYTHING)
        return NEUTRAL;
    uint32_t index = used_block(s, value, &start);
    if (index == NONE)
        return flags & OPTIONAL || is_mapped(s, value) ? NEUTRAL : WRONG;
    uint64_t offset = value - start;
    uint32_t layout = s->claims[index] & LAYOUT_MASK;
    if (offset >= FARTHEST)
        return NEUTRAL;
    if (layout) {
        uint32_t agrees = answer_of(m, AGREES, reference, offset_in_element(s, layout, offset), layout);
        if (agrees == UNKNOWN_RULE)
            return NEUTRAL;
        return agrees == 2 ? STRONG : agrees ? WEAK : flags & NUMBER_POSSIBLE ? NEUTRAL : WRONG;
    }
    if (is_possible(m, reference, offset, start, size_of(s->b, index), depth))
        return WEAK;
    return flags & OPTIONAL ? NEUTRAL : WRONG;
}

static int compare_word(const spread *s, uint32_t role, uint64_t value) {
    if (role == CODE)
        return in_ranges(s->code, s->code_count, value) ? WEAK : WRONG;
    uint64_t start = 0;
    uint32_t index = used_block(s, value, &start);
    bool begins = index != NONE && value == start;
    if (role == PLAIN)
        return begins ? WRONG : NEUTRAL;
    if (!is_mapped(s, value))
        return WRONG;
    return !begins ? NEUTRAL : s->claims[index] & LAYOUT_MASK ? WRONG : WEAK;
}

static bool read_word(const spread *s, uint64_t address, uint64_t *value) {
    const uint8_t *at = word_at(s->pieces, s->piece_count, address);
    *value = at ? load(at) : 0;
    return *value != 0;
}

/* Add to counts[WRONG], [STRONG] and [WEAK]. */
static void compare_block(matching *m, uint32_t layout, uint64_t start, uint64_t size, unsigned depth, uint32_t *counts) {
    const spread *s = m->s;
    uint64_t seen = 0, value;
    for (uint32_t group = s->bounds.items[layout]; group < s->bounds.items[layout + 1]; group++) {
        elements one = s->groups.items[group];
        uint64_t room = size > one.start ? (size - one.start) / one.stride : 0;
        uint64_t count = one.count && one.count < room ? one.count : room;
        for (uint64_t element = 0; element < count; element++) {
            uint64_t base = start + one.start + element * one.stride;
            for (uint32_t at = one.first; at < one.last; at++)
                if (read_word(s, base + s->slots.items[at].offset, &value)) {
                    int found = compare_pointer(m, s->slots.items[at].reference, value, depth);
                    if (found != NEUTRAL)
                        counts[found]++;
                }
            for (uint32_t at = one.first_check; at < one.last_check; at++)
                if (read_word(s, base + s->checks.items[at].offset, &value)) {
                    int found = compare_word(s, s->checks.items[at].role, value);
                    if (found != NEUTRAL)
                        counts[found]++;
                }
            seen += one.last - one.first + one.last_check - one.first_check;
            if (seen > MOST_WORDS)
                return;
        }
    }
}

/* Set the memory that pointers may refer to; the ranges must exist until the end. */
API void fl_spread_memory(spread *s, const range *mapped, uint32_t mapped_count, const range *code, uint32_t code_count) {
    s->mapped = mapped;
    s->mapped_count = mapped_count;
    s->code = code;
    s->code_count = code_count;
}

/* Write three numbers for each block: words that contradict the layout, pointers to blocks of the
 * expected type, and to other possible targets. Returns 1 if answers are missing. */
API int fl_spread_match(spread *s, uint32_t layout, const uint32_t *indices, uint64_t count, const uint8_t *flags, uint32_t flag_count,
                       uint32_t *counts) {
    matching m = {.s = s, .flags = flags, .flag_count = flag_count};
    if (layout + 1 >= s->bounds.count)
        return DISORDER;
    for (uint64_t at = 0; at < count && !m.failed; at++) {
        uint32_t *row = counts + 3 * at;
        row[WRONG] = row[STRONG] = row[WEAK] = 0;
        if (indices[at] < s->b->count)
            compare_block(&m, layout, block_address(s->b, indices[at]), size_of(s->b, indices[at]), 1, row);
    }
    return m.failed ? m.failed : m.asked;
}

static bool is_text(const uint8_t *bytes) {
    unsigned length = WORD;
    while (length && !bytes[length - 1])
        length--;
    if (length < LEAST_TEXT)
        return false;
    for (unsigned at = 0; at < length; at++)
        if (bytes[at] < 0x20 || bytes[at] >= 0x7F)
            return false;
    return true;
}

static uint64_t class_of(const spread *s, const uint8_t *bytes) {
    uint64_t value = load(bytes), start = 0;
    if (!value)
        return ZERO;
    if (value < SMALL_NUMBER)
        return SMALL;
    uint32_t index = used_block(s, value, &start);
    if (index != NONE && value == start)
        return BLOCK_START | size_of(s->b, index) << 4;
    if (index != NONE)
        return BLOCK_MIDDLE | (value - start) << 4;
    if (is_mapped(s, value))
        return in_ranges(s->code, s->code_count, value) ? CODE_ADDRESS : STATIC_ADDRESS;
    return is_text(bytes) ? TEXT : NUMBER;
}

/* Write the classes of the first `words` words of each block; MISSING for words that it lacks. */
API void fl_spread_classes(const spread *s, const uint32_t *indices, uint64_t count, uint32_t word_count, uint64_t *classes) {
    for (uint64_t at = 0; at < count; at++) {
        uint64_t start = indices[at] < s->b->count ? block_address(s->b, indices[at]) : 0;
        uint64_t size = indices[at] < s->b->count ? size_of(s->b, indices[at]) : 0;
        for (uint32_t word = 0; word < word_count; word++) {
            const uint8_t *bytes = (word + 1) * WORD <= size ? word_at(s->pieces, s->piece_count, start + word * WORD) : NULL;
            classes[at * word_count + word] = bytes ? class_of(s, bytes) : MISSING;
        }
    }
}
