/* Adds the types of a finished table as rows, to merge the tables of several modules. */
#include "dwarf.h"

static uint64_t item(const table_column *c, uint64_t at, unsigned width) {
    if (at >= c->count)
        return 0;
    return width == 8 ? ((const uint64_t *)c->items)[at] : width == 4 ? ((const uint32_t *)c->items)[at] : ((const uint8_t *)c->items)[at];
}

static int name_at(types *t, const table_column *columns, int column, uint64_t at, uint32_t *name) {
    uint64_t offset = item(&columns[column], at, 4), size = columns[STRINGS].count;
    *name = 0;
    return offset < size ? intern(t, 0, (const uint8_t *)columns[STRINGS].items + offset, size - offset, name) : DONE;
}

static uint64_t key_at(const table_column *columns, int column, uint64_t at, uint64_t key) {
    uint64_t type = item(&columns[column], at, 4);
    return type == TYPE_VOID ? KEY_VOID : type == TYPE_UNKNOWN || type >= columns[KINDS].count ? KEY_UNKNOWN : key + type;
}

static int add_members(types *t, const table_column *columns, uint64_t number, uint64_t key, bool part) {
    const table_column *first = &columns[part ? FIRST_PART : FIRST_FIELD];
    uint64_t end = item(first, number + 1, 4), count = columns[part ? PART_KINDS : FIELD_KINDS].count;
    for (uint64_t at = item(first, number, 4); at < end && at < count; at++) {
        member_row row = {.owner = (uint32_t)t->rows.count - 1, .part = part};
        row.kind = (uint8_t)item(&columns[part ? PART_KINDS : FIELD_KINDS], at, 1);
        row.type = key_at(columns, part ? PART_TYPES : FIELD_TYPES, at, key);
        row.value = item(&columns[part ? PART_VALUES : FIELD_VALUES], at, 8);
        if (!part) {
            row.offset = item(&columns[FIELD_OFFSETS], at, 8);
            row.bits = (uint32_t)item(&columns[FIELD_BITS], at, 4);
        }
        TRY(name_at(t, columns, part ? PART_NAMES : FIELD_NAMES, at, &row.name));
        if (t->members.count == MOST_TYPES || PUSH(t->members, row) != DONE)
            return NO_MEMORY;
    }
    return DONE;
}

/* Add the types [first, end) of a table. Type number n gets the key `key` + n. */
API int fl_types_table(types *t, const table_column *columns, uint64_t key, uint64_t first, uint64_t end) {
    if (!first)
        t->budget += 2 * columns[STRINGS].count + 64 * (columns[KINDS].count + columns[FIELD_KINDS].count + columns[PART_KINDS].count) + (1 << 20);
    forget_texts(&t->strings);
    for (uint64_t number = first < 2 ? 2 : first; number < end && number < columns[KINDS].count; number++) {
        type_row row = {.key = key + number, .kind = (uint8_t)item(&columns[KINDS], number, 1), .size = item(&columns[SIZES], number, 8)};
        row.flags = (uint16_t)item(&columns[FLAGS], number, 1) & LASTING;
        row.count = item(&columns[COUNTS], number, 8);
        row.target = key_at(columns, TARGETS, number, key);
        int code = name_at(t, columns, NAMES, number, &row.name);
        if (code == DONE && (t->rows.count == MOST_TYPES || PUSH(t->rows, row) != DONE))
            return NO_MEMORY;
        for (int part = 0; part < 2 && code == DONE; part++)
            code = add_members(t, columns, number, key, part);
        if (code == DISORDER)
            t->incomplete = true;
        if (code != DONE)
            return code == DISORDER ? DONE : code;
    }
    return DONE;
}
