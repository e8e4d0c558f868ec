/* Which part of a block is in use, if it is the buffer of a container.
 *
 * Example: a vector {capacity, pointer, length} has a buffer of 96 bytes and three elements of 24
 * bytes. The last 24 bytes of the buffer are not in use: they may have pointers of elements that
 * were removed. ../engine/reference/type_used.py is the same in Python. */
#include "type_spread.h"

static uint64_t word_near(const spread *s, const followed *p, uint64_t distance) {
    const uint8_t *at = word_at(s->pieces, s->piece_count, p->place + distance * WORD);
    return at ? load(at) : 0;
}

uint64_t stride_of(const spread *s, uint32_t layout) {
    uint32_t first = s->bounds.items[layout];
    return first < s->bounds.items[layout + 1] ? s->groups.items[first].stride : 0;
}

uint8_t limits_of(const spread *s, const followed *p, uint32_t claim) {
    return level_of(claim) < LEVEL_ARRAY ? 0 : flags_of(s, p->reference) & LIMITED;
}

uint64_t used_size(const spread *s, const followed *p, uint32_t claim) {
    uint64_t size = size_of(s->b, p->index), stride = stride_of(s, claim & LAYOUT_MASK), room = stride ? size / stride : 0;
    uint8_t flags = limits_of(s, p, claim);
    uint32_t distance = flags >> LENGTH_SHIFT & 3;
    if (flags & TABLE)
        return p->value - p->start;
    if (flags & END) {
        uint64_t end = word_near(s, p, 1);
        return end >= p->value && end - p->start <= size ? end - p->start : size;
    }
    if (!distance)
        return size;
    uint64_t length = word_near(s, p, distance), first = flags & RING_START ? word_near(s, p, distance - 1) : 0;
    return first <= room && length <= room - first ? (first + length) * stride : size;
}

int requested_count(spread *s, const elements *one, uint64_t count, uint64_t *requested) {
    uint32_t unrequested;
    *requested = count;
    if (one->count || !count || s->owner >= ROOT_BIT || (s->limits && s->limits[s->owner]))
        return DONE;
    int failed = rule_answer(s, UNREQUESTED, 0, 0, s->size, &unrequested);
    if (failed || unrequested == UNKNOWN_RULE)
        return failed ? failed : ASKED;
    uint64_t least = s->size > unrequested ? s->size - unrequested : 0;
    uint64_t room = least > one->start ? (least - one->start + one->stride - 1) / one->stride : 0;
    *requested = room < count ? room : count;
    return DONE;
}

/* Whether the current element is one of a table that is not in use. */
bool is_empty_element(const spread *s, uint64_t stride) {
    if (!s->table)
        return false;
    uint64_t number = (s->table - s->address) / stride - 1 - s->element;
    const uint8_t *state = memory_at(s->pieces, s->piece_count, s->table + number, 1);
    return !state || *state & 0x80;
}
