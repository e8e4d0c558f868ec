/* Rows of text about blocks: what rows.c and readable_text.c share. */
#ifndef FINDLEAKS_ROWS_H
#define FINDLEAKS_ROWS_H

#include "kernel.h"

#define HINT_BYTES 64u
#define MAX_HINT_BYTES 512u /* a hint: 64 characters of up to six bytes of JSON, and punctuation */
#define CHARACTERS 0x10000u

/* Write the text hint of a block with these first bytes as JSON ("null": none); its length, or -1
 * if characters unknown here decide. `characters`: NULL or CHARACTERS bytes, 0 unprintable, else 1
 * + columns. As ../block_types/text.py. */
int hint_json(const uint8_t *data, uint32_t count, const uint8_t *characters, uint8_t *out);

#endif
