/* Types of debug information (DWARF 2 to 5), as rows. ../debuginfo/type_table.py describes the
 * table that they become. A *key* is the offset of an entry in the concatenation of all sections of
 * units that are read.
 *
 * Any byte may be wrong. Nothing outside of the sections is read; each loop ends with a section,
 * or counts against `budget`, which is proportional to the size of the sections. */
#ifndef FINDLEAKS_DWARF_H
#define FINDLEAKS_DWARF_H

#include "native.h"

enum { TYPE_VOID, TYPE_UNKNOWN, TYPE_BASE, TYPE_POINTER, TYPE_STRUCT, TYPE_UNION, TYPE_ARRAY, TYPE_ENUM, TYPE_TYPEDEF, TYPE_QUALIFIED,
       TYPE_FUNCTION, TYPE_MEMBER_POINTER };
/* Flags of types. LASTING are those of the table; rows have the others too. ALIAS: `extra` is the
 * key of the type to use instead. COMPLETES: `extra` is the key of the declaration that has the
 * name. SIGNATURE: `extra` is the signature of a type unit. */
enum { DECLARATION = 1, POLYMORPHIC = 2, NEEDS_KEYWORD = 4, NAMED_BY_TYPEDEF = 8, REFERENCE = 16, CLASS = 32,
       ALIAS = 64, COMPLETES = 128, SIGNATURE = 256, LASTING = ALIAS - 1 };
enum { FIELD_MEMBER, FIELD_BASE, FIELD_DISCRIMINANT, FIELD_VARIANT, FIELD_OTHER_VARIANT };
enum { PART_TYPE_ARGUMENT, PART_VALUE_ARGUMENT, PART_TYPEDEF, PART_VIRTUAL_BASE };

/* The columns of ../debuginfo/type_table.py, in the same order. */
enum { STRINGS, KINDS, FLAGS, NAMES, SIZES, TARGETS, COUNTS, FIRST_FIELD, FIELD_KINDS, FIELD_NAMES, FIELD_OFFSETS, FIELD_TYPES, FIELD_BITS,
       FIELD_VALUES, FIRST_PART, PART_KINDS, PART_NAMES, PART_TYPES, PART_VALUES, VARIABLE_ADDRESSES, VARIABLE_TYPES, VARIABLE_NAMES,
       LOCAL_OFFSETS, LOCAL_TYPES, LOCAL_NAMES, FUNCTION_STARTS, FUNCTION_ENDS, FUNCTION_TYPES, FUNCTION_KEYS, KEYS, KEY_TYPES, COLUMNS };
typedef struct table_column {
    void *items;
    uint64_t count;
} table_column;

#define KEY_VOID UINT64_MAX           /* no type: void */
#define KEY_UNKNOWN (UINT64_MAX - 1)  /* a type that cannot be read */
#define MOST_TYPES (UINT64_C(1) << 27) /* rows of one list */

typedef struct {
    const uint8_t *data;
    uint64_t size;
} bytes;

/* A section of units, and what its entries refer to. ../engine/dwarf_sources.py fills it. */
typedef struct source {
    bytes info, abbreviations, strings, line_strings, string_offsets, addresses, ranges, range_lists, other_strings;
    uint64_t key;        /* of the first byte of `info` */
    uint64_t references; /* key of the section that DW_FORM_ref_addr refers to */
    uint64_t others;     /* key of .debug_info of the supplementary file; KEY_UNKNOWN: none */
    uint64_t address_base, ranges_base, low_pc; /* of split units: those of the skeleton unit */
    uint64_t flags;
} source;
enum { TYPE_UNITS = 1, SPLIT = 2 }; /* .debug_types of DWARF 4; split units */

typedef struct {
    const source *from;
    uint64_t start, first, end; /* offsets in `info` */
    uint64_t abbreviations;     /* offset of its abbreviations */
    uint64_t signature, type;   /* of type units: offset of the type's entry in the unit */
    uint64_t address_base, ranges_base, strings_base, low_pc;
    uint8_t version, kind, wide, address; /* bytes of an offset and of an address */
    bool is_c;
} unit;

/* What an attribute's value is: a number, a key, a signature, text that ends with a zero or
 * after `length` bytes, a block, an address, an index into .debug_addr, an offset of another
 * section, an index into a table of lists. */
enum { NOTHING, NUMBER, KEY, SIG, TEXT, BLOCK, ADDRESS, INDEX, SECTION, LIST_INDEX };

typedef struct {
    const uint8_t *data; /* of text and blocks */
    uint64_t number;     /* or their length */
    uint8_t is;
} value;

/* Attributes that are read. */
enum { A_SKIPPED, A_SIBLING, A_NAME, A_TYPE, A_SIZE, A_DECLARATION, A_LOCATION, A_ENCODING, A_COUNT, A_UPPER, A_LOWER, A_MEMBER, A_BIT_SIZE,
       A_BIT_OFFSET, A_DATA_BIT, A_CONSTANT, A_DISCRIMINANT, A_SIGNATURE, A_SPECIFICATION, A_ORIGIN, A_LOW, A_HIGH, A_RANGES, A_EXTERNAL,
       A_CONTAINING, A_VIRTUAL, A_LANGUAGE, A_STRINGS_BASE, A_ADDRESS_BASE, A_RANGES_BASE, ATTRIBUTES };

typedef struct {
    uint32_t form;
    uint8_t slot;
    int8_t size; /* bytes; -1: varies */
    int64_t constant;
} attribute;

typedef struct {
    uint32_t tag, first, count; /* its attributes */
    int32_t size;               /* bytes of all attributes; -1: varies */
    bool children, read;
} shape;

/* The abbreviations of a unit. */
typedef struct {
    LIST(shape) shapes;
    LIST(attribute) attributes;
    uint32_t *by_code, codes, capacity; /* number of the shape + 1 */
    const uint8_t *at;                  /* where they were read */
    uint8_t wide, address, version;
} abbreviations;

typedef struct {
    uint64_t key, size, count, target, extra;
    uint32_t name;
    uint16_t flags;
    uint8_t kind;
} type_row;

/* `bits` has the same meaning as in TypeTable. If `storage` is set, the offset must be computed
 * from the size of the type. */
typedef struct {
    uint64_t offset, value, type;
    uint32_t owner, name, bits;
    uint8_t kind;
    bool part, storage;
} member_row;

/* `has_scope`: whether `name` is complete. `most`: if not 0, the most bytes that the type may have,
 * because nothing is known about the memory after them. */
typedef struct {
    uint64_t address, type, most;
    uint32_t scope, function, name;
    bool thread, has_scope;
} variable_row;

typedef struct {
    uint64_t start, end, type, key;
} function_row;

/* A property that another entry has: the name and type of a variable, the result type of a
 * function, or the name of the function around a variable. */
typedef struct {
    uint64_t key, row;
    uint8_t what, hops;
} pending;
enum { WANT_VARIABLE, WANT_RESULT, WANT_FUNCTION };
#define MOST_HOPS 4

#define TRY(call)           \
    do {                    \
        int code_ = (call); \
        if (code_ != DONE)  \
            return code_;   \
    } while (0)

typedef struct {
    uint64_t key, type;
    uint32_t name;
} declared_variable;

/* An enclosing entry. `scope`: qualified name for types, `outer` for variables in functions. */
typedef struct {
    uint64_t function, value; /* KEY_VOID: in no function */
    uint32_t scope, outer, owner;
    uint8_t is;
    bool has_value;
} frame;
enum { IN_OTHER, IN_SCOPE, IN_CLASS, IN_FUNCTION, IN_PART, IN_VARIANT, IN_ARRAY, IN_MANAGER };
#define MOST_FRAMES 512

typedef struct {
    uint64_t *table; /* hash table with open addressing; see entry_of */
    uint64_t slots, used;
    LIST(uint8_t) text;
    LIST(uint8_t) scratch;
    struct known_text {
        const uint8_t *text;
        uint32_t scope, name;
    } *known; /* texts read lately */
} string_pool;

/* The state of the search for equal types, which dwarf_merge.c explains. Nodes 0 and 1 are void and
 * unknown, node 2 + i is rows[i]. */
typedef struct {
    uint32_t nodes, groups, rounds;
    uint32_t made, classes;          /* classes of this round, and of the one before */
    uint32_t ambiguous, differed;    /* names whose definitions differ, now and before */
    uint32_t *targets, *instead;     /* by node */
    uint32_t *first, *order;         /* members of a node: from order[first[node]] on */
    uint32_t *types;                 /* nodes of members' types, by row */
    uint32_t *group, *class, *next;  /* by node; group: named aggregates of one name, else NONE */
    uint32_t *definition;            /* by group: the first definition, or 0 */
    uint8_t *differs;                /* by group: whether its definitions differ */
    uint64_t *hashes;                /* hashes of classes: open addressing */
    uint32_t *numbers;               /* and their numbers + 1 */
    uint64_t slots, at;
    uint32_t *final;                 /* by node: number of the type */
    uint32_t *best;                  /* for each type number, the node that the columns describe */
    uint32_t count;                  /* of types */
    uint8_t step, part;              /* part: the part of the columns to make; see make_columns */
    table_column columns[COLUMNS];
} merging;

struct types;
void merging_free(struct types *t);
uint32_t node_with_key(const struct types *t, uint64_t key, uint64_t near);
uint32_t defined(const struct types *t, uint32_t node);
uint64_t type_size(const struct types *t, uint32_t node);
/* dwarf_columns.c: make a part of the columns. Return 1 if more parts are left. */
int make_columns(struct types *t);

typedef struct types {
    string_pool strings;
    LIST(type_row) rows;
    LIST(member_row) members;
    LIST(variable_row) variables;
    LIST(function_row) functions;
    LIST(pending) wanted, later; /* by key, from `resolved` on; of the next hop */
    LIST(declared_variable) declared;
    LIST(unit) units; /* of the sources that can be read */
    LIST(range) signatures; /* signature, key */
    LIST(source *) sources;
    unit here;
    abbreviations shapes;
    frame frames[MOST_FRAMES];
    uint64_t at, budget, resolved, named, sorted;
    uint32_t depth;
    bool in_unit, incomplete;
    merging *merge;
} types;

/* dwarf_forms.c. Each returns false, or 0, for data that end too early. */
bool read_uleb(const uint8_t **at, const uint8_t *end, uint64_t *number);
uint64_t read_number(const uint8_t *at, unsigned size);
bool read_value(const unit *u, const attribute *a, const uint8_t **at, value *v);
bool read_unit(const source *from, uint64_t at, unit *u);
int read_abbreviations(types *t, const unit *u, abbreviations *all);
const shape *shape_of(const abbreviations *all, uint64_t code);
uint64_t read_entry(const unit *u, const abbreviations *all, const shape *s, uint64_t at, value *values);
void abbreviations_free(abbreviations *all);

/* dwarf_strings.c. intern: the offset of a text in `strings`, with its scope; 0: empty.
 * intern_below: that of a name that is already there. */
int intern(types *t, uint32_t scope, const uint8_t *text, uint64_t most, uint32_t *name);
int intern_below(types *t, uint32_t scope, uint32_t below, uint32_t *name);
void forget_texts(string_pool *pool);
void strings_free(string_pool *pool);

/* dwarf_types.c, dwarf_origins.c */
int want(types *t, uint64_t key, uint64_t row, uint8_t what, uint8_t hops);
uint64_t origin_of(const value *v);
uint64_t key_of_signature(const types *t, uint64_t signature);
void sort_signatures(types *t);

/* dwarf_addresses.c */
bool address_of(const unit *u, const value *v, uint64_t *address);
bool location_of(const unit *u, const value *v, variable_row *row);
bool is_manager(const value *name);
int add_alias(types *t, uint64_t key, uint64_t type);
int add_functions(types *t, const unit *u, const value *values, uint64_t key, uint64_t type, bool *any);

#endif
