/* Compares blocks with layouts: the pointers of a block must refer to blocks of the types that the
 * layout expects. The comparison is used if several types are possible.
 * ../engine/reference/type_match.py is the same in Python. */
#include "type_spread.h"

#include <stdlib.h>

#define MOST_WORDS 1024u /* most words of one block that are compared */
#define SMALL_NUMBER (UINT64_C(1) << 20)
#define LEAST_TEXT 3u /* fewest characters of a word that is text */
#define LEAST_LONG 5u /* the same where the layout has a number */
#define FIRST_WORDS 4u /* words of a block that begins_alike compares */

/* Classes of words: ../engine/type_spread.py, WordClass. */
enum { ZERO, SMALL, NUMBER, TEXT, CODE_ADDRESS, STATIC_ADDRESS, BLOCK_START, BLOCK_MIDDLE, MISSING };

static uint32_t answer_of(matching *m, uint64_t sort, uint32_t reference, uint64_t offset, uint64_t third) {
    uint32_t answer = UNKNOWN_RULE;
    m->failed = m->failed ? m->failed : rule_answer(m->s, sort, reference, offset, third, &answer);
    m->asked |= answer == UNKNOWN_RULE;
    return answer;
}

/* Whether a word is text of at least `least` characters. */
static bool is_text(const uint8_t *bytes, unsigned least) {
    unsigned length = WORD;
    while (length && !bytes[length - 1])
        length--;
    if (length < least)
        return false;
    for (unsigned at = 0; at < length; at++)
        if (bytes[at] < 0x20 || bytes[at] >= 0x7F)
            return false;
    return true;
}

/* Whether a word is text that is too long to be a number of four bytes. A valid address is not
 * text, even if all its bytes are characters. */
static bool is_long_text(const spread *s, uint64_t value) {
    uint8_t bytes[WORD];
    for (unsigned at = 0; at < WORD; at++)
        bytes[at] = (uint8_t)(value >> 8 * (BIG ? WORD - 1 - at : at));
    return is_text(bytes, LEAST_LONG) && !is_mapped(s, value);
}

/* Whether a block may have a layout, judged only by the first words of the block. For example, a
 * word of text is not a pointer. */
static bool begins_alike(const spread *s, uint32_t layout, uint64_t start, uint64_t size) {
    uint32_t group = s->bounds.items[layout];
    if (group == s->bounds.items[layout + 1] || s->groups.items[group].start)
        return true;
    const elements *one = &s->groups.items[group];
    uint64_t length = size < FIRST_WORDS * WORD ? size : FIRST_WORDS * WORD, value;
    const uint8_t *data = memory_at(s->pieces, s->piece_count, start, length);
    for (uint32_t at = one->first; at < one->last; at++) {
        uint64_t offset = s->slots.items[at].offset;
        if (offset + WORD <= length && !(flags_of(s, s->slots.items[at].reference) & (ANYTHING | OPTIONAL | NUMBER_POSSIBLE)) &&
            (value = word_of(s, data, start, length, offset)) && !is_mapped(s, value))
            return false;
    }
    for (uint32_t at = one->first_check; at < one->last_check; at++) {
        check_of_word check = s->checks.items[at];
        if (check.offset + WORD <= length && check.role < PLAIN && (value = word_of(s, data, start, length, check.offset)) && !is_mapped(s, value))
            return false;
    }
    return true;
}

/* Whether an untyped block may be of a type that a pointer with this reference refers to. */
static bool is_possible(matching *m, uint32_t reference, uint64_t offset, uint64_t start, uint64_t size, unsigned depth) {
    const spread *s = m->s;
    uint32_t list = answer_of(m, POSSIBLE_LAYOUTS, reference, offset, size);
    if (list == UNKNOWN_RULE)
        return true;
    uint32_t first = s->choice_bounds.items[list], last = s->choice_bounds.items[list + 1];
    for (uint32_t at = first; at < last; at++) {
        uint32_t counts[COUNTS] = {0};
        if (!depth) {
            if (begins_alike(s, s->choices.items[at], start, size))
                return true;
            continue;
        }
        compare_block(m, s->choices.items[at], start, size, depth - 1, counts);
        if (!counts[WRONG])
            return true;
    }
    return false;
}

static int by_place(const void *first, const void *second) {
    const root *one = first, *other = second;
    if (one->address != other->address)
        return one->address < other->address ? -1 : 1;
    if (one->size != other->size)
        return one->size < other->size ? -1 : 1;
    return one->layout < other->layout ? -1 : one->layout > other->layout;
}

/* Return the typed memory outside of blocks that contains an address; NULL if there is none. */
static const root *root_at(matching *m, uint64_t address) {
    spread *s = m->s;
    if (s->ordered_roots.count != s->roots.count) {
        s->ordered_roots.count = 0;
        for (uint64_t at = 0; at < s->roots.count && !m->failed; at++)
            m->failed = PUSH(s->ordered_roots, s->roots.items[at]);
        if (m->failed)
            return NULL;
        qsort(s->ordered_roots.items, s->ordered_roots.count, sizeof(root), by_place);
    }
    uint64_t low = 0, high = s->ordered_roots.count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (s->ordered_roots.items[middle].address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    const root *found = low ? &s->ordered_roots.items[low - 1] : NULL;
    return found && address - found->address < found->size ? found : NULL;
}

/* Compare a pointer with the variable that it refers to. Programs may refer to a variable of
 * another type, for example to a head that ends a list, so no variable contradicts the pointer. */
static int compare_with_variable(matching *m, uint32_t reference, uint64_t value) {
    const root *found = root_at(m, value);
    uint64_t offset = found ? value - found->address : 0;
    if (!found || is_too_far(m->s, reference, offset))
        return LOOSE;
    return answer_of(m, AGREES, reference, offset_in_element(m->s, found->layout, offset), found->layout) == 2 ? STRONG : LOOSE;
}

/* `own` is the start of the block that contains the pointer. This is m->block, or a block to which
 * m->block refers. */
static int compare_pointer(matching *m, uint32_t reference, uint64_t value, uint64_t own, unsigned depth) {
    const spread *s = m->s;
    uint8_t flags = reference < s->flag_count ? s->flags[reference] : ANYTHING;
    uint64_t start = 0;
    if (flags & ANYTHING)
        return is_mapped(s, value) ? LOOSE : is_long_text(s, value) ? TEXT_NUMBER : NEUTRAL;
    uint32_t index = used_block(s, value, &start);
    if (index == NONE)
        return is_mapped(s, value) ? compare_with_variable(m, reference, value) : flags & OPTIONAL ? NEUTRAL : WRONG;
    uint64_t offset = value - start;
    uint32_t layout = layout_of(s, index);
    if (is_pooled(s, index))
        return LOOSE; /* which objects are in the block is not known */
    if (is_too_far(s, reference, offset))
        return NEUTRAL;
    if (layout) {
        uint32_t agrees = answer_of(m, AGREES, reference, offset_in_element(s, layout, offset), layout);
        if (agrees == UNKNOWN_RULE)
            return NEUTRAL;
        return agrees == 2 ? STRONG : agrees ? WEAK : flags & NUMBER_POSSIBLE ? NEUTRAL : WRONG;
    }
    /* Nearly every block fits a union that has a number. But text has no type of the union. */
    if (flags & OPTIONAL && begins_with_text(s, value, size_of(s->b, index) - offset))
        return LOOSE;
    if (is_possible(m, reference, offset, start, size_of(s->b, index), depth))
        return WEAK;
    /* A block may contain objects that refer to each other, or the head of a list or tree to which
     * the nodes refer. */
    return (start == own || start == m->block) && offset ? LOOSE : flags & OPTIONAL ? NEUTRAL : WRONG;
}

/* Whether the first word of a block is an address in a block. Blocks of text or numbers seldom
 * begin with one. */
static bool begins_with_address(const spread *s, uint64_t block) {
    const uint8_t *first = word_at(s->pieces, s->piece_count, block);
    uint64_t start = 0, value = first ? load(first) : 0;
    return value && used_block(s, value, &start) != NONE;
}

/* Whether a floating-point number is not extremely small or large. The bytes of 21.333 look like
 * text, but text is seldom a usual number. */
static bool is_usual_float(uint64_t value) {
    uint64_t high = value >> 8 * (WORD - 1);
    return high >= 0x3E && high < 0x42;
}

static int compare_word(const spread *s, uint32_t role, uint64_t value) {
    if (role == CODE)
        return in_ranges(s->code, s->code_count, value) ? WEAK : WRONG;
    uint64_t start = 0;
    uint32_t index = used_block(s, value, &start);
    bool begins = index != NONE && value == start;
    if (role >= PLAIN) {
        bool may_be_text = role == PLAIN || (role == FLOATING && !is_usual_float(value));
        return begins ? WRONG : may_be_text && is_long_text(s, value) ? TEXT_NUMBER : NEUTRAL;
    }
    if (!is_mapped(s, value) || in_ranges(s->instructions, s->instruction_count, value))
        return WRONG;
    if (begins && layout_of(s, index))
        return WRONG;
    return begins && !begins_with_address(s, value) ? WEAK : LOOSE;
}

/* Compare the capacity of a buffer with the block that the pointer to the buffer refers to. The
 * pointer of a buffer without capacity is the alignment of its elements. A reallocated block may be
 * up to twice as large as the buffer. Other pointers to parts of blocks, and to free memory, may
 * belong to elements that are not in use. */
static int compare_capacity(matching *m, check_of_word check, uint64_t capacity, uint64_t pointer) {
    uint64_t start = 0;
    if (!capacity)
        return pointer && (pointer & (pointer - 1) || check.stride % pointer) ? WRONG : NEUTRAL;
    uint32_t index = used_block(m->s, pointer, &start);
    if (index == NONE || start != pointer)
        return NEUTRAL;
    uint64_t size = size_of(m->s->b, index);
    if (capacity > size / check.stride)
        return WRONG;
    uint32_t unrequested = answer_of(m, UNREQUESTED, 0, 0, size);
    return unrequested != UNKNOWN_RULE && 2 * capacity * check.stride + unrequested < size ? WRONG : NEUTRAL;
}

static void count_word(uint32_t *counts, int found) {
    if (found != NEUTRAL)
        counts[found]++;
}

static void compare_words(matching *m, uint32_t layout, uint64_t start, uint64_t size, unsigned depth, uint32_t *counts) {
    const spread *s = m->s;
    uint64_t seen = 0, value;
    const uint8_t *data = memory_at(s->pieces, s->piece_count, start, size);
    for (uint32_t group = s->bounds.items[layout]; group < s->bounds.items[layout + 1]; group++) {
        elements one = s->groups.items[group];
        if (one.first == one.last && one.first_check == one.last_check)
            continue; /* a large buffer has too many characters to visit each of them */
        uint64_t count = element_count(&one, size);
        /* The array at the end of a struct may have more elements than are in use. */
        bool is_open = !one.count && group > s->bounds.items[layout];
        for (uint64_t element = 0; element < count; element++) {
            uint64_t base = one.start + element * one.stride;
            uint32_t before[COUNTS];
            memcpy(before, counts, sizeof before);
            for (uint32_t at = one.first; at < one.last && !counts[WRONG]; at++)
                if ((value = word_of(s, data, start, size, base + s->slots.items[at].offset)))
                    count_word(counts, compare_pointer(m, s->slots.items[at].reference, value, start, depth));
            for (uint32_t at = one.first_check; at < one.last_check && !counts[WRONG]; at++) {
                check_of_word check = s->checks.items[at];
                uint64_t place = base + check.offset;
                if ((value = word_of(s, data, start, size, place)))
                    count_word(counts, compare_word(s, check.role, value));
                if (check.stride)
                    count_word(counts, compare_capacity(m, check, value, word_of(s, data, start, size, place + (uint64_t)check.distance)));
            }
            if (counts[WRONG] && is_open && element) {
                memcpy(counts, before, sizeof before);
                break;
            }
            seen += one.last - one.first + one.last_check - one.first_check;
            if (seen > MOST_WORDS || counts[WRONG])
                return;
        }
    }
}

void compare_block(matching *m, uint32_t layout, uint64_t start, uint64_t size, unsigned depth, uint32_t *counts) {
    if (depth)
        m->block = start;
    compare_words(m, layout, start, size, depth, counts);
    /* A struct may begin with a magic number that is text. But if no pointer fits, text in place of
     * a number or a void pointer means that the block is text. */
    counts[WRONG] += counts[TEXT_NUMBER] && !counts[STRONG] && !counts[WEAK];
}

/* Set the readable memory, the executable memory, and the memory that contains only instructions.
 * The caller keeps the ranges until the next call or fl_spread_free. */
API void fl_spread_memory(spread *s, const range *mapped, uint32_t mapped_count, const range *code, uint32_t code_count,
                          const range *instructions, uint32_t instruction_count) {
    s->mapped = mapped;
    s->mapped_count = mapped_count;
    s->code = code;
    s->code_count = code_count;
    s->instructions = instructions;
    s->instruction_count = instruction_count;
}

/* Set the flags of references. The caller keeps them until the next call or fl_spread_free. */
API void fl_spread_flags(spread *s, const uint8_t *flags, uint32_t count) {
    s->flags = flags;
    s->flag_count = count;
}

bool begins_with_text(const spread *s, uint64_t start, uint64_t size) {
    const uint8_t *at = size >= WORD ? word_at(s->pieces, s->piece_count, start) : NULL;
    return at && is_text(at, LEAST_TEXT) && !is_mapped(s, load(at));
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
        return (in_ranges(s->code, s->code_count, value) ? CODE_ADDRESS : STATIC_ADDRESS) | value << 4;
    return is_text(bytes, LEAST_TEXT) ? TEXT : NUMBER;
}

/* Append the size of a block and the classes of its first `word_count` words. Words after its end
 * are MISSING. */
static int append_classes(const spread *s, uint64_t start, uint64_t size, uint32_t word_count, words *rows) {
    int failed = words_push(rows, size);
    for (uint32_t word = 0; word < word_count && !failed; word++) {
        const uint8_t *bytes = (word + 1) * WORD <= size ? word_at(s->pieces, s->piece_count, start + word * WORD) : NULL;
        failed = words_push(rows, bytes ? class_of(s, bytes) : MISSING);
    }
    return failed;
}

/* Return the number of the group whose row equals the last row of `rows`, and remove the last row.
 * If there is no such group, the last row becomes a new group. `places`: 1 + numbers of groups, by
 * hash; 0: unused. */
static uint32_t group_of_row(words *rows, uint64_t length, uint32_t *places, uint64_t mask) {
    uint64_t last = rows->count / length - 1, place = 0;
    const uint64_t *row = rows->items + last * length;
    for (uint64_t at = 0; at < length; at++)
        place = (place ^ row[at]) * UINT64_C(0x9E3779B97F4A7C15) ^ place >> 29;
    for (place = place >> 20 & mask; places[place]; place = (place + 1) & mask)
        if (!memcmp(rows->items + (places[place] - 1) * length, row, length * sizeof *row)) {
            rows->count -= length;
            return places[place] - 1;
        }
    places[place] = (uint32_t)last + 1;
    return (uint32_t)last;
}

/* Group blocks by their size and the classes of their first `word_count` words. Write the group of
 * each block; append the size and the classes of each group. Groups are numbered in the order of
 * their first blocks. Each of `indices` must be below the number of blocks. */
API int fl_spread_group(const spread *s, const uint32_t *indices, uint64_t count, uint32_t word_count, uint32_t *groups, words *rows) {
    uint64_t mask = 63, start = 0;
    uint32_t near = NONE; /* `start` is the address of this block */
    while (mask < 2 * count)
        mask = mask * 2 + 1;
    uint32_t *places = calloc(mask + 1, sizeof *places);
    int failed = places ? DONE : NO_MEMORY;
    for (uint64_t at = 0; at < count && !failed; at++) {
        if (near > indices[at] || indices[at] - near > SAMPLE / 2)
            start = block_address(s->b, near = indices[at]);
        while (near < indices[at] && next_block(s->b, &near, &start))
            ;
        failed = append_classes(s, start, size_of(s->b, near), word_count, rows);
        groups[at] = failed ? 0 : group_of_row(rows, word_count + 1, places, mask);
    }
    free(places);
    return failed;
}
