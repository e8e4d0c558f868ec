/* Unused words in the blocks of CPython's objects.
 *
 * A generator contains a frame. The words of its value stack that are not in use, and all variables
 * once it has ended, still contain earlier values. A set contains a table of eight entries, which
 * keeps its contents when a larger one replaces it. Since 3.11 a frame object contains the frame of
 * a function that has ended, and earlier values above its value stack. While the function runs, the
 * frame is elsewhere, and its place in the frame object is not written. The words between the last
 * item of a tuple and the end of its block belong to earlier objects. */
#include "blocks.h"

#define NO_TYPE UINT32_MAX
#define HAS_FRAME 32u /* kinds of a type: a generator, or up to 3.10 a frame */
#define IS_SET 64u
#define HAS_ITEMS 128u /* items follow; their number follows the type */
#define IS_FRAME 8u /* a frame object of 3.11 and later */
#define HAS_ATTRIBUTES 16u /* values of attributes follow; see VALID */
#define IS_BUFFER 4u /* it has room for more values than it has; see COUNT_AT */
#define LAST_WORD 63u
#define SIZES 3u /* numbers of a type in `sizes` */
/* Words of a set from its count on: mask, table, and eight entries of key and hash. */
#define SET_MASK 4u
#define SET_TABLE 5u
#define SET_ENTRIES 8u
#define OB_SIZE 2u  /* word of an object with items */
#define FRAME_AT 3u /* word of a frame object: the address of the frame */
#define COUNT_AT 3u /* word of a buffer: the number of its values, in 32 bits or one byte */
#define VALID 3u /* index of a byte in the values of attributes: 0 if a dictionary has these now */
#define WANTED 254u /* in `tails`; this and larger numbers are not patterns */

enum { NUMBER, POINTER, FRAME_NUMBER, FRAME_POINTER }; /* forms: see frame_layout */

/* Where objects have their frame, in words from the count: the word whose fourth byte is the state
 * of a generator; the word with the end of the value stack; the first variable, or of a frame
 * object the pointer to its value stack. `form` is the content of the word with the end. NUMBER:
 * the number of variables and values, in 32 bits. POINTER: the address of their end. FRAME_NUMBER:
 * the number of values, negative while the frame runs. FRAME_POINTER: the address of their end,
 * null while the frame runs and after it has ended; the fifth byte of the state shows which.
 * `begin`: the first word of the frame, from 3.11 on. */
typedef struct frame_layout {
    uint64_t state, top, locals, form, begin;
} frame_layout;

#define NO_WORD UINT64_MAX

/* Return the number of the first unused word of a block, NO_WORD if unknown. */
static uint64_t first_unused(const frame_layout *f, const uint8_t *data, uint64_t start, uint64_t offset) {
    const uint8_t *object = data + offset, *top = object + f->top * WORD;
    int32_t number = (int32_t)load32(top);
    uint64_t locals = offset / WORD + f->locals, end = 0;
    if (f->form == NUMBER || f->form == POINTER) {
        int8_t state = (int8_t)object[f->state * WORD + 3];
        if (!state)
            return NO_WORD; /* it runs */
        if (state > 0)
            return locals; /* it has ended */
        if (f->form == NUMBER)
            return number < 0 ? NO_WORD : locals + (uint64_t)number;
        end = load(top);
    } else if (f->form == FRAME_NUMBER) {
        if (number < 0)
            return NO_WORD;
        end = load(object + f->locals * WORD) + (uint64_t)number * WORD;
    } else {
        end = load(top);
        if (!end && !object[f->state * WORD + 4])
            end = load(object + f->locals * WORD);
    }
    uint64_t first = end > start && end % WORD == 0 ? (end - start) / WORD : 0;
    return first < locals ? NO_WORD : first;
}

/* Return the number of the first unused word of a frame object in a block of `size` bytes, of which
 * `left` are readable; NO_WORD if unknown. `place`: the bytes before the place for the frame. It is
 * unused if the frame is outside the object, because the function still runs. */
static uint64_t first_unused_of_frame(const frame_layout *f, const uint8_t *data, uint64_t start, uint64_t offset, uint64_t place, uint64_t size, uint64_t left) {
    uint64_t frame = load(data + offset + FRAME_AT * WORD), inside = frame - start;
    if (frame && frame % WORD == 0 && inside >= size && place > offset + FRAME_AT * WORD)
        return place / WORD;
    if (inside % WORD || inside <= offset + FRAME_AT * WORD || inside >= left)
        return NO_WORD;
    uint64_t begin = inside / WORD, top = begin + f->top - f->begin, locals = begin + f->locals - f->begin;
    if ((top + 1) * WORD > left)
        return NO_WORD;
    int32_t number = (int32_t)load32(data + top * WORD);
    if (f->form == NUMBER)
        return number < 0 ? NO_WORD : locals + (uint64_t)number;
    uint64_t end = load(data + top * WORD), first = end > start && end % WORD == 0 ? (end - start) / WORD : 0;
    return first < locals ? NO_WORD : first;
}

/* Return whether the set at `object` has a table of its own block. */
static bool has_grown(const blocks *b, const uint8_t *object, uint64_t address) {
    uint64_t mask = load(object + SET_MASK * WORD), entries = load(object + SET_TABLE * WORD);
    return mask >= 8 && !(mask & (mask + 1)) && entries != address + SET_ENTRIES * WORD && block_find(b, entries) != NONE;
}

/* Return the number of the first word after an object with items, NO_WORD if its block, of `size`
 * bytes, is too small. `sizes`: bytes up to the first item, bytes of each item, and the lowest bit
 * of the number of items in its word. ob_size of a negative int is negative. */
static uint64_t after_items(const uint8_t *object, const uint32_t *sizes, uint64_t size) {
    uint64_t items = sizes[1] ? load(object + OB_SIZE * WORD) : 0;
    if (items >> (8 * WORD - 1))
        items = (WORD == 8 ? 0 : UINT64_C(1) << 32) - items;
    items >>= sizes[2];
    return items > size ? NO_WORD : (sizes[0] + items * sizes[1] + WORD - 1) / WORD;
}

/* Return the number of the first unused word of a buffer; NO_WORD if the number of its values is
 * more than its block, of `size` bytes, has room for. `sizes`: bytes up to the first value, of
 * each value, and of the number. */
static uint64_t after_values(const uint8_t *object, const uint32_t *sizes, uint64_t size) {
    const uint8_t *count = object + COUNT_AT * WORD;
    uint64_t end = sizes[0] + (uint64_t)(sizes[2] == 1 ? *count : load32(count)) * sizes[1];
    return end > size ? NO_WORD : end / WORD;
}

/* Return whether one of the words [first, end) is not zero. */
static bool has_data(const uint8_t *data, uint64_t first, uint64_t end) {
    while (first < end)
        if (load(data + first++ * WORD))
            return true;
    return false;
}

/* Return the number of the first unused word of an object whose attributes begin at the offset
 * `begin`; NO_WORD if no unused word refers to a block. The attributes begin with a word whose
 * first byte is the number of values for which there is room. These values follow, and then a byte
 * for each of them. `data` has `left` bytes. */
static uint64_t after_attributes(const blocks *b, const uint8_t *data, uint64_t begin, uint64_t left) {
    uint64_t first = begin / WORD, at;
    if (!data[begin + VALID])
        return first;
    at = first += 1 + data[begin];
    while (at < left / WORD && block_find(b, load(data + at * WORD)) == NONE)
        at++;
    return at < left / WORD ? first : NO_WORD;
}

/* Set the patterns (see fl_graph_exclude_words) of the objects in the piece that have unused words.
 * Only objects that still have the pattern of their type, lives[type], get another one. `kinds`, a
 * byte for each type, has the bits HAS_FRAME, IS_FRAME, IS_SET, HAS_ITEMS, HAS_ATTRIBUTES and
 * IS_BUFFER; `found` and `offsets`: see fl_objects.
 *
 * grown[type] excludes the table in a set; 0: there is no such pattern. tails[64 * p + n] excludes
 * the words that pattern p excludes, and the words from n on; 0: there is no such pattern. A number
 * of WANTED or more means that the pattern does not exist yet. It is replaced by WANTED, and the
 * caller makes the pattern and passes the piece again. There are no patterns for words from
 * LAST_WORD on. The bounds of an unused part without a pattern are added to `rest`, if the object
 * has a frame or the part is not zeros. */
API int fl_object_remains(const blocks *b, const piece *p, const uint32_t *found, const uint8_t *offsets, const uint8_t *kinds, const uint8_t *lives,
                          const frame_layout *frame, const uint32_t *sizes, const uint8_t *grown, uint8_t *tails, uint8_t *patterns, words *rest) {
    uint64_t start = 0, frame_words = (frame->top > frame->locals ? frame->top : frame->locals) + 1;
    frame_words = frame->state + 2 < frame_words ? frame_words : frame->state + 2;
    for (uint32_t index = block_from(b, p->address, &start); index < b->count && start - p->address < p->length; next_block(b, &index, &start)) {
        uint32_t type = found[index];
        if (type == NO_TYPE || !(kinds[type] & (HAS_FRAME | IS_FRAME | IS_SET | HAS_ITEMS | HAS_ATTRIBUTES | IS_BUFFER)) || start % WORD || patterns[index] != lives[type])
            continue;
        uint64_t left = p->length - (start - p->address), size = size_of(b, index) / WORD * WORD, offset = offsets[type], first = NO_WORD;
        const uint8_t *data = p->data + (start - p->address);
        left = left < size ? left : size;
        if (kinds[type] & IS_SET && grown[type] && left >= offset + (SET_ENTRIES + 16) * WORD && has_grown(b, data + offset, start + offset))
            patterns[index] = grown[type];
        if (kinds[type] & HAS_FRAME && left >= offset + frame_words * WORD)
            first = first_unused(frame, data, start, offset);
        if (kinds[type] & IS_FRAME && left >= offset + (FRAME_AT + 1) * WORD)
            first = first_unused_of_frame(frame, data, start, offset, sizes[SIZES * (uint64_t)type], size, left);
        if (kinds[type] & HAS_ITEMS && left >= offset + (OB_SIZE + 1) * WORD)
            first = after_items(data + offset, sizes + SIZES * (uint64_t)type, size);
        if (kinds[type] & IS_BUFFER && left >= offset + (COUNT_AT + 1) * WORD)
            first = after_values(data + offset, sizes + SIZES * (uint64_t)type, size);
        if (kinds[type] & HAS_ATTRIBUTES && left >= sizes[SIZES * (uint64_t)type] + WORD)
            first = after_attributes(b, data, sizes[SIZES * (uint64_t)type], left);
        if (first >= size / WORD)
            continue;
        uint8_t *tail = first < LAST_WORD ? &tails[64 * lives[type] + first] : NULL;
        if (!tail || !*tail) {
            if ((kinds[type] & (HAS_FRAME | IS_FRAME) || has_data(data, first, left / WORD)) && (words_push(rest, start + first * WORD) || words_push(rest, start + size)))
                return NO_MEMORY;
            continue;
        }
        if (*tail >= WANTED)
            *tail = WANTED;
        else
            patterns[index] = *tail;
    }
    return DONE;
}
