/* Structures that programs refer to by interior pointers. The bytes around the pointer, and
 * those that it points to, prove each structure. Each function limits how much it reads. */
#ifndef FINDLEAKS_INTERIOR_STRUCTURES_H
#define FINDLEAKS_INTERIOR_STRUCTURES_H

#include "graph.h"

/* ../engine/interior_structures.py: Structure. */
enum { NOTHING = 0, HASHBROWN = 1, SWISS_TABLE = 2, CHUNK_AT_END = 3, SAVED_CONTEXT = 4, COROUTINE_FRAME = 5, COUNTED_VALUE = 6, PHP_ARRAY = 7, PHP_ARGUMENTS = 8, ALIGNED = 9, PHP_OBJECT = 10, TAGGED_START = 11, LINK = 12, EXCEPTION = 13, STRING = 14, BUMP_CHUNK = 15 };

/* Memory of the target, and how much of it loops over control bytes may still read. */
typedef struct {
    const piece *pieces;
    uint64_t count, credit;
} memory;

/* A pointer into a block. */
typedef struct {
    uint64_t start, size;  /* of the block */
    uint64_t pointer;      /* start < pointer < start + size */
    uint64_t word;         /* address where the pointer is stored; 0: in a register */
    uint64_t used, places; /* found in a table: number of entries, and capacity */
    uint64_t counted, full, deleted; /* control bytes under this mask; 0: not counted */
    bool sound;
} candidate;

INLINE uint64_t end_of(const candidate *c) { return c->start + c->size; }

/* Read the word at `address`; false if it is missing. */
INLINE bool read_word(const memory *m, uint64_t address, uint64_t *value) {
    const uint8_t *at = word_at(m->pieces, m->count, address);
    if (at)
        *value = load(at);
    return at != NULL;
}

INLINE bool read_bytes(const memory *m, uint64_t address, uint64_t size, uint8_t *out) {
    return copy_out(m->pieces, m->count, address, size, out);
}

/* interior_tables.c. may_be_table: whether control bytes may begin at the pointer (cheap, before
 * `word` is known). The other function returns the table that the words beside `word` describe:
 * HASHBROWN, SWISS_TABLE or NOTHING. */
bool may_be_table(const memory *m, const candidate *c);
int table_at(memory *m, candidate *c);

/* interior_php.c. The functions may_be_… are cheap checks that do not need `word`. The others
 * return PHP_ARRAY, PHP_ARGUMENTS or PHP_OBJECT if the pointer refers to such a structure, else
 * NOTHING. */
bool may_be_php_array(const memory *m, const candidate *c);
int php_array_at(memory *m, candidate *c);
bool may_be_php_arguments(const candidate *c);
int php_arguments_at(const memory *m, const candidate *c);
int php_object_at(const memory *m, const candidate *c);

/* interior_chunks.c: CHUNK_AT_END, BUMP_CHUNK or NOTHING. */
int chunk_at(const memory *m, const candidate *c);

/* interior_stacks.c: SAVED_CONTEXT, COROUTINE_FRAME or NOTHING; `code`: executable memory. */
int stack_at(const memory *m, const candidate *c, const range *code, uint32_t code_count);

/* interior_counted.c: COUNTED_VALUE or NOTHING. */
int counted_at(const memory *m, const candidate *c);

/* interior_aligned.c: ALIGNED or NOTHING. */
int aligned_at(const memory *m, const candidate *c);

/* interior_tagged.c: TAGGED_START or NOTHING. */
int tagged_at(const memory *m, const blocks *b, uint32_t source, const candidate *c);

/* interior_links.c: LINK or NOTHING. `source`: the block with the pointer, if it is possibly
 * lost. */
int link_at(const memory *m, const blocks *b, uint32_t source, const candidate *c);

/* interior_exceptions.c: EXCEPTION or NOTHING; STRING or NOTHING. */
int exception_at(const memory *m, const candidate *c);
int string_at(const memory *m, const candidate *c);

#endif
