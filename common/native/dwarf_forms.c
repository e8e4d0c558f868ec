/* Reads DWARF's encodings: numbers, forms of attributes, headers of units, abbreviations.
 * Sources: DWARF 5, 7.5 and 7.6; GNU extensions: binutils, include/dwarf2.def (values only). */
#include "dwarf.h"
#include <stdlib.h>

enum { MOST_LEB = 20, MOST_CODES = 1 << 20, MOST_ATTRIBUTES = 256 };
enum { FORM_ADDR = 0x01, FORM_STRING = 0x08, FORM_SDATA = 0x0d, FORM_INDIRECT = 0x16, FORM_IMPLICIT = 0x21 };
enum { UT_TYPE = 2, UT_SKELETON = 4, UT_SPLIT_COMPILE = 5, UT_SPLIT_TYPE = 6 };

uint64_t read_number(const uint8_t *at, unsigned size) {
    uint64_t number = 0;
    for (unsigned i = 0; i < size; i++)
        number |= (uint64_t)at[BIG ? size - 1 - i : i] << 8 * i;
    return number;
}

bool read_uleb(const uint8_t **at, const uint8_t *end, uint64_t *number) {
    uint64_t made = 0;
    for (unsigned i = 0; i < MOST_LEB && *at < end; i++) {
        uint8_t byte = *(*at)++;
        if (i < 10)
            made |= (uint64_t)(byte & 0x7f) << 7 * i;
        if (byte < 0x80) {
            *number = made;
            return true;
        }
    }
    return false;
}

static bool read_sleb(const uint8_t **at, const uint8_t *end, uint64_t *number) {
    const uint8_t *begin = *at;
    if (!read_uleb(at, end, number))
        return false;
    uint64_t bits = 7 * (uint64_t)(*at - begin);
    if (bits < 64 && (*at)[-1] & 0x40)
        *number |= ~UINT64_C(0) << bits;
    return true;
}

/* Bytes of a form; -1: they vary, or the form is unknown. */
static int8_t form_size(uint64_t form, unsigned wide, unsigned address, unsigned version) {
    static const int8_t sizes[] = {[0x05] = 2,  [0x06] = 4, [0x07] = 8, [0x0b] = 1, [0x0c] = 1, [0x11] = 1, [0x12] = 2, [0x13] = 4, [0x14] = 8,
                                   [0x1c] = 4,  [0x1e] = 16, [0x20] = 8, [0x24] = 8, [0x25] = 1, [0x26] = 2, [0x27] = 3, [0x28] = 4, [0x29] = 1,
                                   [0x2a] = 2,  [0x2b] = 3, [0x2c] = 4};
    switch (form) {
    case FORM_ADDR:
        return (int8_t)address;
    case 0x10: /* ref_addr */
        return (int8_t)(version == 2 ? address : wide);
    case 0x0e: case 0x17: case 0x1d: case 0x1f: case 0x1f20: case 0x1f21:
        return (int8_t)wide;
    case 0x19: case FORM_IMPLICIT:
        return 0;
    default:
        return form < sizeof sizes && sizes[form] ? sizes[form] : -1;
    }
}

/* A text of a section of strings. */
static void text_at(const bytes *strings, uint64_t offset, value *v) {
    if (offset < strings->size)
        *v = (value){strings->data + offset, strings->size - offset, TEXT};
}

static void indexed_text(const unit *u, uint64_t index, value *v) {
    const bytes *offsets = &u->from->string_offsets;
    if (index >= offsets->size / u->wide || u->strings_base > offsets->size)
        return;
    uint64_t at = u->strings_base + index * u->wide;
    if (at + u->wide <= offsets->size)
        text_at(&u->from->strings, read_number(offsets->data + at, u->wide), v);
}

/* The value of a form that has a fixed size, from its bytes as a number. */
static void sized_value(const unit *u, uint64_t form, uint64_t number, value *v) {
    const source *from = u->from;
    uint64_t in_unit = from->key + u->start + number;
    *v = (value){NULL, number, NUMBER};
    switch (form) {
    case FORM_ADDR:
        v->is = ADDRESS;
        break;
    case 0x0e: /* strp */
        *v = (value){0};
        text_at(&from->strings, number, v);
        break;
    case 0x1f: /* line_strp */
        *v = (value){0};
        text_at(&from->line_strings, number, v);
        break;
    case 0x1d: case 0x1f21: /* strp_sup */
        *v = (value){0};
        text_at(&from->other_strings, number, v);
        break;
    case 0x25: case 0x26: case 0x27: case 0x28: case 0x1a: case 0x1f02: /* strx */
        *v = (value){0};
        indexed_text(u, number, v);
        break;
    case 0x11: case 0x12: case 0x13: case 0x14: case 0x15: /* ref1 to ref_udata */
        *v = (value){NULL, number < u->end - u->start ? in_unit : KEY_UNKNOWN, KEY};
        break;
    case 0x10:
        *v = (value){NULL, number < UINT64_C(1) << 48 ? from->references + number : KEY_UNKNOWN, KEY};
        break;
    case 0x1c: case 0x24: case 0x1f20: /* ref_sup */
        *v = (value){NULL, number < UINT64_C(1) << 48 && from->others != KEY_UNKNOWN ? from->others + number : KEY_UNKNOWN, KEY};
        break;
    case 0x20:
        v->is = SIG;
        break;
    case 0x29: case 0x2a: case 0x2b: case 0x2c: case 0x1b: case 0x1f01: /* addrx */
        v->is = INDEX;
        break;
    case 0x17:
        v->is = SECTION;
        break;
    case 0x22: case 0x23:
        v->is = LIST_INDEX;
        break;
    default:
        break;
    }
}

/* Read a form; false for data that end too early, and for unknown forms. */
bool read_value(const unit *u, const attribute *a, const uint8_t **at, value *v) {
    const uint8_t *end = u->from->info.data + u->end;
    uint64_t form = a->form, number = 0;
    int8_t size = a->size;
    if (form == FORM_INDIRECT) {
        if (!read_uleb(at, end, &form) || form == FORM_INDIRECT || form == FORM_IMPLICIT)
            return false;
        size = form_size(form, u->wide, u->address, u->version);
    }
    *v = (value){0};
    if (size >= 0) {
        if (end - *at < size)
            return false;
        if (form == FORM_IMPLICIT || form == 0x19)
            *v = (value){NULL, form == 0x19 ? 1 : (uint64_t)a->constant, NUMBER};
        else if (size <= 8)
            sized_value(u, form, read_number(*at, (unsigned)size), v);
        *at += size;
        return true;
    }
    switch (form) {
    case FORM_STRING: {
        const uint8_t *zero = memchr(*at, 0, (size_t)(end - *at));
        if (!zero)
            return false;
        *v = (value){*at, (uint64_t)(zero - *at) + 1, TEXT};
        *at = zero + 1;
        return true;
    }
    case FORM_SDATA:
        v->is = NUMBER;
        return read_sleb(at, end, &v->number);
    case 0x0f: case 0x15: case 0x1a: case 0x1b: case 0x22: case 0x23: case 0x1f01: case 0x1f02:
        if (!read_uleb(at, end, &number))
            return false;
        sized_value(u, form, number, v);
        return true;
    case 0x03: case 0x04: case 0x0a: { /* block2, block4, block1 */
        unsigned wide = form == 0x0a ? 1 : form == 0x03 ? 2 : 4;
        if (end - *at < (int)wide)
            return false;
        number = read_number(*at, wide);
        *at += wide;
        break;
    }
    case 0x09: case 0x18: /* block, exprloc */
        if (!read_uleb(at, end, &number))
            return false;
        break;
    default:
        return false;
    }
    if (number > (uint64_t)(end - *at))
        return false;
    *v = (value){*at, number, BLOCK};
    *at += number;
    return true;
}

/* Parse the header of the unit at an offset; false if it is not valid. */
bool read_unit(const source *from, uint64_t at, unit *u) {
    const uint8_t *data = from->info.data;
    uint64_t size = from->info.size;
    *u = (unit){.from = from, .start = at, .wide = 4, .kind = 1};
    if (at > size || size - at < 12)
        return false;
    uint64_t begin = at + 4, length = read_number(data + at, 4);
    if (length == 0xffffffff) {
        u->wide = 8;
        begin = at + 12;
        length = read_number(data + at + 4, 8);
    }
    if (length > size - begin || length < 7u + u->wide)
        return false;
    u->end = begin + length;
    u->version = data[begin + (BIG ? 1 : 0)];
    if (data[begin + (BIG ? 0 : 1)] || u->version < 2 || u->version > 5)
        return false;
    bool old_type = from->flags & TYPE_UNITS;
    if (u->version < 5) {
        u->abbreviations = read_number(data + begin + 2, u->wide);
        u->address = data[begin + 2 + u->wide];
        u->first = begin + 3 + u->wide;
    } else {
        u->kind = data[begin + 2];
        u->address = data[begin + 3];
        u->abbreviations = read_number(data + begin + 4, u->wide);
        u->first = begin + 4 + u->wide;
    }
    bool type = old_type || u->kind == UT_TYPE || u->kind == UT_SPLIT_TYPE;
    unsigned more = type ? 8u + u->wide : u->kind == UT_SKELETON || u->kind == UT_SPLIT_COMPILE ? 8 : 0;
    if ((u->address != 4 && u->address != 8) || u->end - u->first < more)
        return false;
    if (type) {
        u->signature = read_number(data + u->first, 8);
        u->type = read_number(data + u->first + 8, u->wide);
        u->kind = UT_TYPE;
    }
    u->first += more;
    bool split = from->flags & SPLIT;
    u->address_base = split ? from->address_base : u->version < 5 ? 0 : 8;
    u->ranges_base = split && u->version < 5 ? from->ranges_base : u->version < 5 ? 0 : u->wide == 8 ? 20 : 12;
    u->strings_base = u->version < 5 ? 0 : u->wide == 8 ? 16 : 8;
    u->low_pc = from->low_pc;
    return true;
}

static uint8_t slot_of(uint64_t name) {
    static const uint8_t slots[] = {
        [0x01] = A_SIBLING, [0x03] = A_NAME, [0x49] = A_TYPE, [0x0b] = A_SIZE, [0x3c] = A_DECLARATION, [0x02] = A_LOCATION, [0x3e] = A_ENCODING,
        [0x37] = A_COUNT, [0x2f] = A_UPPER, [0x22] = A_LOWER, [0x38] = A_MEMBER, [0x0d] = A_BIT_SIZE, [0x0c] = A_BIT_OFFSET, [0x6b] = A_DATA_BIT,
        [0x1c] = A_CONSTANT, [0x16] = A_DISCRIMINANT, [0x69] = A_SIGNATURE, [0x47] = A_SPECIFICATION, [0x31] = A_ORIGIN, [0x11] = A_LOW,
        [0x12] = A_HIGH, [0x55] = A_RANGES, [0x3f] = A_EXTERNAL, [0x1d] = A_CONTAINING, [0x4c] = A_VIRTUAL, [0x13] = A_LANGUAGE,
        [0x72] = A_STRINGS_BASE, [0x73] = A_ADDRESS_BASE, [0x74] = A_RANGES_BASE};
    if (name == 0x2133) /* DW_AT_GNU_addr_base */
        return A_ADDRESS_BASE;
    return name < sizeof slots ? slots[name] : A_SKIPPED;
}

/* Whether the attributes of entries with this tag are read. */
static bool is_read(uint64_t tag) {
    switch (tag) {
    case 0x05: case 0x0a: case 0x0b: case 0x18: case 0x28: case 0x32: case 0x25: case 0x3a: case 0x08: case 0x49: case 0x410a:
        return false; /* parameters, labels, blocks, enumerators, using declarations */
    default:
        return true;
    }
}

void abbreviations_free(abbreviations *all) {
    FREE_ALL(all->shapes.items, all->attributes.items, all->by_code);
    memset(all, 0, sizeof *all);
}

static int add_shape(abbreviations *all, uint64_t code, const shape *s) {
    if (code >= MOST_CODES)
        return DISORDER;
    if (code >= all->capacity) {
        uint32_t capacity = (uint32_t)code * 2 + 64;
        uint32_t *made = realloc(all->by_code, capacity * sizeof *made);
        if (!made)
            return NO_MEMORY;
        memset(made + all->capacity, 0, (capacity - all->capacity) * sizeof *made);
        all->by_code = made;
        all->capacity = capacity;
    }
    if (PUSH(all->shapes, *s) != DONE)
        return NO_MEMORY;
    all->by_code[code] = (uint32_t)all->shapes.count;
    all->codes = code >= all->codes ? (uint32_t)code + 1 : all->codes;
    return DONE;
}

static int read_attributes(const unit *u, const uint8_t **at, const uint8_t *end, abbreviations *all, shape *s) {
    for (;;) {
        uint64_t name, form, constant = 0;
        if (!read_uleb(at, end, &name) || !read_uleb(at, end, &form) || (form == FORM_IMPLICIT && !read_sleb(at, end, &constant)))
            return DISORDER;
        if (!name && !form)
            return DONE;
        if (s->count == MOST_ATTRIBUTES || form > UINT16_MAX)
            return DISORDER;
        int8_t size = form_size(form, u->wide, u->address, u->version);
        if (PUSH(all->attributes, (attribute){(uint32_t)form, slot_of(name), size, (int64_t)constant}) != DONE)
            return NO_MEMORY;
        s->count++;
        s->size = size < 0 || s->size < 0 ? -1 : s->size + size;
    }
}

/* Read the abbreviations of a unit; DISORDER if they are damaged. Units often share them. */
int read_abbreviations(types *t, const unit *u, abbreviations *all) {
    const bytes *section = &u->from->abbreviations;
    if (u->abbreviations >= section->size)
        return DISORDER;
    const uint8_t *at = section->data + u->abbreviations, *end = section->data + section->size;
    if (all->at == at && all->wide == u->wide && all->address == u->address && all->version == u->version)
        return DONE;
    all->shapes.count = all->attributes.count = 0;
    if (all->by_code)
        memset(all->by_code, 0, all->codes * sizeof *all->by_code);
    all->codes = 0;
    all->at = NULL;
    const uint8_t *begin = at;
    int code = DONE;
    while (code == DONE) {
        uint64_t number, tag;
        if (!read_uleb(&at, end, &number))
            return DISORDER;
        if (!number)
            break;
        if (!read_uleb(&at, end, &tag) || at == end)
            return DISORDER;
        shape s = {.tag = tag > UINT32_MAX ? 0 : (uint32_t)tag, .first = (uint32_t)all->attributes.count, .read = is_read(tag)};
        s.children = *at++ != 0;
        code = read_attributes(u, &at, end, all, &s);
        if (code == DONE)
            code = add_shape(all, number, &s);
        if ((uint64_t)(at - begin) > t->budget)
            code = DISORDER;
    }
    t->budget -= (uint64_t)(at - begin) < t->budget ? (uint64_t)(at - begin) : t->budget;
    if (code != DONE)
        return code;
    all->at = begin;
    all->wide = u->wide, all->address = u->address, all->version = u->version;
    return DONE;
}

const shape *shape_of(const abbreviations *all, uint64_t code) {
    uint32_t number = code < all->codes ? all->by_code[code] : 0;
    return number ? all->shapes.items + number - 1 : NULL;
}

/* Read the attributes that begin at an offset of `info` into `values` (ATTRIBUTES of them,
 * cleared); return their end, 0 for damaged data. */
uint64_t read_entry(const unit *u, const abbreviations *all, const shape *s, uint64_t at, value *values) {
    if (!s->read && s->size >= 0)
        return at + (uint64_t)s->size <= u->end ? at + (uint64_t)s->size : 0;
    const uint8_t *data = u->from->info.data, *here = data + at, *end = data + u->end;
    const attribute *a = all->attributes.items + s->first, *last = a + s->count;
    for (; a < last; a++) {
        if (a->slot == A_SKIPPED && a->size >= 0) {
            if (end - here < a->size)
                return 0;
            here += a->size;
        } else if (!read_value(u, a, &here, &values[a->slot]))
            return 0;
    }
    return (uint64_t)(here - data);
}
