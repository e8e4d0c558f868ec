/* Writes the columns of ../debuginfo/type_table.py from merged types. */
#include "dwarf.h"
#include <stdlib.h>

enum { BASE_LEVELS = 32, TYPES_A_CALL = 1 << 18, NUMBER_UNKNOWN = 1 };

/* The size of an element of each column in bytes, as in type_table.py. */
static const uint8_t widths[COLUMNS] = {1, 1, 1, 4, 8, 4, 8, 4, 1, 4, 8, 4, 4, 8, 4, 1, 4, 4, 8, 8, 4, 4, 8, 4, 4, 8, 8, 4, 8, 8, 4};

static bool ready(merging *m, int column, uint64_t count) {
    m->columns[column].items = calloc(count + 1, widths[column]);
    return m->columns[column].items != NULL;
}

/* Append to a column. ready() allocated its elements. */
static void put(merging *m, int column, uint64_t number) {
    table_column *c = &m->columns[column];
    if (widths[column] == 8)
        ((uint64_t *)c->items)[c->count++] = number;
    else if (widths[column] == 4)
        ((uint32_t *)c->items)[c->count++] = (uint32_t)number;
    else
        ((uint8_t *)c->items)[c->count++] = (uint8_t)number;
}

static uint32_t part_count(const types *t, uint32_t node) {
    const merging *m = t->merge;
    uint32_t parts = 0;
    for (uint32_t i = m->first[node]; i < m->first[node + 1]; i++)
        parts += t->members.items[m->order[i]].part;
    return parts;
}

/* Number the classes of equal nodes in the order of their first nodes. Write to `best` the node
 * that is shown for each number: the one with the most inner typedefs. Return the number of types;
 * 0 without memory. */
static uint32_t number_types(types *t, uint32_t *best) {
    merging *m = t->merge;
    uint32_t count = 2, *by_class = calloc((uint64_t)m->classes + 1, sizeof *by_class);
    if (!by_class)
        return 0;
    best[1] = m->final[1] = 1;
    for (uint32_t node = 2; node < m->nodes; node++) {
        uint32_t shown = defined(t, node);
        if (shown < 2) {
            m->final[node] = shown;
            continue;
        }
        uint32_t *number = &by_class[m->class[shown]];
        if (!*number) {
            best[count] = shown;
            *number = count++;
        } else if (part_count(t, shown) > part_count(t, best[*number]))
            best[*number] = shown;
        m->final[node] = *number;
    }
    free(by_class);
    return count;
}

static void put_member(types *t, const member_row *row, uint32_t type) {
    merging *m = t->merge;
    if (row->part) {
        put(m, PART_KINDS, row->kind);
        put(m, PART_NAMES, row->name);
        put(m, PART_TYPES, type);
        put(m, PART_VALUES, row->value);
        return;
    }
    put(m, FIELD_KINDS, row->kind);
    put(m, FIELD_NAMES, row->name);
    put(m, FIELD_OFFSETS, row->offset);
    put(m, FIELD_TYPES, type);
    put(m, FIELD_BITS, row->bits);
    put(m, FIELD_VALUES, row->value);
}

static void put_type(types *t, uint32_t number, uint32_t node) {
    merging *m = t->merge;
    static const type_row none = {.kind = TYPE_UNKNOWN, .flags = 0};
    const type_row *row = node > TYPE_UNKNOWN ? &t->rows.items[node - 2] : &none;
    bool array = row->kind == TYPE_ARRAY || row->kind == TYPE_BASE;
    put(m, KINDS, number ? row->kind : TYPE_VOID);
    put(m, FLAGS, row->flags & LASTING);
    put(m, NAMES, row->name);
    put(m, SIZES, type_size(t, node));
    put(m, TARGETS, node > TYPE_UNKNOWN ? m->final[m->targets[node]] : 0);
    put(m, COUNTS, array ? row->count : 0);
    put(m, FIRST_FIELD, m->columns[FIELD_KINDS].count);
    put(m, FIRST_PART, m->columns[PART_KINDS].count);
    for (uint32_t i = m->first[node]; i < m->first[node + 1]; i++) {
        uint32_t at = m->order[i];
        put_member(t, &t->members.items[at], m->final[m->types[at]]);
    }
}

/* Mark the classes whose direct base class has a vtable pointer; return whether any is new. */
static bool spread_vtables(merging *m, uint32_t count) {
    uint8_t *flags = m->columns[FLAGS].items;
    const uint32_t *first = m->columns[FIRST_FIELD].items, *field_types = m->columns[FIELD_TYPES].items;
    const uint8_t *kinds = m->columns[FIELD_KINDS].items;
    bool found = false;
    for (uint32_t number = 0; number < count; number++)
        for (uint32_t i = first[number]; i < first[number + 1]; i++)
            if (kinds[i] == FIELD_BASE && flags[field_types[i]] & POLYMORPHIC && !(flags[number] & POLYMORPHIC)) {
                flags[number] |= POLYMORPHIC;
                found = true;
            }
    return found;
}

static int begin_types(types *t) {
    merging *m = t->merge;
    m->final = calloc(m->nodes, sizeof *m->final);
    m->best = calloc(m->nodes, sizeof *m->best);
    m->count = m->final && m->best ? number_types(t, m->best) : 0;
    bool made = m->count > 0;
    uint64_t fields = 0, parts = 0;
    for (uint32_t number = 0; number < m->count; number++) {
        uint32_t some = part_count(t, m->best[number]);
        parts += some;
        fields += m->first[m->best[number] + 1] - m->first[m->best[number]] - some;
    }
    for (int column = KINDS; column < VARIABLE_ADDRESSES; column++) {
        bool first = column == FIRST_FIELD || column == FIRST_PART;
        made = made && ready(m, column, column < FIRST_FIELD ? m->count : first ? m->count + 1 : column < FIRST_PART ? fields : parts);
    }
    return made ? DONE : NO_MEMORY;
}

/* Write the next types to the columns. Return 1 if more types are left. */
static int put_types(types *t) {
    merging *m = t->merge;
    uint64_t end = m->at + TYPES_A_CALL < m->count ? m->at + TYPES_A_CALL : m->count;
    for (; m->at < end; m->at++)
        put_type(t, (uint32_t)m->at, m->best[m->at]);
    if (m->at < m->count)
        return 1;
    put(m, FIRST_FIELD, m->columns[FIELD_KINDS].count);
    put(m, FIRST_PART, m->columns[PART_KINDS].count);
    for (int level = 0; level < BASE_LEVELS; level++)
        if (!spread_vtables(m, m->count))
            break;
    return DONE;
}

typedef struct {
    uint64_t address, row;
} placed;

static int by_address(const void *one, const void *other) {
    const placed *a = one, *b = other;
    if (a->address != b->address)
        return a->address < b->address ? -1 : 1;
    return a->row < b->row ? -1 : a->row > b->row;
}

static uint32_t type_with_key(const types *t, uint64_t key) { return t->merge->final[node_with_key(t, key, 0)]; }

/* Write the variables by address, or the thread-local ones by offset. The variable of a template
 * has an entry in each unit: the first one is kept. A variable has no type if members of the type
 * may have been removed from its end. */
static int put_variables(types *t, bool thread, int column) {
    merging *m = t->merge;
    uint64_t count = 0;
    placed *all = malloc((t->variables.count + 1) * sizeof *all);
    if (!all || !ready(m, column, t->variables.count) || !ready(m, column + 1, t->variables.count) || !ready(m, column + 2, t->variables.count)) {
        free(all);
        return NO_MEMORY;
    }
    for (uint64_t i = 0; i < t->variables.count; i++)
        if (t->variables.items[i].thread == thread)
            all[count++] = (placed){t->variables.items[i].address, i};
    qsort(all, count, sizeof *all, by_address);
    for (uint64_t i = 0; i < count; i++) {
        const variable_row *row = &t->variables.items[all[i].row];
        if (i && all[i].address == all[i - 1].address)
            continue;
        uint32_t type = type_with_key(t, row->type);
        bool is_cut = row->most && ((const uint64_t *)m->columns[SIZES].items)[type] > row->most;
        put(m, column, row->address);
        put(m, column + 1, is_cut ? NUMBER_UNKNOWN : type);
        put(m, column + 2, row->name);
    }
    free(all);
    return DONE;
}

static int put_functions(types *t) {
    merging *m = t->merge;
    placed *all = malloc((t->functions.count + 1) * sizeof *all);
    bool made = all != NULL;
    for (int column = FUNCTION_STARTS; column <= FUNCTION_KEYS; column++)
        made = made && ready(m, column, t->functions.count);
    for (uint64_t i = 0; made && i < t->functions.count; i++)
        all[i] = (placed){t->functions.items[i].start, i};
    if (made)
        qsort(all, t->functions.count, sizeof *all, by_address);
    for (uint64_t i = 0; made && i < t->functions.count; i++) {
        const function_row *row = &t->functions.items[all[i].row];
        if (i && all[i].address == all[i - 1].address)
            continue; /* several equal functions: the linker kept one */
        put(m, FUNCTION_STARTS, row->start);
        put(m, FUNCTION_ENDS, row->end);
        put(m, FUNCTION_TYPES, type_with_key(t, row->type));
        put(m, FUNCTION_KEYS, row->key);
    }
    free(all);
    return made ? DONE : NO_MEMORY;
}

static int put_keys(types *t) {
    merging *m = t->merge;
    if (!ready(m, KEYS, t->rows.count) || !ready(m, KEY_TYPES, t->rows.count))
        return NO_MEMORY;
    for (uint64_t i = 0; i < t->rows.count; i++) {
        put(m, KEYS, t->rows.items[i].key);
        put(m, KEY_TYPES, m->final[i + 2]);
    }
    return DONE;
}

static int put_strings(types *t) {
    merging *m = t->merge;
    if (!ready(m, STRINGS, t->strings.text.count))
        return NO_MEMORY;
    m->columns[STRINGS].count = t->strings.text.count ? t->strings.text.count : 1; /* "" */
    memcpy(m->columns[STRINGS].items, t->strings.text.items ? t->strings.text.items : (const uint8_t *)"", t->strings.text.count);
    return DONE;
}

static int put_globals(types *t) { return put_variables(t, false, VARIABLE_ADDRESSES); }

static int put_locals(types *t) { return put_variables(t, true, LOCAL_OFFSETS); }

int make_columns(types *t) {
    static int (*const parts[])(types *) = {begin_types, put_types, put_globals, put_locals, put_functions, put_keys, put_strings};
    merging *m = t->merge;
    int more = parts[m->part](t);
    if (more)
        return more;
    m->part++;
    return m->part < sizeof parts / sizeof *parts;
}

/* Return the elements of a column, and write their number to *count. They are valid until the types
 * are freed. */
API void *fl_types_column(const types *t, uint32_t column, uint64_t *count) {
    const merging *m = t->merge;
    *count = m && column < COLUMNS ? m->columns[column].count : 0;
    return *count ? m->columns[column].items : NULL;
}

/* Whether damage or a limit ended the reading early. */
API bool fl_types_incomplete(const types *t) { return t->incomplete; }
