/* Rows of text about blocks: what rows.c and readable_text.c share. */
#ifndef FINDLEAKS_ROWS_H
#define FINDLEAKS_ROWS_H

#include "kernel.h"

#define HINT_BYTES 64u
#define MAX_HINT_BYTES 512u /* bytes that a hint takes at most: 64 characters, each at most six bytes of JSON, and what stands around them */
#define CHARACTERS 0x10000u

/* The hint of a block whose first bytes these are, as a value of JSON ("null" for none), to `out`: how many bytes it takes; -1 where
 * characters decide that are not known. `characters`, NULL or CHARACTERS bytes: of each, 0 if it is not printable, else its columns and 1.
 * As ../block_types/text.py. */
int hint_json(const uint8_t *data, uint32_t count, const uint8_t *characters, uint8_t *out);

#endif
