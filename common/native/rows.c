/* Formats blocks that pass filters as rows of JSON (../audit/block_rows.py; ../engine/rows.py).
 * The walk stops at a row that needs more than the block's words or a table: Python formats it. */
#include "graph.h"
#include "rows.h"

#define UNWANTED 0x80000000u /* flag in a text's number: hide the row */
#define NO_ARRAY 0x40000000u
#define TEXT_MASK 0x3fffffffu
#define NO_TEXT_AT_ALL TEXT_MASK
#define TYPE_WORDS 5u
#define MAX_ROW_BYTES (128u + MAX_HINT_BYTES) /* maximum bytes of a row without texts */
#define FILE_MAGIC 0xFBAD0000u
#define LEAST_FILE (WORD == 8 ? 216u : 148u) /* bytes */
#define STRING_LOOK 256u
#define MARK_NUMBER 0xFFFFFFu /* bits of a mark: ../engine/type_spread.py */
#define MARK_INFERRED (1u << 28)
#define MARK_LEVEL (15u << 24)
#define MARK_HINT (2u << 24)
#define MARK_TEXTS 3u /* texts of each number: certain, inferred, by a hint */

enum { STOPPED = 0, RARE = 1 };

typedef struct {
    const graph *g;
    const row_rules *r;
    piece_reader memory; /* its recent piece: the piece with the last block */
    uint32_t owner; /* index of the last owner found */
    uint8_t copy[STRING_LOOK];
} lister;

/* Return `size` bytes of the target, at most STRING_LOOK; NULL unless pieces contain all of
 * them. */
static const uint8_t *bytes_at(lister *l, uint64_t address, uint64_t size) {
    const uint8_t *found = memory_near(&l->memory, address, size);
    if (found)
        return found;
    return copy_out(l->memory.pieces, l->memory.count, address, size, l->copy) ? l->copy : NULL;
}

static uint32_t owner_of(lister *l, uint64_t address) {
    const row_rules *r = l->r;
    if (l->owner < r->owner_count && address >= r->owners[l->owner].start && address < r->owners[l->owner].end)
        return r->owner_texts[l->owner];
    const range *owner = range_holding(r->owners, r->owner_count, address);
    if (!owner)
        return r->no_owner;
    l->owner = (uint32_t)(owner - r->owners);
    return r->owner_texts[l->owner];
}

/* Return the number of the text for a word in `tables`; NONE if unknown. */
static uint32_t known(const row_rules *r, uint64_t word) {
    uint32_t at = 0;
    BISECT(at, r->word_count, middle, r->words[middle] < word)
    return at < r->word_count && r->words[at] == word ? r->word_texts[at] : NONE;
}

enum { NO_STRING, STRING, MAYBE };

/* Return whether this is a std::string (../block_types/shapes.py), by the memory in pieces. */
static int is_string(lister *l, const uint64_t *given, uint64_t address, uint64_t size) {
    uint64_t pointer = given[0], length = given[1], capacity = given[2];
    bool own = pointer == address + 2 * WORD;
    if (size < 2 * WORD + 16 || size > 3 * WORD + 16 || !pointer || length > (own ? 15 : UINT64_C(1) << 32))
        return NO_STRING;
    if (!own && (capacity <= 15 || capacity >= UINT64_C(1) << 32 || length > capacity))
        return NO_STRING;
    if (pointer > UINT64_MAX - length)
        return NO_STRING;
    if (!in_ranges(l->r->mapped, l->r->mapped_count, pointer + length))
        return NO_STRING;
    if (!own && (pointer > UINT64_MAX - capacity || !in_ranges(l->r->mapped, l->r->mapped_count, pointer + capacity)))
        return NO_STRING;
    const piece *here = l->memory.recent;
    const uint8_t *end = bytes_at(l, pointer + length, 1);
    int found = !end ? MAYBE : *end ? NO_STRING : own ? STRING : MAYBE;
    if (found == MAYBE && !own && length) {
        uint64_t look = length < STRING_LOOK ? length : STRING_LOOK;
        const uint8_t *text = bytes_at(l, pointer, look);
        found = text && memchr(text, 0, look) ? NO_STRING : MAYBE;
    }
    l->memory.recent = here;
    return found;
}

INLINE uint32_t text_of_mark(uint32_t mark) { return mark & MARK_INFERRED ? 1 : (mark & MARK_LEVEL) == MARK_HINT ? 2 : 0; }

/* Return the type's text number or NO_TEXT_AT_ALL, with UNWANTED if filtered out; NONE if Python
 * must decide. */
static uint32_t type_of(lister *l, const uint8_t *data, uint32_t index, uint64_t address, uint64_t size) {
    const row_rules *r = l->r;
    uint64_t first[TYPE_WORDS];
    uint32_t count = (uint32_t)(size < TYPE_WORDS * WORD ? size / WORD : TYPE_WORDS), mark = r->marks ? r->marks[index] : 0;
    bool marked = mark & MARK_NUMBER;
    uint32_t marked_text = marked ? r->mark_texts[MARK_TEXTS * (mark & MARK_NUMBER) + text_of_mark(mark)] : NONE;
    if (!count)
        return marked ? marked_text : NO_TEXT_AT_ALL | r->untyped;
    for (uint32_t at = 0; at < count; at++)
        first[at] = load(data + at * WORD);
    if (in_ranges(r->tables, r->table_count, first[0])) {
        uint32_t found = known(r, first[0]);
        if (found == NONE || ((found & TEXT_MASK) != NO_TEXT_AT_ALL && !(marked && found & NO_ARRAY)))
            return found == NONE ? NONE : found & ~NO_ARRAY;
    }
    if (marked)
        return marked_text;
    for (uint32_t skip = 1; skip <= 16 / WORD && skip < count; skip *= 2)
        if (first[skip - 1] && first[skip - 1] <= size / WORD && in_ranges(r->tables, r->table_count, first[skip])) {
            uint32_t found = known(r, first[skip]);
            if (found == NONE || !(found & NO_ARRAY))
                return NONE;
        }
    /* an int, and padding where words have 8 bytes */
    uint64_t flags = WORD == 8 && BIG ? first[0] >> 32 | first[0] << 32 : first[0];
    if ((flags & 0xFFFF0000u) == FILE_MAGIC && !(flags >> 32) && size >= LEAST_FILE && size <= 1024)
        return NONE;
    int string = count >= 4 ? is_string(l, first, address, size) : NO_STRING;
    return string == MAYBE ? NONE : string == STRING ? r->string : NO_TEXT_AT_ALL | r->untyped;
}

static uint8_t *put_text(const row_rules *r, uint8_t *out, uint32_t number) {
    uint64_t start = number ? r->ends[number - 1] : 0, length = r->ends[number] - start;
    memcpy(out, r->text + start, length);
    return out + length;
}

static uint64_t text_length(const row_rules *r, uint32_t number) { return r->ends[number] - (number ? r->ends[number - 1] : 0); }

#define PUT(literal) (memcpy(out, literal, sizeof literal - 1), out += sizeof literal - 1)

static uint8_t *put_hex(uint8_t *out, uint64_t value) {
    int shift = value ? (63 - __builtin_clzll(value)) & ~3 : 0;
    for (; shift >= 0; shift -= 4)
        *out++ = (uint8_t)"0123456789abcdef"[value >> shift & 15];
    return out;
}

static uint8_t *put_decimal(uint8_t *out, uint64_t value) {
    uint8_t digits[20];
    unsigned count = 0;
    do
        digits[count++] = (uint8_t)('0' + value % 10);
    while (value /= 10);
    while (count)
        *out++ = digits[--count];
    return out;
}

/* Return whether this block passes the filters that need none of its bytes. */
static bool passes(lister *l, uint32_t index, uint64_t start, uint32_t *owner) {
    const row_rules *r = l->r;
    const blocks *b = l->g->b;
    if (!(r->states >> b->states[index] & 1) || !(r->kinds >> l->g->kinds[index] & 1))
        return false;
    uint64_t size = size_of(b, index);
    *owner = owner_of(l, start);
    return size >= r->low && size <= r->high && !(*owner & UNWANTED);
}

/* One row without its texts. `state`: number of its text; `data`: its first `count` bytes, or
 * NULL if they are not needed. */
typedef struct {
    uint64_t start, size;
    uint32_t index, owner, type, state, count;
    const uint8_t *data;
    bool used;
} row;

/* A walk over the blocks (indices in `order`, if any) from `number` up to `stop`. */
typedef struct {
    const uint32_t *order;
    uint32_t first, number, stop;
    uint64_t start;
} walk;

static walk walk_from(const uint32_t *order, uint32_t at, uint32_t end, uint32_t steps) {
    return (walk){order, at, at, end - at > steps ? at + steps : end, 0};
}

enum { ROW = 2 };

/* Find the next row that passes the filters; its number is w->number, which the caller
 * increments to continue. Returns ROW, STOPPED at the end, or RARE if the row is left to Python. */
INLINE int next_row(lister *l, walk *w, row *found) {
    const graph *g = l->g;
    const row_rules *r = l->r;
    const blocks *b = g->b;
    for (; w->number < w->stop; w->number++) {
        uint32_t index = w->order ? w->order[w->number] : w->number, owner;
        w->start = w->order || w->number == w->first ? block_address(b, index) : start_after(b, w->start, index);
        if (!passes(l, index, w->start, &owner))
            continue;
        uint64_t size = size_of(b, index);
        bool used = b->states[index] == IN_USE;
        uint32_t type = NO_TEXT_AT_ALL | r->untyped, count = (uint32_t)(size < HINT_BYTES ? size : HINT_BYTES);
        const uint8_t *data = NULL;
        if (used && r->typed) {
            uint32_t label = label_of(g, index);
            if (label < r->label_count)
                type = r->label_texts[label];
            else {
                data = bytes_at(l, w->start, count);
                type = data ? type_of(l, data, index, w->start, size) : NONE;
            }
            if (type == NONE)
                return RARE;
        }
        if (type & UNWANTED)
            continue;
        *found = (row){w->start, size, index, owner, type, used ? g->kinds[index] : 4 + (uint32_t)b->states[index], count, data, used};
        return ROW;
    }
    return STOPPED;
}

/* Write rows of JSON of the blocks (indices in `order`, if any) from number *at (updated) to
 * `end`. Writes to `out`, of `capacity` bytes, after at most `steps` blocks at most *limit rows
 * (updated). RARE: the next block is left to Python. */
API int fl_rows(const graph *g, const row_rules *r, const piece *pieces, uint64_t piece_count, const uint32_t *order, uint32_t *at, uint32_t end,
                uint32_t steps, uint64_t *limit, uint8_t *out, uint64_t capacity, uint64_t *written) {
    lister l = {.g = g, .r = r, .memory = {pieces, NULL, piece_count}};
    walk w = walk_from(order, *at, end, steps);
    const uint8_t *first = out;
    int code = STOPPED;
    row one;
    for (; *limit && (code = next_row(&l, &w, &one)) == ROW; w.number++, --*limit) {
        bool typed = one.type != NO_TEXT_AT_ALL;
        uint64_t most = MAX_ROW_BYTES + text_length(r, one.state) + text_length(r, one.owner) + (typed ? text_length(r, one.type) : 0);
        uint8_t *begun = out;
        if (most > capacity - (uint64_t)(out - first)) {
            code = out == first ? RARE : STOPPED;
            break;
        }
        PUT("{\"address\": \"0x");
        out = put_hex(out, one.start);
        PUT("\", \"size\": ");
        out = put_decimal(out, one.size);
        out = put_text(r, out, one.state);
        out = put_text(r, out, one.owner);
        if (typed) {
            out = put_text(r, out, one.type);
            continue;
        }
        PUT(", \"type\": null, \"hint\": ");
        int length = one.used ? hint_json(bytes_at(&l, one.start, one.count), one.count, r, out) : 0;
        if (length < 0) {
            out = begun;
            code = RARE;
            break;
        }
        out += length;
        if (!one.used)
            PUT("null");
        PUT("}\n");
    }
    *written = (uint64_t)(out - first);
    *at = w.number;
    return code == RARE ? RARE : STOPPED;
}

/* Return the indices of the same blocks, at most `steps`, and the sum of their sizes in *bytes. */
API int fl_row_indices(const graph *g, const row_rules *r, const piece *pieces, uint64_t piece_count, uint32_t *at, uint32_t end,
                       uint32_t steps, uint32_t *indices, uint64_t *written, uint64_t *bytes) {
    lister l = {.g = g, .r = r, .memory = {pieces, NULL, piece_count}};
    walk w = walk_from(NULL, *at, end, steps);
    int code;
    row one;
    *written = *bytes = 0;
    for (; (code = next_row(&l, &w, &one)) == ROW; w.number++) {
        indices[(*written)++] = one.index;
        *bytes += one.size;
    }
    *at = w.number;
    return code;
}

/* Write the columns of the same blocks: at most *limit rows (updated). Each column has space for
 * `steps` rows. */
API int fl_row_columns(const graph *g, const row_rules *r, const piece *pieces, uint64_t piece_count, const uint32_t *order, uint32_t *at,
                       uint32_t end, uint32_t steps, uint64_t *limit, const row_columns *c, uint64_t *written) {
    lister l = {.g = g, .r = r, .memory = {pieces, NULL, piece_count}};
    walk w = walk_from(order, *at, end, steps);
    uint64_t text = 0, rows = 0;
    int code = STOPPED;
    row one;
    for (; *limit && c->capacity - text >= HINT_BYTES && (code = next_row(&l, &w, &one)) == ROW; w.number++, --*limit) {
        int hint = HINT_NONE;
        if (one.used && one.type == NO_TEXT_AT_ALL) {
            uint32_t from, length;
            const uint8_t *data = bytes_at(&l, one.start, one.count);
            hint = find_hint(data, one.count, r, &from, &length);
            if (hint == HINT_UNKNOWN) {
                code = RARE;
                break;
            }
            if (hint >= HINT_TEXT) {
                memcpy(c->text + text, data + from, length);
                text += length;
            }
        }
        c->indices[rows] = one.index;
        c->addresses[rows] = one.start;
        c->sizes[rows] = one.size;
        c->names[rows] = NAMES(one.state, one.owner, one.type);
        c->hints[rows] = (uint8_t)hint;
        c->hint_ends[rows++] = (uint32_t)text;
    }
    *written = rows;
    *at = w.number;
    return code == RARE ? RARE : STOPPED;
}

/* Merge adjacent sorted runs of `run` indices of blocks: largest first, stable. */
API void fl_largest_first(const blocks *b, const uint32_t *from, uint32_t *to, uint64_t count, uint64_t run) {
    for (uint64_t low = 0; low < count; low += 2 * run) {
        uint64_t middle = low + run < count ? low + run : count, high = low + 2 * run < count ? low + 2 * run : count;
        uint64_t left = low, right = middle;
        for (uint64_t at = low; at < high; at++)
            to[at] = left < middle && (right == high || size_of(b, from[left]) >= size_of(b, from[right])) ? from[left++] : from[right++];
    }
}
