/* Rows of text about blocks: declarations that rows.c and readable_text.c share. */
#ifndef FINDLEAKS_ROWS_H
#define FINDLEAKS_ROWS_H

#include "native.h"

#define HINT_BYTES 64u
/* maximum size of a hint: 64 characters of up to six bytes of JSON, and punctuation */
#define MAX_HINT_BYTES 512u
#define CHARACTERS 0x10000u

typedef struct row_rules {
    uint32_t states, kinds; /* a bit for each one that is wanted */
    uint64_t low, high;     /* wanted usable sizes */
    const range *owners; /* sorted, disjoint; `owner_texts`, `no_owner`: numbers of texts */
    const uint32_t *owner_texts;
    uint32_t owner_count, no_owner;
    const range *tables; /* sorted, disjoint: a word that identifies a type points here */
    uint32_t table_count, untyped; /* untyped: UNWANTED or 0 */
    const uint64_t *words;         /* words of known type, ascending, with their texts' numbers */
    const uint32_t *word_texts;
    const range *mapped; /* all readable memory is in these; sorted, disjoint */
    uint32_t mapped_count;
    uint32_t word_count, string; /* string: the number of "std::string" */
    /* of label_texts, which has a text for each of the graph's labels, with UNWANTED; 0: none */
    uint32_t label_count;
    const uint32_t *label_texts;
    /* of marks, one for each block; mark_texts has MARK_TEXTS texts for each number in their low
     * bits; NONE: left to the caller. NULL: none */
    const uint32_t *marks, *mark_texts;
    bool typed; /* types are filtered or printed */
    /* NULL: not available yet; or CHARACTERS bytes, 0 unprintable, else 1 + columns */
    const uint8_t *characters;
    const uint8_t *text;
    const uint64_t *ends; /* end of each text; the first nine texts are states and kinds */
} row_rules;

/* Columns of rows; element n of each belongs to row n. */
typedef struct row_columns {
    uint32_t *indices;
    uint64_t *addresses, *sizes;
    uint64_t *names;     /* see NAMES */
    uint8_t *hints;      /* HINT_… */
    /* end of the row's bytes in `text`; they begin at the previous row's end */
    uint32_t *hint_ends;
    uint8_t *text;
    uint64_t capacity; /* of `text` */
} row_columns;

/* Combine the names of a row into one number: kind or state (3 bits), owner and type (30 bits
 * each). */
#define NAMES(state, owner, type) ((uint64_t)(state) | (uint64_t)(owner) << 3 | (uint64_t)(type) << 33)

/* ../engine/rows.py: Hint. */
enum { HINT_UNKNOWN = -1, HINT_NONE = 0, HINT_ZEROS = 1, HINT_TEXT = 2, HINT_SECOND = 3 };

/* Determine what the first bytes of a block contain: HINT_TEXT, or HINT_SECOND if text begins
 * after the first word, with the offset of the text and its length in bytes. HINT_UNKNOWN if the
 * result depends on characters that are unknown here. Same as ../block_types/text.py. */
int find_hint(const uint8_t *data, uint32_t count, const row_rules *r, uint32_t *from, uint32_t *length);

/* Write the text hint of a block with these first bytes as JSON ("null" if there is none).
 * Return its length, or -1 if the result depends on characters that are unknown here. Same as
 * ../block_types/text.py. */
int hint_json(const uint8_t *data, uint32_t count, const row_rules *r, uint8_t *out);

#endif
