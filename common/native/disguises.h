/* Disguised addresses of leaked blocks: declarations that disguises*.c share. */
#ifndef FINDLEAKS_DISGUISES_H
#define FINDLEAKS_DISGUISES_H

#include "lost.h"

#include "threads.h"

/* Also in ../engine/disguises.py, which describes them. */
enum { TAGGED, UNALIGNED, SHIFTED_LEFT, SHIFTED_RIGHT, COMPRESSED, HALVES = 6, SIX_BYTES, BYTE_SWAPPED, MANGLED, RELATIVE, SAFE_LINKED, RELATIVE_32 };

#define HIGH_SHIFT (WORD == 8 ? 32u : 16u) /* shift of the upper 16 bits of an address in a word */
#define UPPER_SHIFT (WORD * 8 - 16) /* shift of the upper 16 bits of a word */
#define MOST_FORMS 64u
#define MOST_SEGMENTS 8u
#define REACH 32 /* largest distance in bytes between the halves of a pointer; see HALVES */
#define SMALL 0x10000u
#define TRIAL_SLOTS 0x10000u
#define ANY_OFFSET 0xFFFFu /* in place of all larger offsets in a block */

/* A form of disguised pointers. `base`: the base of COMPRESSED and HALVES, or the key of MANGLED.
 * `shift`: a number of bits. */
typedef struct form {
    uint64_t kind, base, shift;
} form;

/* A word in [low, low + span] may be a pointer of this form into this segment. */
typedef struct {
    uint64_t low, span;
    uint32_t form, segment;
} interval;

typedef struct {
    uint64_t place;          /* address of the disguised pointer */
    uint32_t source, target; /* block indices; the source is NONE in root memory */
    uint32_t form;
    uint16_t offset; /* in the target, ANY_OFFSET at most */
    bool like_tagged; /* a number that may also be the lower half of a tagged pointer */
} disguised;

typedef LIST(disguised) disguised_list;

typedef struct disguises {
    graph *g;
    uint32_t form_count, segment_count, interval_count, narrow_count;
    form forms[MOST_FORMS];
    range segments[MOST_SEGMENTS];                   /* address ranges with leaked blocks */
    uint16_t high_low[MOST_SEGMENTS], high_span[MOST_SEGMENTS]; /* upper bits of addresses there */
    interval intervals[MOST_FORMS * MOST_SEGMENTS]; /* of aligned words */
    uint64_t upper_bits[0x10000 / 64]; /* a bit for the upper 16 bits of each word in an interval */
    interval narrow[MOST_FORMS * MOST_SEGMENTS];    /* of aligned numbers of 32 bits */
    uint64_t mask;                                   /* bits that an address can have */
    /* by kind: the index of a form of this kind, or NONE. Used for kinds that have one form. */
    uint32_t numbers[RELATIVE_32 + 1];
    /* maximum number recorded of a form; 0: none */
    uint64_t most;
    _Atomic uint64_t counts[MOST_FORMS];
    /* If none is recorded: by form, a bit for each hash of an address in a block that was found,
     * and the same for addresses in the first word of a block in use. See `count_trial`. */
    _Atomic uint64_t (*tries)[2][TRIAL_SLOTS / 64];
    _Atomic int failed;
    disguised_list found[MOST_THREADS]; /* by thread; all in the first once sorted */
    bool sorted;
} disguises;

#endif
