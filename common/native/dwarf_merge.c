/* Links types by their keys, and finds equal ones of several units.
 *
 * Each unit repeats the types that it uses. Classes of equal nodes are refined in rounds: two
 * nodes stay in one class while their own attributes, and the classes of all nodes that they refer
 * to, are equal. A reference to a struct, union or enumeration with a name counts by this name, so
 * that a declaration equals the definition, and recursion ends. Only if definitions of one name
 * differ (static types of C files), references to them count by their classes. */
#include "dwarf.h"
#include <stdlib.h>

enum { MOST_ROUNDS = 64, MOST_ALIASES = 8, MOST_LEVELS = 64, NODES_A_CALL = 1 << 18 };
enum { LINK_TYPES, SETTLE, LINK_MEMBERS, GROUP, REFINE, COMPARE, WRITE, ENDED };

void merging_free(types *t) {
    merging *m = t->merge;
    if (!m)
        return;
    FREE_ALL(m->targets, m->instead, m->first, m->order, m->types, m->group, m->class, m->next, m->definition, m->differs, m->hashes, m->numbers,
             m->final, m->best);
    for (size_t i = 0; i < sizeof m->columns / sizeof *m->columns; i++)
        free(m->columns[i].items);
    free(m);
    t->merge = NULL;
}

static uint32_t *numbers(uint64_t count) { return calloc(count + 1, sizeof(uint32_t)); }

static int begin(types *t) {
    merging *m = t->merge = calloc(1, sizeof *m);
    if (!m)
        return NO_MEMORY;
    m->nodes = (uint32_t)t->rows.count + 2;
    m->targets = numbers(m->nodes), m->instead = numbers(m->nodes), m->group = numbers(m->nodes);
    m->class = numbers(m->nodes), m->next = numbers(m->nodes), m->first = numbers(m->nodes + 1);
    m->order = numbers(t->members.count), m->types = numbers(t->members.count), m->definition = numbers(m->nodes);
    m->differs = calloc(m->nodes, 1);
    for (m->slots = 1 << 10; m->slots < 2 * (uint64_t)m->nodes;)
        m->slots *= 2;
    m->hashes = malloc(m->slots * sizeof *m->hashes);
    m->numbers = numbers(m->slots);
    m->instead[1] = 1;
    sort_signatures(t);
    bool made = m->targets && m->instead && m->group && m->class && m->next && m->first && m->order && m->types && m->definition && m->differs &&
                m->hashes && m->numbers;
    return made ? DONE : NO_MEMORY;
}

/* Return the node with this key. The search widens from `near`, because most references are to
 * nearby types. */
uint32_t node_with_key(const types *t, uint64_t key, uint64_t near) {
    const type_row *rows = t->rows.items;
    uint64_t count = t->rows.count, low = near, high = near, step = 16;
    if (key >= KEY_UNKNOWN || !count)
        return key == KEY_VOID ? TYPE_VOID : TYPE_UNKNOWN;
    while (low && rows[low].key > key)
        low = low > step ? low - step : 0, step *= 2;
    for (step = 16; high < count && rows[high].key < key; step *= 2)
        high = high + step < count ? high + step : count;
    BISECT(low, high, middle, rows[middle].key < key)
    return low < count && rows[low].key == key ? (uint32_t)low + 2 : TYPE_UNKNOWN;
}

/* Find the node that a type refers to, and the node to use instead if it is defined elsewhere. */
static void link_type(types *t, uint32_t node) {
    merging *m = t->merge;
    type_row *row = &t->rows.items[node - 2];
    m->targets[node] = node_with_key(t, row->target, node - 2);
    m->instead[node] = node;
    uint64_t key = row->flags & SIGNATURE ? key_of_signature(t, row->extra) : row->extra;
    if (row->flags & ALIAS && (key != KEY_UNKNOWN || !row->name))
        m->instead[node] = node_with_key(t, key, node - 2);
}

/* Return the node to use for a node; TYPE_UNKNOWN for a cycle of aliases. */
static uint32_t settled(const merging *m, uint32_t node) {
    for (int i = 0; i < MOST_ALIASES; i++) {
        if (m->instead[node] == node)
            return node;
        node = m->instead[node];
    }
    return TYPE_UNKNOWN;
}

static bool is_aggregate(uint8_t kind) { return kind == TYPE_STRUCT || kind == TYPE_UNION || kind == TYPE_ENUM; }

/* Take over names: a class has the name of the declaration that it completes, and an unnamed type
 * has the name of its first typedef. */
static void name_type(types *t, uint32_t node) {
    merging *m = t->merge;
    type_row *row = &t->rows.items[node - 2];
    uint32_t target = m->targets[node] = settled(m, m->targets[node]);
    if (row->flags & COMPLETES && !row->name) {
        uint32_t declared = node_with_key(t, row->extra, node - 2);
        row->name = declared > TYPE_UNKNOWN ? t->rows.items[declared - 2].name : 0;
    }
    type_row *named = target > TYPE_UNKNOWN ? &t->rows.items[target - 2] : NULL;
    if (row->kind == TYPE_TYPEDEF && named && is_aggregate(named->kind) && !named->name && !(named->flags & COMPLETES)) {
        named->name = row->name;
        named->flags = (uint16_t)((named->flags & ~NEEDS_KEYWORD) | (row->name ? NAMED_BY_TYPEDEF : 0));
    }
}

/* Return the definition if a node is a declaration; else the node itself. */
uint32_t defined(const types *t, uint32_t node) {
    const merging *m = t->merge;
    node = settled(m, node);
    uint32_t group = m->group[node];
    bool declared = group != NONE && t->rows.items[node - 2].flags & DECLARATION;
    return declared && m->definition[group] && !m->differs[group] ? m->definition[group] : node;
}

/* Return the size of a type in bytes; 0 if it is not known. */
uint64_t type_size(const types *t, uint32_t node) {
    uint64_t factor = 1;
    for (int i = 0; i < MOST_LEVELS; i++) {
        node = t->merge->step == WRITE ? defined(t, node) : node;
        if (node <= TYPE_UNKNOWN)
            return 0;
        const type_row *row = &t->rows.items[node - 2];
        if (row->size)
            return row->size > UINT64_MAX / factor ? 0 : row->size * factor;
        if (row->kind == TYPE_ARRAY) {
            if (!row->count || row->count > UINT64_MAX / factor)
                return 0;
            factor *= row->count;
        } else if (row->kind != TYPE_TYPEDEF && row->kind != TYPE_QUALIFIED)
            return 0;
        node = t->merge->targets[node];
    }
    return 0;
}

static void link_member(types *t, uint64_t number) {
    merging *m = t->merge;
    member_row *row = &t->members.items[number];
    m->types[number] = settled(m, node_with_key(t, row->type, row->owner));
    m->first[row->owner + 2]++;
    if (row->storage) { /* a bit field, placed from the end of its type */
        uint64_t bit = row->offset + 8 * type_size(t, m->types[number]);
        row->bits |= bit & 7;
        row->offset = bit >> 3;
        row->storage = false;
    }
}

/* Sort members by their owners, in the order of the source. */
static void order_members(types *t) {
    merging *m = t->merge;
    uint32_t sum = 0;
    for (uint64_t node = 0; node <= m->nodes; node++) {
        uint32_t count = m->first[node];
        m->first[node] = sum;
        sum += count;
    }
    for (uint64_t i = 0; i < t->members.count; i++)
        m->order[m->first[t->members.items[i].owner + 2]++] = (uint32_t)i;
    for (uint64_t node = m->nodes; node; node--)
        m->first[node] = m->first[node - 1];
    m->first[0] = 0;
}

static uint64_t mixed(uint64_t hash, uint64_t number) {
    hash = (hash ^ number) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

/* Return the number of a hash. Hashes are numbered in the order in which they appear; *count is how
 * many there are. */
static uint32_t number_of_hash(merging *m, uint64_t hash, uint32_t *count) {
    uint64_t at = mixed(hash, 1) & (m->slots - 1);
    while (m->numbers[at] && m->hashes[at] != hash)
        at = (at + 1) & (m->slots - 1);
    if (!m->numbers[at]) {
        m->hashes[at] = hash;
        m->numbers[at] = ++*count;
    }
    return m->numbers[at] - 1;
}

static void group_type(types *t, uint32_t node) {
    merging *m = t->merge;
    m->group[node] = NONE;
    const type_row *row = node > TYPE_UNKNOWN ? &t->rows.items[node - 2] : NULL;
    if (row && row->name && is_aggregate(row->kind))
        m->group[node] = number_of_hash(m, mixed(mixed(row->kind, row->name), row->flags & NAMED_BY_TYPEDEF), &m->groups);
}

/* Return the value by which references to a node are compared. */
static uint64_t referred(const merging *m, uint32_t node) {
    uint32_t group = m->group[node];
    return group != NONE && !m->differs[group] ? UINT64_C(1) << 32 | group : m->class[node];
}

static void refine(types *t, uint32_t node) {
    merging *m = t->merge;
    uint64_t hash = mixed(mixed(1, node < 2 ? node : 2), m->class[node]);
    if (node > TYPE_UNKNOWN) {
        const type_row *row = &t->rows.items[node - 2];
        hash = mixed(mixed(mixed(hash, row->kind), row->name), row->flags & (DECLARATION | NAMED_BY_TYPEDEF | REFERENCE));
        hash = mixed(mixed(mixed(hash, row->size), row->count), referred(m, m->targets[node]));
        for (uint32_t i = m->first[node]; i < m->first[node + 1]; i++) {
            const member_row *one = &t->members.items[m->order[i]];
            if (one->part && one->kind > PART_VALUE_ARGUMENT)
                continue; /* compilers omit inner typedefs that a unit does not use */
            hash = mixed(mixed(mixed(hash, one->kind + 16u * one->part), one->name), one->offset);
            hash = mixed(mixed(mixed(hash, one->bits), one->value), referred(m, m->types[m->order[i]]));
        }
    }
    m->next[node] = number_of_hash(m, hash, &m->made);
}

/* Find the names whose definitions differ. */
static void compare(types *t, uint32_t node) {
    merging *m = t->merge;
    uint32_t group = m->group[node];
    if (group == NONE || t->rows.items[node - 2].flags & DECLARATION || m->instead[node] != node)
        return;
    if (!m->definition[group])
        m->definition[group] = node;
    else if (!m->differs[group] && m->next[node] != m->next[m->definition[group]]) {
        m->differs[group] = 1;
        m->ambiguous++;
    }
}

/* Do the current step for one node or one member. */
static void visit(types *t, uint64_t at) {
    uint32_t node = (uint32_t)at;
    switch (t->merge->step) {
    case LINK_MEMBERS:
        link_member(t, at);
        break;
    case GROUP:
        group_type(t, node);
        break;
    case REFINE:
        refine(t, node);
        break;
    case COMPARE:
        compare(t, node);
        break;
    default:
        if (node > TYPE_UNKNOWN)
            (t->merge->step == LINK_TYPES ? link_type : name_type)(t, node);
    }
}

/* Begin the next step. Refining ends when a round finds no new class. */
static void next_step(merging *m) {
    m->at = 0;
    if (m->step == GROUP || m->step == REFINE)
        memset(m->numbers, 0, m->slots * sizeof *m->numbers);
    if (m->step != COMPARE) {
        m->step++;
        return;
    }
    uint32_t *classes = m->class;
    m->class = m->next, m->next = classes;
    bool stable = m->made == m->classes && m->ambiguous == m->differed;
    m->classes = m->made, m->differed = m->ambiguous, m->made = 0;
    m->step = stable || ++m->rounds == MOST_ROUNDS ? WRITE : REFINE;
}

/* Do a part of the merging. Returns 1 if more is left, 0 when the columns are complete. Writes to
 * *part about how much is done, of 256. */
API int fl_types_merge(types *t, uint64_t *part) {
    static const uint8_t done_before[] = {0, 50, 60, 90, 100, 100, 220, 255};
    if (!t->merge)
        TRY(begin(t));
    merging *m = t->merge;
    *part = done_before[m->step] + (m->step >= REFINE && m->step < WRITE ? 120 - 120 / (1 + m->rounds) : 0);
    if (m->step == WRITE) {
        int more = make_columns(t);
        m->step = more ? WRITE : ENDED;
        return more;
    }
    if (m->step == ENDED)
        return 0;
    uint64_t end = m->step == LINK_MEMBERS ? t->members.count : m->nodes;
    for (uint64_t last = m->at + NODES_A_CALL < end ? m->at + NODES_A_CALL : end; m->at < last; m->at++)
        visit(t, m->at);
    if (m->at == end) {
        if (m->step == LINK_MEMBERS)
            order_members(t);
        next_step(m);
    }
    return 1;
}
