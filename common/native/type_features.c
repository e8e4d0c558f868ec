/* Reads features of pointers: a word near the pointer, a word at the start of the block that it
 * refers to, or the table or list that contains the pointer. If the pointers of one member refer to
 * blocks of several types, a feature may separate the types; an example is the tag of a union.
 * ../engine/reference/type_features.py is the same in Python. */
#include "type_spread.h"

#define NEAREST 64     /* bytes before and after a pointer in which features are looked for */
#define TAGGED 24      /* bytes at the start of a block in which features are looked for */
#define CHAIN 64u      /* most blocks of a chain that are followed */
#define MOST_ROWS 256u /* most pointers that fl_spread_separate compares */
#define MOST_GROUPS 24u /* most values of a feature, except BEGINNING */
#define PURE 97u /* least percentage of pointers with the most frequent label of their value */
#define LEAST_ADDRESS (UINT64_C(1) << 16)
#define NO_VALUE UINT64_MAX

/* Sorts of features: ../engine/type_spread.py, Feature. The number of a feature is
 * sort << 8 | (offset + 128). The offset is in bytes. For TARGET_WORD, TARGET_BYTES and
 * TARGET_BYTE, it counts from the start of the block that the pointer refers to; for the other
 * sorts, from the pointer. */
enum { STATIC_WORD, FOUR_BYTES, ONE_BYTE, BEGINNING, TARGET_WORD, TARGET_BYTES, OWNER_WORD, TWO_BYTES, TARGET_BYTE, EIGHT_BYTES };
#define MOST_OWNER_WORDS 256u

/* Return memory of an owner. It is NULL if a part is not in the block `owner`; root memory
 * (ROOT_BIT and above) is not checked in this way. */
static const uint8_t *bytes_of(const spread *s, uint32_t owner, uint64_t address, uint64_t size) {
    if (owner < ROOT_BIT) {
        uint64_t start = owner < s->b->count ? block_address(s->b, owner) : 0, own = owner < s->b->count ? size_of(s->b, owner) : 0;
        if (own < size || address < start || address - start > own - size)
            return NULL;
    }
    return memory_at(s->pieces, s->piece_count, address, size);
}

INLINE uint64_t number_at(const uint8_t *at, uint64_t size) {
    return size == 8 ? load64(at) : size == 4 ? load32(at) : size == 2 ? load16(at) : *at;
}

/* Follow the origins of `owner` through blocks with the same layout; return the first origin with
 * another layout, such as the table or the list head that a list of equal blocks begins at. */
static uint32_t beginning(const spread *s, uint32_t owner) {
    for (unsigned step = 0; step < CHAIN && owner < s->b->count; step++) {
        uint32_t before = s->origins[owner];
        if (before >= s->b->count || !layout_of(s, before) || layout_of(s, before) != layout_of(s, owner))
            return before;
        owner = before;
    }
    return owner;
}

/* Return the word that a hint names. It is in the nearest block that has the layout of the hint:
   `owner`, or else the block from which the type of `owner` was derived, and so on. */
static uint64_t word_of_owner(const spread *s, uint32_t number, uint32_t owner) {
    if (number >= s->owner_words.count)
        return NO_VALUE;
    owner_word one = s->owner_words.items[number];
    uint64_t start = 0;
    for (unsigned step = 0; step < CHAIN && owner < s->b->count && layout_of(s, owner) != one.layout; step++)
        owner = s->origins[owner];
    if (owner < s->b->count && layout_of(s, owner) == one.layout)
        start = block_address(s->b, owner);
    else if (owner >= ROOT_BIT && owner - ROOT_BIT < s->roots.count && s->roots.items[owner - ROOT_BIT].layout == one.layout)
        start = s->roots.items[owner - ROOT_BIT].address;
    else
        return NO_VALUE;
    const uint8_t *at = bytes_of(s, owner, start + one.offset, one.size);
    return at ? number_at(at, one.size) : NO_VALUE;
}

/* Add the feature that is a word, or a number of 1, 2 or 4 bytes, at an offset of the nearest owner
 * with a layout. Returns the number of the feature, or DISORDER. */
API int fl_spread_owner_word(spread *s, uint32_t layout, uint64_t offset, uint32_t size) {
    uint64_t number = s->owner_words.count;
    if (layout + 1 >= s->bounds.count || number >= MOST_OWNER_WORDS || (size != WORD && size != 4 && size != 2 && size != 1))
        return DISORDER;
    return PUSH(s->owner_words, (owner_word){layout, size, offset}) ? NO_MEMORY : (int)(OWNER_WORD << 8 | number);
}

static bool is_number_of_target(uint32_t sort) {
    return sort == TARGET_BYTES || sort == TARGET_BYTE;
}

uint64_t feature_value(const spread *s, uint32_t feature, uint32_t owner, uint64_t place, uint32_t target) {
    int64_t offset = (int64_t)(feature & 255) - 128;
    uint32_t sort = feature >> 8;
    if (sort == BEGINNING)
        return beginning(s, owner);
    if (sort == OWNER_WORD)
        return word_of_owner(s, feature & 255, owner);
    bool is_word = sort == STATIC_WORD || sort == TARGET_WORD, is_target = sort == TARGET_WORD || is_number_of_target(sort);
    uint64_t size = is_word ? WORD : sort == ONE_BYTE || sort == TARGET_BYTE ? 1 : sort == TWO_BYTES ? 2 : sort == EIGHT_BYTES ? 8 : 4;
    uint64_t base = !is_target ? place : target < s->b->count ? block_address(s->b, target) : 0;
    const uint8_t *at = bytes_of(s, is_target ? target : owner, base + (uint64_t)offset, size);
    if (!at)
        return NO_VALUE;
    if (!is_word)
        return number_at(at, size);
    uint64_t value = load(at), start = 0;
    return value > LEAST_ADDRESS && is_mapped(s, value) && used_block(s, value, &start) == NONE ? value : NO_VALUE;
}

/* Return whether a feature is a number that is a part of an address. Such a number separates types
 * only by chance, for example if the addresses in some blocks are null. */
static bool is_part_of_address(const spread *s, uint32_t feature, uint32_t owner, uint64_t place, uint32_t target) {
    uint32_t sort = feature >> 8;
    bool is_target = is_number_of_target(sort);
    if (!is_target && sort != FOUR_BYTES && sort != ONE_BYTE)
        return false;
    uint64_t base = !is_target ? place : target < s->b->count ? block_address(s->b, target) : 0;
    uint64_t word = base + (uint64_t)((int64_t)(feature & 255) - 128);
    const uint8_t *at = bytes_of(s, is_target ? target : owner, word - word % WORD, WORD);
    return at && load(at) > LEAST_ADDRESS && is_mapped(s, load(at));
}

/* Write the value of a feature for each pointer. `rows`: its owner, place and block. */
API void fl_spread_feature(const spread *s, uint32_t feature, const uint64_t *rows, uint64_t count, uint64_t *values) {
    for (uint64_t at = 0; at < count; at++)
        values[at] = feature_value(s, feature, (uint32_t)rows[3 * at], rows[3 * at + 1], (uint32_t)rows[3 * at + 2]);
}

/* Pointers in groups with equal values. `pure`: how many have the most frequent label of their
 * group. */
typedef struct {
    uint32_t groups, pure;
} separation;

static separation separate(const uint64_t *values, const uint32_t *labels, uint32_t count) {
    separation found = {0, 0};
    bool counted[MOST_ROWS] = {false};
    for (uint32_t at = 0; at < count; at++) {
        uint32_t by_label[MOST_ROWS] = {0}, most = 0;
        if (counted[at])
            continue;
        for (uint32_t one = at; one < count; one++)
            if (values[one] == values[at]) {
                counted[one] = true;
                uint32_t alike = ++by_label[labels[one]];
                most = alike > most ? alike : most;
            }
        found.groups++;
        found.pure += most;
    }
    return found;
}

typedef struct {
    const uint64_t *rows;
    const uint32_t *labels;
    uint32_t count, best, best_groups;
} separating;

static void try_feature(const spread *s, separating *all, uint32_t sort, int64_t offset, uint32_t most) {
    uint64_t values[MOST_ROWS];
    uint32_t feature = sort << 8 | (uint32_t)(offset + 128);
    fl_spread_feature(s, feature, all->rows, all->count, values);
    separation found = separate(values, all->labels, all->count);
    if (found.groups <= 1 || found.groups > most || found.pure * 100 < PURE * all->count || found.groups >= all->best_groups)
        return;
    for (uint32_t at = 0; at < all->count; at++)
        if (is_part_of_address(s, feature, (uint32_t)all->rows[3 * at], all->rows[3 * at + 1], (uint32_t)all->rows[3 * at + 2]))
            return;
    all->best = feature;
    all->best_groups = found.groups;
}

/* Return the feature that separates the labels of at most MOST_ROWS pointers; NONE if none does. Of
 * several such features, return the one with the fewest values. Labels are below MOST_ROWS. */
API uint32_t fl_spread_separate(const spread *s, const uint64_t *rows, const uint32_t *labels, uint32_t count) {
    separating all = {rows, labels, count < MOST_ROWS ? count : MOST_ROWS, NONE, UINT32_MAX};
    for (uint32_t at = 0; at < all.count; at++)
        if (labels[at] >= MOST_ROWS)
            return NONE;
    for (int64_t at = 0; at < TAGGED; at += WORD)
        try_feature(s, &all, TARGET_WORD, at, MOST_GROUPS);
    for (int64_t at = 0; at < TAGGED; at += 4)
        try_feature(s, &all, TARGET_BYTES, at, MOST_GROUPS);
    for (int64_t at = 0; at < (int64_t)WORD; at++)
        try_feature(s, &all, TARGET_BYTE, at, MOST_GROUPS);
    for (int64_t at = -NEAREST; at <= NEAREST; at += WORD)
        if (at)
            try_feature(s, &all, STATIC_WORD, at, MOST_GROUPS);
    for (int64_t at = -NEAREST; at <= NEAREST; at += 4)
        try_feature(s, &all, FOUR_BYTES, at, MOST_GROUPS);
    for (int64_t at = -2 * (int64_t)WORD; at < 2 * (int64_t)WORD; at++)
        try_feature(s, &all, ONE_BYTE, at, MOST_GROUPS);
    try_feature(s, &all, BEGINNING, 0, UINT32_MAX);
    return all.best;
}
