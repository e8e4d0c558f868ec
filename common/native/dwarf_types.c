/* Reads the entries of units into rows of types, members, variables and functions. The Python
 * reference is ../engine/reference/dwarf_types.py. Source: DWARF 5, chapters 3 to 5. */
#include "dwarf.h"
#include <stdlib.h>

#define TEXT_OF(text) (const uint8_t *)(text), sizeof(text)

API void fl_types_free(types *t) {
    strings_free(&t->strings);
    merging_free(t);
    abbreviations_free(&t->shapes);
    for (uint64_t i = 0; i < t->sources.count; i++)
        free(t->sources.items[i]);
    FREE_ALL(t->rows.items, t->members.items, t->variables.items, t->functions.items, t->wanted.items, t->later.items, t->declared.items,
             t->units.items, t->sources.items, t->signatures.items, t);
}

API types *fl_types_new(void) { return calloc(1, sizeof(types)); }

/* Set *type to the key of the type that an attribute refers to. For a type signature, add a row.
 * The key of the row is `key` + 1: the second byte of the entry, which is the key of no entry. */
static int type_of(types *t, uint64_t key, const value *v, uint64_t *type) {
    *type = v->is == NOTHING ? KEY_VOID : v->is == KEY ? v->number : KEY_UNKNOWN;
    if (v->is != SIG)
        return DONE;
    *type = key + 1;
    type_row row = {.key = key + 1, .extra = v->number, .flags = ALIAS | SIGNATURE, .kind = TYPE_UNKNOWN, .target = KEY_VOID};
    return t->rows.count == MOST_TYPES ? DISORDER : PUSH(t->rows, row);
}

static uint64_t number_of(const value *v) { return v->is == NUMBER || v->is == SECTION ? v->number : 0; }

/* Add a type, with its name in a scope. */
static int add_type(types *t, uint64_t key, uint8_t kind, unsigned flags, uint32_t scope, const value *v) {
    if (t->rows.count == MOST_TYPES)
        return DISORDER;
    type_row row = {.key = key, .size = number_of(&v[A_SIZE]), .kind = kind, .flags = (uint16_t)flags, .target = KEY_VOID};
    if (number_of(&v[A_DECLARATION]))
        row.flags |= DECLARATION;
    if (v[A_NAME].is == TEXT)
        TRY(intern(t, scope, v[A_NAME].data, v[A_NAME].number, &row.name));
    if (v[A_SIGNATURE].is == SIG)
        row.flags |= ALIAS | SIGNATURE, row.extra = v[A_SIGNATURE].number;
    else if (v[A_SPECIFICATION].is == KEY)
        row.flags |= COMPLETES, row.extra = v[A_SPECIFICATION].number;
    else if (v[A_ORIGIN].is == KEY && !row.name && !row.size)
        row.flags |= ALIAS, row.extra = v[A_ORIGIN].number;
    TRY(PUSH(t->rows, row));
    uint64_t number = t->rows.count - 1;
    return type_of(t, key, &v[A_TYPE], &t->rows.items[number].target);
}

static int add_aggregate(types *t, uint64_t key, uint8_t kind, unsigned flags, const frame *above, const value *v, frame *child) {
    if (v[A_CONTAINING].is != NOTHING)
        flags |= POLYMORPHIC;
    TRY(add_type(t, key, kind, flags | (t->here.is_c ? NEEDS_KEYWORD : 0u), above->scope, v));
    child->owner = (uint32_t)t->rows.count - 1;
    if (v[A_TYPE].is == SIG) /* the type of an enumeration's values has the last row */
        child->owner--;
    if (kind == TYPE_ENUM)
        return DONE;
    child->is = IN_CLASS;
    if (t->rows.items[child->owner].name && !t->here.is_c)
        child->scope = t->rows.items[child->owner].name;
    return DONE;
}

/* Dimensions after the first are arrays in the first one. */
static int add_dimension(types *t, uint64_t key, frame *above, const value *v) {
    uint64_t count = 0;
    if (v[A_COUNT].is == NUMBER)
        count = v[A_COUNT].number;
    else if (v[A_UPPER].is == NUMBER)
        count = v[A_UPPER].number - number_of(&v[A_LOWER]) + 1;
    if (count == UINT64_C(1) << 32 || count >> 62) /* -1 elements: not known */
        count = 0;
    type_row *last = &t->rows.items[above->owner];
    if (!above->has_value) {
        above->has_value = true;
        last->count = count;
        return DONE;
    }
    if (t->rows.count == MOST_TYPES)
        return DISORDER;
    type_row row = {.key = key, .kind = TYPE_ARRAY, .count = count, .target = last->target};
    last->target = key;
    above->owner = (uint32_t)t->rows.count;
    return PUSH(t->rows, row);
}

static int add_row(types *t, uint64_t key, member_row row, const value *v) {
    if (t->members.count == MOST_TYPES)
        return DISORDER;
    if (v[A_NAME].is == TEXT && (row.part || row.kind != FIELD_BASE))
        TRY(intern(t, 0, v[A_NAME].data, v[A_NAME].number, &row.name));
    if (row.type == KEY_VOID)
        TRY(type_of(t, key, &v[A_TYPE], &row.type));
    return PUSH(t->members, row);
}

static int add_part(types *t, uint64_t key, const frame *above, uint8_t kind, uint64_t type, const value *v) {
    uint64_t constant = kind == PART_VALUE_ARGUMENT ? number_of(&v[A_CONSTANT]) : 0;
    return add_row(t, key, (member_row){.owner = above->owner, .kind = kind, .part = true, .type = type, .value = constant}, v);
}

/* Bytes from the start of the class; false if they are known at run time only. */
static bool offset_of(const value *v, uint64_t *offset) {
    *offset = number_of(v);
    if (v->is != BLOCK)
        return true;
    const uint8_t *at = v->data + 1, *end = v->data + v->number;
    /* DW_OP_plus_uconst; DW_OP_constu is of some old compilers. */
    return v->number > 1 && *v->data == 0x23 && read_uleb(&at, end, offset) && at == end;
}

static int add_field(types *t, uint64_t key, const frame *above, uint8_t kind, const value *v) {
    member_row row = {.owner = above->owner, .kind = kind, .type = KEY_VOID, .value = above->is == IN_VARIANT ? above->value : 0};
    bool fixed = offset_of(&v[A_MEMBER], &row.offset);
    if (kind == FIELD_BASE && (!fixed || number_of(&v[A_VIRTUAL])))
        return add_part(t, key, above, PART_VIRTUAL_BASE, KEY_VOID, v);
    if (!fixed)
        row.offset = 0;
    uint64_t bits = number_of(&v[A_BIT_SIZE]), first = number_of(&v[A_DATA_BIT]), storage = number_of(&v[A_SIZE]);
    if (bits && bits < 1 << 16) {
        if (v[A_DATA_BIT].is == NOTHING) {
            uint64_t from_end = number_of(&v[A_BIT_OFFSET]);
            row.storage = !BIG && !storage; /* link_members() adds the bits of the type */
            first = 8 * row.offset + (BIG ? from_end : 8 * storage - from_end - bits);
        }
        row.bits = (uint32_t)bits << 8 | (first & 7);
        row.offset = row.storage ? first : first >> 3;
    }
    if (v[A_NAME].is == TEXT && v[A_NAME].number > 5 && !memcmp(v[A_NAME].data, "_vptr", 5))
        t->rows.items[above->owner].flags |= POLYMORPHIC;
    return add_row(t, key, row, v);
}

static int declare_variable(types *t, uint64_t key, const frame *above, const value *v) {
    declared_variable one = {.key = key};
    if (v[A_NAME].is != TEXT || above->function != KEY_VOID || t->declared.count == MOST_TYPES)
        return DONE;
    TRY(intern(t, above->scope, v[A_NAME].data, v[A_NAME].number, &one.name));
    TRY(type_of(t, key, &v[A_TYPE], &one.type));
    return PUSH(t->declared, one);
}

static int add_variable(types *t, uint64_t key, const frame *above, const value *v) {
    variable_row row = {.type = KEY_VOID};
    if (!location_of(&t->here, &v[A_LOCATION], &row))
        return declare_variable(t, key, above, v);
    if (t->variables.count == MOST_TYPES)
        return DISORDER;
    bool local = above->function != KEY_VOID;
    row.scope = local ? above->outer : above->scope;
    if (v[A_NAME].is == TEXT)
        TRY(intern(t, 0, v[A_NAME].data, v[A_NAME].number, &row.name));
    TRY(type_of(t, key, &v[A_TYPE], &row.type));
    TRY(PUSH(t->variables, row));
    uint64_t number = t->variables.count - 1;
    if (local)
        TRY(want(t, above->function, number, WANT_FUNCTION, 0));
    return row.name && row.type != KEY_VOID ? DONE : want(t, origin_of(v), number, WANT_VARIABLE, 0);
}

static int add_function(types *t, uint64_t key, const frame *above, const value *v, frame *child) {
    child->is = above->is == IN_CLASS && is_manager(&v[A_NAME]) ? IN_MANAGER : IN_FUNCTION;
    child->function = key;
    child->outer = above->function == KEY_VOID ? above->scope : above->outer;
    child->scope = 0;
    uint64_t first = t->functions.count, type;
    bool any = false;
    if (v[A_LOW].is == NOTHING && v[A_RANGES].is == NOTHING)
        return DONE;
    TRY(add_functions(t, &t->here, v, key, KEY_VOID, &any));
    if (!any)
        return DONE;
    TRY(type_of(t, key, &v[A_TYPE], &type));
    for (uint64_t row = first; row < t->functions.count; row++) {
        t->functions.items[row].type = type;
        if (type == KEY_VOID)
            TRY(want(t, origin_of(v), row, WANT_RESULT, 0));
    }
    return DONE;
}

/* The first entry of a unit: what the others depend on. */
static void begin_unit(unit *u, const value *v) {
    if (v[A_STRINGS_BASE].is != NOTHING)
        u->strings_base = number_of(&v[A_STRINGS_BASE]);
    if (v[A_ADDRESS_BASE].is != NOTHING)
        u->address_base = number_of(&v[A_ADDRESS_BASE]);
    if (v[A_RANGES_BASE].is != NOTHING && u->version >= 5)
        u->ranges_base = number_of(&v[A_RANGES_BASE]);
    uint64_t language = number_of(&v[A_LANGUAGE]), low;
    u->is_c = !language || language == 1 || language == 2 || language == 0x0c || language == 0x1d || language == 0x2c || language == 0x3e;
    if (v[A_LOW].is != NOTHING && address_of(u, &v[A_LOW], &low))
        u->low_pc = low;
}

static int add_qualified(types *t, uint64_t key, uint32_t tag, value *v) {
    static const char *const names[] = {"const", "volatile", "restrict", "_Atomic"};
    const char *word = names[tag == 0x26 ? 0 : tag == 0x35 ? 1 : tag == 0x37 ? 2 : 3];
    v[A_NAME] = (value){(const uint8_t *)word, strlen(word) + 1, TEXT};
    return add_type(t, key, TYPE_QUALIFIED, 0, 0, v);
}

static int add_pointer(types *t, uint64_t key, unsigned flags, value *v) {
    if (!number_of(&v[A_SIZE]))
        v[A_SIZE] = (value){NULL, t->here.address, NUMBER};
    return add_type(t, key, TYPE_POINTER, flags, 0, v);
}

/* Entries of a class. */
static int add_in_class(types *t, uint32_t tag, uint64_t key, const frame *above, const value *v, frame *child) {
    bool in_class = above->is == IN_CLASS;
    switch (tag) {
    case 0x0d: /* member */
        if (in_class && (number_of(&v[A_DECLARATION]) || number_of(&v[A_EXTERNAL])))
            return declare_variable(t, key, above, v);
        if (in_class || above->is == IN_PART)
            return add_field(t, key, above, in_class ? FIELD_MEMBER : FIELD_DISCRIMINANT, v);
        return above->is == IN_VARIANT ? add_field(t, key, above, above->has_value ? FIELD_VARIANT : FIELD_OTHER_VARIANT, v) : DONE;
    case 0x1c:
        return in_class ? add_field(t, key, above, FIELD_BASE, v) : DONE;
    case 0x2f: case 0x30:
        if (above->is == IN_MANAGER && tag == 0x2f && v[A_TYPE].is == KEY)
            return add_alias(t, key, v[A_TYPE].number);
        return in_class ? add_part(t, key, above, tag == 0x2f ? PART_TYPE_ARGUMENT : PART_VALUE_ARGUMENT, KEY_VOID, v) : DONE;
    case 0x33:
        child->is = in_class ? IN_PART : IN_OTHER;
        return DONE;
    default: /* 0x19: variant */
        child->is = above->is == IN_PART ? IN_VARIANT : IN_OTHER;
        child->value = number_of(&v[A_DISCRIMINANT]);
        child->has_value = v[A_DISCRIMINANT].is == NUMBER;
        return DONE;
    }
}

static int add_entry(types *t, uint32_t tag, uint64_t key, frame *above, value *v, frame *child) {
    *child = *above;
    child->is = above->is == IN_FUNCTION ? IN_FUNCTION : IN_OTHER;
    child->has_value = false;
    switch (tag) {
    case 0x24: case 0x12: {
        TRY(add_type(t, key, TYPE_BASE, 0, 0, v));
        t->rows.items[t->rows.count - 1].count = number_of(&v[A_ENCODING]);
        return DONE;
    }
    case 0x3b:
        TRY(add_type(t, key, TYPE_VOID, ALIAS, 0, v));
        t->rows.items[t->rows.count - 1].extra = KEY_VOID;
        return DONE;
    case 0x0f:
        return add_pointer(t, key, 0, v);
    case 0x10: case 0x42:
        return add_pointer(t, key, REFERENCE, v);
    case 0x1f:
        return add_type(t, key, TYPE_MEMBER_POINTER, 0, 0, v);
    case 0x13: case 0x38:
        return add_aggregate(t, key, TYPE_STRUCT, 0, above, v, child);
    case 0x02:
        return add_aggregate(t, key, TYPE_STRUCT, CLASS, above, v, child);
    case 0x17:
        return add_aggregate(t, key, TYPE_UNION, 0, above, v, child);
    case 0x04:
        return add_aggregate(t, key, TYPE_ENUM, 0, above, v, child);
    case 0x16: case 0x43:
        TRY(add_type(t, key, TYPE_TYPEDEF, 0, above->scope, v));
        return above->is == IN_CLASS ? add_part(t, key, above, PART_TYPEDEF, key, v) : DONE;
    case 0x26: case 0x35: case 0x37: case 0x47:
        return add_qualified(t, key, tag, v);
    case 0x15:
        return add_type(t, key, TYPE_FUNCTION, 0, 0, v);
    case 0x01:
        child->is = IN_ARRAY;
        child->owner = (uint32_t)t->rows.count;
        return add_type(t, key, TYPE_ARRAY, 0, 0, v);
    case 0x21: case 0x45:
        return above->is == IN_ARRAY ? add_dimension(t, key, above, v) : DONE;
    case 0x0d: case 0x1c: case 0x2f: case 0x30: case 0x33: case 0x19:
        return add_in_class(t, tag, key, above, v, child);
    case 0x4107: /* template parameters that are a pack */
        child->is = above->is;
        return DONE;
    case 0x39: case 0x1e:
        child->is = IN_SCOPE;
        if (v[A_NAME].is == TEXT)
            return intern(t, above->scope, v[A_NAME].data, v[A_NAME].number, &child->scope);
        if (v[A_ORIGIN].is == KEY) /* of link-time optimization: another unit has its name */
            return DONE;
        return intern(t, above->scope, TEXT_OF("(anonymous namespace)"), &child->scope);
    case 0x2e:
        if (above->is == IN_CLASS && is_manager(&v[A_NAME]))
            TRY(add_alias(t, key, t->rows.items[above->owner].key));
        return add_function(t, key, above, v, child);
    case 0x34:
        return add_variable(t, key, above, v);
    case 0x11: case 0x3c: case 0x41: case 0x4a:
        begin_unit(&t->here, v);
        child->is = IN_SCOPE;
        return DONE;
    default:
        return DONE;
    }
}

/* Read units of this section from now on. Its data must remain until fl_types_origins returns 0. */
API int fl_types_source(types *t, const source *from) {
    source *kept = malloc(sizeof *kept);
    if (!kept)
        return NO_MEMORY;
    *kept = *from;
    if (PUSH(t->sources, kept) != DONE) {
        free(kept);
        return NO_MEMORY;
    }
    t->budget += 64 * from->info.size + (UINT64_C(4) << 20);
    t->at = 0;
    t->in_unit = false;
    forget_texts(&t->strings);
    memset(&t->shapes.at, 0, sizeof t->shapes.at);
    return DONE;
}

/* Begin the unit at t->at: false at the end of the section. */
static int open_next(types *t, const source *from, bool *more) {
    unit *u = &t->here;
    *more = read_unit(from, t->at, u);
    if (!*more) {
        t->incomplete |= t->at != from->info.size;
        return DONE;
    }
    if (t->units.count < MOST_TYPES)
        TRY(PUSH(t->units, *u));
    if (u->kind == 2 && t->signatures.count < MOST_TYPES)
        TRY(PUSH(t->signatures, (range){u->signature, from->key + u->start + u->type}));
    t->at = u->first;
    t->depth = 0;
    t->in_unit = true;
    int code = read_abbreviations(t, u, &t->shapes);
    if (code == DISORDER) { /* continue with the next unit */
        t->incomplete = true;
        t->in_unit = false;
        t->at = u->end;
        return DONE;
    }
    return code;
}

static void end_unit(types *t) {
    t->units.items[t->units.count - 1] = t->here; /* with the bases that its first entry gives */
    t->at = t->here.end;
    t->in_unit = false;
}

static bool skips_children(uint32_t tag) { return tag == 0x1d || tag == 0x48 || tag == 0x4109 || tag == 0x04; }

/* Read the entry at t->at. */
static int next_entry(types *t) {
    unit *u = &t->here;
    const uint8_t *at = u->from->info.data + t->at, *end = u->from->info.data + u->end;
    uint64_t code, offset = t->at;
    const shape *s = NULL;
    if (!read_uleb(&at, end, &code) || (code && !(s = shape_of(&t->shapes, code)))) {
        t->incomplete = true;
        end_unit(t);
        return DONE;
    }
    t->at = (uint64_t)(at - u->from->info.data);
    if (!s) {
        if (t->depth <= 1 || --t->depth == 0)
            end_unit(t);
        return DONE;
    }
    value values[ATTRIBUTES] = {0};
    uint64_t after = read_entry(u, &t->shapes, s, t->at, values);
    if (!after || (s->children && t->depth == MOST_FRAMES)) {
        t->incomplete = true;
        end_unit(t);
        return DONE;
    }
    t->at = after;
    frame root = {.function = KEY_VOID}, child;
    frame *above = t->depth ? &t->frames[t->depth - 1] : &root;
    TRY(add_entry(t, s->tag, u->from->key + offset, above, values, &child));
    if (!s->children) {
        if (!t->depth)
            end_unit(t);
        return DONE;
    }
    uint64_t sibling = values[A_SIBLING].is == KEY ? values[A_SIBLING].number - u->from->key : 0;
    if (skips_children(s->tag) && sibling > after && sibling < u->end)
        t->at = sibling;
    else
        t->frames[t->depth++] = child;
    return DONE;
}

/* Read about `limit` bytes, and set *at to the new offset. Return 0 at the section's end. */
API int fl_types_read(types *t, uint64_t limit, uint64_t *at) {
    const source *from = t->sources.items[t->sources.count - 1];
    uint64_t begin = t->at;
    while (t->at - begin < limit) {
        bool more = true;
        int code = t->in_unit && t->at < t->here.end ? next_entry(t) : DONE;
        if (t->in_unit && t->at >= t->here.end)
            end_unit(t);
        if (code == DONE && !t->in_unit)
            code = open_next(t, from, &more);
        *at = t->at;
        if (code == DISORDER) {
            t->incomplete = true;
            return 0;
        }
        if (code != DONE || !more)
            return code;
    }
    return 1;
}
