/* Interior references that known structures explain: each becomes a start reference, as if by a
 * rule of interiors.c. Each pointer is examined separately; other pointers to the same block may
 * belong to no structure. */
#include "interior_structures.h"

#include <stdlib.h>

typedef struct examination {
    graph *g;
    memory memory;
    const range *code; /* the caller's */
    uint32_t code_count;
    /* `at`: the next recorded reference; `root`: the number of previous references from roots */
    uint64_t at, root;
    uint32_t source; /* the block whose words below `word` were searched */
    uint64_t word;
    words found;
    bool php;   /* whether to search for structures of PHP */
    bool links; /* whether to search for links only */
} examination;

API void fl_structures_free(examination *e) {
    FREE_ALL(e->found.items, e);
}

/* `credit`: maximum number of control bytes read in total. `links`: whether to search only for
 * links of lists and trees, or for all other structures. */
API examination *fl_structures_new(graph *g, const range *code, uint32_t code_count, uint64_t credit, bool php, bool links) {
    examination *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    *e = (examination){.g = g, .code = code, .code_count = code_count, .source = NONE, .php = php, .links = links};
    e->memory.credit = credit;
    if (!g->promoted && !(g->promoted = calloc((size_t)g->count / 64 + 1, sizeof *g->promoted)))
        DROP(e);
    return e;
}

/* Return whether the word `at` bytes into a block, which refers to `value`, is excluded. */
static bool left_out(const graph *g, uint32_t block, uint64_t at, uint64_t value) {
    uint32_t target = block_find(g->b, value);
    return target != NONE && is_excluded(g->patterns, g->exclusions, block, at, target, value - block_address(g->b, target));
}

/* Return the address of the next word of the source block with this value, after the word found
 * last; 0 if there is none. References of a block are recorded in the order of its words. */
static uint64_t stored_at(examination *e, uint32_t source, uint64_t value) {
    const graph *g = e->g;
    uint64_t start = block_address(g->b, source), end = start + size_of(g->b, source);
    uint64_t from = e->source == source ? e->word : (start + WORD - 1) & ~(uint64_t)(WORD - 1);
    e->source = source;
    while (from + WORD <= end) {
        const piece *p = piece_holding(e->memory.pieces, e->memory.count, from);
        uint64_t offset = p ? from - p->address : 0;
        if (!p || offset >= p->length || p->length - offset < WORD) {
            from += WORD; /* memory is missing, which is rare in a block */
            continue;
        }
        uint64_t last = end - from < p->length - offset ? end - from : p->length - offset;
        const uint8_t *data = p->data + offset;
        for (uint64_t at = 0; at + WORD <= last; at += WORD)
            if (load(data + at) == value && !left_out(g, source, from + at - start, value)) {
                e->word = from + at + WORD;
                return from + at;
            }
        from += last / WORD * WORD;
    }
    return 0;
}

static int structure_of(examination *e, const inner *item, candidate *c) {
    memory *m = &e->memory;
    if (e->links) {
        bool is_possible = item->source != NONE && e->g->kinds[item->source] == POSSIBLE;
        return link_at(m, e->g->b, is_possible ? item->source : NONE, c);
    }
    int found = chunk_at(m, c);
    if (!found)
        found = stack_at(m, c, e->code, e->code_count);
    if (!found)
        found = counted_at(m, c);
    if (!found)
        found = aligned_at(m, c);
    if (!found)
        found = tagged_at(m, e->g->b, item->source, c);
    if (!found)
        found = exception_at(m, c);
    if (!found)
        found = string_at(m, c);
    if (!found && e->php)
        found = php_object_at(m, c);
    if (found)
        return found;
    bool is_table = may_be_table(m, c), is_array = e->php && may_be_php_array(m, c), is_arguments = e->php && may_be_php_arguments(c);
    if (!is_table && !is_array && !is_arguments)
        return NOTHING;
    c->word = item->source == NONE ? e->g->root_words.items[e->root] : stored_at(e, item->source, c->pointer);
    if (!word_at(m->pieces, m->count, c->word)) /* a register */
        c->word = 0;
    found = is_array ? php_array_at(m, c) : NOTHING;
    if (!found && is_arguments)
        found = php_arguments_at(m, c);
    return found || !is_table ? found : table_at(m, c);
}

/* Examine at most `budget` references; return 1 if there are more. */
API int fl_structures_examine(examination *e, const piece *pieces, uint64_t count, uint64_t budget) {
    graph *g = e->g;
    e->memory.pieces = pieces;
    e->memory.count = count;
    for (; e->at < g->inners.count; e->at++) {
        if (!budget--)
            return 1;
        const inner *item = &g->inners.items[e->at];
        uint32_t target = interior_target(g, item);
        if (target != NONE) {
            candidate c = {.start = block_address(g->b, target), .size = size_of(g->b, target)};
            c.pointer = c.start + item->offset;
            int kind = structure_of(e, item, &c);
            if (kind && PUSH_ALL(&e->found, (uint64_t)kind, target, item->offset, c.word, c.used, c.places))
                return NO_MEMORY;
            if (kind)
                accept_interior(g, item, target);
        }
        e->root += item->source == NONE;
    }
    return DONE;
}

/* Return rows of kind, block, offset, address of the pointer (0: unknown), number of entries and
 * capacity, in the order of discovery. */
API int fl_structures_found(const examination *e, words *found) { return words_append(found, e->found.items, e->found.count); }

/* Return three words for each reference to a possible block: the source block (NONE: root
 * memory), the address of the root word, and the target. Returns none if there are more than
 * `most` references. Call it between marking and classifying. */
API int fl_structures_places(const graph *g, uint64_t most, words *found) {
    uint64_t root = 0;
    for (uint64_t at = 0; at < g->inners.count; at++) {
        const inner *item = &g->inners.items[at];
        uint32_t target = interior_target(g, item);
        if (target != NONE) {
            if (!most--)
                return 0;
            if (PUSH_ALL(found, item->source, item->source == NONE ? g->root_words.items[root] : 0, target))
                return NO_MEMORY;
        }
        root += item->source == NONE;
    }
    return 1;
}
