/* Looks up attributes that variables and functions take from other entries: from the entry that
 * they complete (DW_AT_specification) or are an instance of (DW_AT_abstract_origin). All look-ups
 * of one hop are sorted, so that each unit's abbreviations are read once. */
#include "dwarf.h"
#include <stdlib.h>

int want(types *t, uint64_t key, uint64_t row, uint8_t what, uint8_t hops) {
    if (key >= KEY_UNKNOWN || hops == MOST_HOPS)
        return DONE;
    return t->later.count == MOST_TYPES ? DISORDER : PUSH(t->later, (pending){key, row, what, hops});
}

/* Return the key of the entry that this entry completes (DW_AT_specification) or is an instance of
 * (DW_AT_abstract_origin); KEY_UNKNOWN if there is none. */
uint64_t origin_of(const value *v) {
    const value *origin = v[A_SPECIFICATION].is == KEY ? &v[A_SPECIFICATION] : &v[A_ORIGIN];
    return origin->is == KEY ? origin->number : KEY_UNKNOWN;
}

static int by_key(const void *one, const void *other) {
    const pending *a = one, *b = other;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return a->row != b->row ? (a->row < b->row ? -1 : 1) : a->what - b->what;
}

static int by_start(const void *one, const void *other) {
    const range *a = one, *b = other;
    if (a->start != b->start)
        return a->start < b->start ? -1 : 1;
    return a->end != b->end ? (a->end < b->end ? -1 : 1) : 0;
}

void sort_signatures(types *t) {
    if (t->signatures.count != t->sorted)
        qsort(t->signatures.items, t->signatures.count, sizeof *t->signatures.items, by_start);
    t->sorted = t->signatures.count;
}

/* Key of the type with this signature, by its first type unit. */
uint64_t key_of_signature(const types *t, uint64_t signature) {
    uint64_t at = 0;
    BISECT(at, t->signatures.count, middle, t->signatures.items[middle].start < signature)
    return at < t->signatures.count && t->signatures.items[at].start == signature ? t->signatures.items[at].end : KEY_UNKNOWN;
}

static const declared_variable *declared(const types *t, uint64_t key) {
    uint64_t at = 0;
    BISECT(at, t->declared.count, middle, t->declared.items[middle].key < key)
    return at < t->declared.count && t->declared.items[at].key == key ? &t->declared.items[at] : NULL;
}

/* Read the entry with this key: DISORDER if there is none. */
static int read_key(types *t, uint64_t key, value *v) {
    uint64_t at = 0, code;
    BISECT(at, t->units.count, middle, t->units.items[middle].from->key + t->units.items[middle].start <= key)
    if (!at)
        return DISORDER;
    const unit *u = &t->units.items[at - 1];
    uint64_t offset = key - u->from->key;
    if (offset < u->first || offset >= u->end)
        return DISORDER;
    TRY(read_abbreviations(t, u, &t->shapes));
    const uint8_t *here = u->from->info.data + offset;
    const shape *s;
    if (!read_uleb(&here, u->from->info.data + u->end, &code) || !(s = shape_of(&t->shapes, code)))
        return DISORDER;
    return read_entry(u, &t->shapes, s, (uint64_t)(here - u->from->info.data), v) ? DONE : DISORDER;
}

static uint64_t type_key(const types *t, const value *v) {
    return v->is == SIG ? key_of_signature(t, v->number) : v->is == KEY ? v->number : v->is == NOTHING ? KEY_VOID : KEY_UNKNOWN;
}

static int name_of(types *t, const value *v, uint32_t *name) { return v->is == TEXT ? intern(t, 0, v->data, v->number, name) : DONE; }

static int resolve(types *t, const pending *one) {
    value v[ATTRIBUTES] = {0};
    bool done;
    if (one->what == WANT_VARIABLE) {
        const declared_variable *known = declared(t, one->key);
        variable_row *row = &t->variables.items[one->row];
        if (known) {
            row->has_scope = !row->name;
            row->name = row->name ? row->name : known->name;
            row->type = row->type != KEY_VOID ? row->type : known->type;
            return DONE;
        }
    }
    int code = read_key(t, one->key, v);
    if (code != DONE)
        return code == DISORDER ? DONE : code;
    if (one->what == WANT_RESULT) {
        uint64_t *type = &t->functions.items[one->row].type;
        *type = type_key(t, &v[A_TYPE]);
        done = *type != KEY_VOID;
    } else {
        variable_row *row = &t->variables.items[one->row];
        uint32_t *name = one->what == WANT_FUNCTION ? &row->function : &row->name;
        if (!*name)
            TRY(name_of(t, &v[A_NAME], name));
        if (one->what == WANT_VARIABLE && row->type == KEY_VOID)
            row->type = type_key(t, &v[A_TYPE]);
        done = *name && (one->what == WANT_FUNCTION || row->type != KEY_VOID);
    }
    return done ? DONE : want(t, origin_of(v), one->row, one->what, (uint8_t)(one->hops + 1));
}

/* Write the names of variables with their scopes. */
static int name_variables(types *t) {
    for (; t->named < t->variables.count; t->named++) {
        variable_row *row = &t->variables.items[t->named];
        if (!row->has_scope && row->name) {
            TRY(intern_below(t, row->scope, row->function, &row->scope));
            TRY(intern_below(t, row->scope, row->name, &row->name));
        }
    }
    return DONE;
}

/* Do `limit` look-ups for the sources read so far; return 0 when all are done, and their data may
 * be released. */
API int fl_types_origins(types *t, uint64_t limit) {
    int code = DONE;
    for (uint64_t done = 0; done < limit && code == DONE; done++) {
        if (t->resolved == t->wanted.count) {
            if (!t->later.count)
                break;
            sort_signatures(t);
            t->wanted.count = t->resolved = 0;
            for (uint64_t i = 0; i < t->later.count && code == DONE; i++)
                code = PUSH(t->wanted, t->later.items[i]);
            qsort(t->wanted.items, t->wanted.count, sizeof *t->wanted.items, by_key);
            t->later.count = 0;
            continue;
        }
        code = resolve(t, &t->wanted.items[t->resolved++]);
    }
    if (code == DONE && (t->resolved < t->wanted.count || t->later.count))
        return 1;
    if (code == DONE)
        code = name_variables(t);
    if (code == NO_MEMORY)
        return code;
    t->incomplete |= code != DONE;
    for (uint64_t i = 0; i < t->sources.count; i++)
        free(t->sources.items[i]);
    t->sources.count = t->units.count = t->wanted.count = t->later.count = t->resolved = 0;
    t->shapes.at = NULL;
    forget_texts(&t->strings);
    return 0;
}
