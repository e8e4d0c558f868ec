/* Addresses in DWARF: of code (ranges) and of variables (locations).
 * Sources: DWARF 5, 2.5, 2.17, 7.7.3 (range lists), 7.27 (.debug_addr); DWARF 4, 2.17.3. */
#include "dwarf.h"

enum { OP_ADDR = 0x03, OP_CONST4U = 0x0c, OP_CONST8U = 0x0e, OP_PIECE = 0x93, OP_FORM_TLS = 0x9b, OP_ADDRX = 0xa1, OP_CONSTX = 0xa2, OP_GNU_TLS = 0xe0,
       OP_GNU_ADDR_INDEX = 0xfb, OP_GNU_CONST_INDEX = 0xfc };

#define MOST_PIECE (UINT64_C(1) << 32) /* most bytes of a piece of a variable */

static bool indexed(const unit *u, uint64_t index, uint64_t *address) {
    const bytes *table = &u->from->addresses;
    if (u->address_base > table->size || index >= (table->size - u->address_base) / u->address)
        return false;
    *address = read_number(table->data + u->address_base + index * u->address, u->address);
    return true;
}

/* The address that an attribute gives. */
bool address_of(const unit *u, const value *v, uint64_t *address) {
    if (v->is == INDEX)
        return indexed(u, v->number, address);
    *address = v->number;
    return v->is == ADDRESS;
}

/* Code and data that linkers dropped have the address 0, or nearly the highest one. */
static bool is_location(const unit *u, uint64_t address) { return address && address < (u->address == 8 ? UINT64_MAX : UINT32_MAX) - 1; }

/* Whether a location has pieces that are at their offsets from one address. clang splits static
 * structs into their members, but usually keeps them together. A piece that was removed must be
 * smaller than a word, because another variable may be in its place. clang does not mention removed
 * members after the last piece, so `most` limits the size of the type. */
static bool address_of_pieces(const unit *u, const value *v, uint64_t *address, uint64_t *most) {
    const uint8_t *at = v->data, *end = v->data + v->number;
    uint64_t offset = 0, size;
    bool any = false;
    while (at < end) {
        uint64_t start = 0, index;
        uint8_t operation = *at++;
        if (operation == OP_ADDR) {
            if (end - at < u->address)
                return false;
            start = read_number(at, u->address);
            at += u->address;
        } else if (operation == OP_ADDRX || operation == OP_GNU_ADDR_INDEX) {
            if (!read_uleb(&at, end, &index) || !indexed(u, index, &start))
                return false;
        }
        bool is_removed = operation == OP_PIECE;
        if ((!is_removed && (at == end || *at++ != OP_PIECE)) || !read_uleb(&at, end, &size) || size > MOST_PIECE)
            return false;
        if (is_removed ? size >= u->address : start <= offset || (any && start - offset != *address))
            return false;
        if (!is_removed)
            *address = start - offset;
        any |= !is_removed;
        offset += size;
    }
    *most = offset + u->address - 1;
    return any && is_location(u, *address);
}

/* Whether a location is an address, or an offset in the block of thread-local variables. */
static bool location_of_whole(const unit *u, const value *v, uint64_t *address, bool *thread) {
    const uint8_t *at = v->data + 1, *end = v->data + v->number;
    uint8_t operation = *v->data;
    unsigned size = operation == OP_ADDR ? u->address : operation == OP_CONST4U ? 4 : operation == OP_CONST8U ? 8 : 0;
    if (size) {
        if (end - at < (int)size)
            return false;
        *address = read_number(at, size);
        at += size;
    } else if (operation == OP_ADDRX || operation == OP_CONSTX || operation == OP_GNU_ADDR_INDEX || operation == OP_GNU_CONST_INDEX) {
        uint64_t index;
        if (!read_uleb(&at, end, &index) || !indexed(u, index, address))
            return false;
    } else
        return false;
    *thread = end - at == 1 && (*at == OP_FORM_TLS || *at == OP_GNU_TLS);
    if (*thread)
        return true;
    bool plain = operation == OP_ADDR || operation == OP_ADDRX || operation == OP_GNU_ADDR_INDEX;
    return at == end && plain && is_location(u, *address);
}

bool location_of(const unit *u, const value *v, variable_row *row) {
    if (v->is != BLOCK || !v->number)
        return false;
    if (location_of_whole(u, v, &row->address, &row->thread))
        return true;
    row->thread = false;
    return address_of_pieces(u, v, &row->address, &row->most);
}

typedef struct {
    types *t;
    uint64_t key, type, mask;
    bool any;
} found_code;

static int add(found_code *f, uint64_t start, uint64_t end) {
    start &= f->mask, end &= f->mask;
    if (!start || start >= end)
        return DONE;
    f->any = true;
    return f->t->functions.count == MOST_TYPES ? DISORDER : PUSH(f->t->functions, (function_row){start, end, f->type, f->key});
}

static bool spend(types *t) { return t->budget ? t->budget--, true : false; }

/* Pairs of .debug_ranges, up to a pair of zeros. */
static int add_pairs(found_code *f, const unit *u, uint64_t offset) {
    const bytes *section = &u->from->ranges;
    uint64_t base = u->low_pc, size = u->address, at = u->ranges_base + offset;
    for (int code = DONE; code == DONE && at <= section->size && section->size - at >= 2 * size && spend(f->t); at += 2 * size) {
        uint64_t low = read_number(section->data + at, u->address), high = read_number(section->data + at + size, u->address);
        if (!low && !high)
            return DONE;
        if (low == f->mask)
            base = high;
        else if (low < high && (code = add(f, base + low, base + high)) != DONE)
            return code;
    }
    return DONE;
}

/* A list of .debug_rnglists. */
static int add_list(found_code *f, const unit *u, const value *v) {
    const bytes *section = &u->from->range_lists;
    uint64_t offset = v->number, base = u->low_pc, first, second;
    if (v->is == LIST_INDEX) {
        if (u->ranges_base > section->size || v->number >= (section->size - u->ranges_base) / u->wide)
            return DONE;
        offset = u->ranges_base + read_number(section->data + u->ranges_base + v->number * u->wide, u->wide);
    }
    if (offset >= section->size)
        return DONE;
    const uint8_t *at = section->data + offset, *end = section->data + section->size;
    while (at < end && spend(f->t)) {
        uint8_t kind = *at++;
        int code = DONE;
        if (kind >= 1 && kind <= 4) { /* base_addressx, startx_endx, startx_length, offset_pair */
            if (!read_uleb(&at, end, &first) || (kind != 4 && !indexed(u, first, &first)))
                return DONE;
            if (kind == 1) {
                base = first;
                continue;
            }
            if (!read_uleb(&at, end, &second) || (kind == 2 && !indexed(u, second, &second)))
                return DONE;
            code = kind == 4 ? add(f, base + first, base + second) : add(f, first, kind == 2 ? second : first + second);
        } else if (kind >= 5 && kind <= 7) { /* base_address, start_end, start_length */
            if (end - at < u->address)
                return DONE;
            first = read_number(at, u->address);
            at += u->address;
            if (kind == 5) {
                base = first;
                continue;
            }
            if (kind == 7 ? !read_uleb(&at, end, &second) : end - at < u->address)
                return DONE;
            if (kind == 6) {
                second = read_number(at, u->address);
                at += u->address;
            }
            code = add(f, first, kind == 6 ? second : first + second);
        } else
            return DONE; /* the end, or an unknown kind */
        if (code != DONE)
            return code;
    }
    return DONE;
}

/* Add a row for each range of code of a function; *any: whether it has one. */
int add_functions(types *t, const unit *u, const value *values, uint64_t key, uint64_t type, bool *any) {
    found_code f = {t, key, type, u->address == 8 ? UINT64_MAX : UINT32_MAX, false};
    const value *ranges = &values[A_RANGES], *high = &values[A_HIGH];
    uint64_t low, end;
    int code = DONE;
    if (ranges->is == NUMBER || ranges->is == SECTION || ranges->is == LIST_INDEX)
        code = u->version < 5 ? add_pairs(&f, u, ranges->number) : add_list(&f, u, ranges);
    else if (high->is != NOTHING && address_of(u, &values[A_LOW], &low)) {
        if (high->is == NUMBER || high->is == SECTION)
            code = add(&f, low, low + high->number);
        else if (address_of(u, high, &end))
            code = add(&f, low, end);
    }
    *any = f.any;
    return code;
}

/* Whether this is the name of a function that copies and deletes the value of a type-erased wrapper
 * such as std::function. ../types/erasure.py describes how this function names the value's type. */
bool is_manager(const value *name) {
    static const char *const names[] = {"_M_manager", "_S_manage", "__handle"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        uint64_t length = strlen(names[i]);
        if (name->is != TEXT || name->number < length || memcmp(name->data, names[i], length))
            continue;
        if (name->number == length || !name->data[length] || name->data[length] == '<')
            return true;
    }
    return false;
}

/* Record that the entry with this key has the type of the entry `type`. */
int add_alias(types *t, uint64_t key, uint64_t type) {
    type_row row = {.key = key, .extra = type, .flags = ALIAS, .kind = TYPE_UNKNOWN, .target = KEY_VOID};
    return t->rows.count == MOST_TYPES ? DISORDER : PUSH(t->rows, row);
}
