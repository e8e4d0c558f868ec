/* Searches memory for disguised addresses of leaked blocks: with tags in the upper bits, at
 * addresses that are not multiples of a word, in six bytes, shifted, combined with a key, with
 * swapped bytes, as distances from themselves or from a base, or in two halves.
 *
 * Memory is searched in strips. Loops that compilers vectorise compare the upper bits of
 * possible addresses with those of the leaked blocks' address ranges. Few strips pass, and these
 * are searched word by word. */
#include "disguises.h"

#include <stdlib.h>

#define STRIP 128u  /* bytes */
#define BEYOND 16u  /* readable bytes after a strip */
#define SOME_STRIPS 1024u /* strips that a thread takes at a time */

/* Offset, in bytes from the start of a word, of the upper 16 bits of an address in it. */
#define HIGH_AT (WORD == 8 ? (BIG ? 2u : 4u) : (BIG ? 0u : 2u))

INLINE uint64_t decode(const form *f, uint64_t word) {
    uint64_t value = f->kind == SHIFTED_LEFT    ? word >> f->shift
                     : f->kind == SHIFTED_RIGHT ? word << f->shift
                     : f->kind == MANGLED       ? (word >> f->shift | word << (-f->shift & 63)) ^ f->base
                                                : f->base + (word << f->shift);
    return value & HIGHEST;
}

/* -- words that pass the filters */

typedef struct {
    disguises *d;
    disguised_list *found;
    const uint8_t *data; /* of the strip */
    uint64_t address;
    bool roots;
    const uint8_t *piece; /* the memory that contains the strip, at the offset `before` */
    uint64_t before, length;
} strip;

static bool is_text(const uint8_t *at, unsigned length) {
    bool text = true;
    for (unsigned byte = 0; byte < length; byte++)
        text = text && at[byte] >= 0x20 && at[byte] < 0x7f;
    return text;
}

/* Return whether one of these bytes of a block is in an excluded word (fl_graph_exclude_words):
 * a runtime stores addresses of its objects there, plain or disguised. */
static bool has_excluded(const graph *g, uint32_t index, uint64_t offset, unsigned width) {
    const exclusion *of = g->patterns && g->patterns[index] ? &g->exclusions[g->patterns[index]] : NULL;
    if (!of)
        return false;
    return (of->words | of->links) & (excluded_bit(of, offset / WORD) | excluded_bit(of, (offset + width - 1) / WORD));
}

/* Count an address once, however often it is found: small numbers such as sizes, and the upper
 * halves of plain pointers, repeat. */
static void count_trial(disguises *d, uint32_t number, uint64_t value, bool is_start) {
    uint64_t hash = (value * 0x9E3779B97F4A7C15u) >> 48;
    for (int which = 0; which <= is_start; which++)
        d->tries[number][which][hash / 64] |= UINT64_C(1) << hash % 64;
}

/* Record that the `width` bytes at `place` are a pointer to `value` if that is in a leaked
 * block. `like_tagged`: see `disguised`. */
static void examine(const strip *s, unsigned place, unsigned width, uint32_t number, uint64_t value, bool like_tagged) {
    disguises *d = s->d;
    const blocks *b = d->g->b;
    uint64_t start = 0, from = 0, address = s->address + place;
    uint32_t target = block_before(b, slot_of(b, value), value, &start), source = NONE;
    if (target == NONE || (value != start && value - start >= size_of(b, target)))
        return;
    bool is_own = address >= start && address - start < size_of(b, target);
    if (!d->most && !is_own)
        count_trial(d, number, value, value - start < WORD && b->states[target] == IN_USE);
    if (!d->most || place_of(d->g->lost, target) == NONE)
        return;
    if (WORD == 8 && width == 8 && is_text(s->data + place, width))
        return;
    if (!s->roots) {
        source = block_before(b, slot_of(b, address), address, &from);
        if (source == NONE || source == target || b->states[source] != IN_USE)
            return;
        uint64_t size = size_of(b, source), offset = address - from;
        /* When malloc of glibc takes a block from the thread cache, the cache's link remains in the
         * first word of the block: a stale word. */
        if (number == d->numbers[SAFE_LINKED] && offset == 0 && size == size_of(b, target))
            return;
        if (offset >= size || size - offset < width || has_excluded(d->g, source, offset, width))
            return;
    }
    uint64_t offset = value - start;
    if (d->forms[number].kind == TAGGED)
        offset &= ~(uint64_t)(WORD - 1); /* ignore tags in the low bits, too */
    if (d->counts[number]++ >= d->most)
        return;
    if (PUSH(*s->found, (disguised){address, source, target, number, offset < ANY_OFFSET ? (uint16_t)offset : ANY_OFFSET, like_tagged}))
        d->failed = NO_MEMORY;
}

INLINE bool in_segment(const disguises *d, uint32_t segment, uint64_t value) {
    return value >= d->segments[segment].start && value < d->segments[segment].end;
}

static bool in_segments(const disguises *d, uint64_t value) {
    for (uint32_t at = 0; at < d->segment_count; at++)
        if (in_segment(d, at, value))
            return true;
    return false;
}

/* -- addresses at bytes where no word begins */

/* Return a bit for each 64 bytes of the strip in which a pointer may begin at an address that is
 * not a multiple of a word. */
INLINE unsigned unaligned_chunks(const disguises *d, const uint8_t *data) {
    unsigned chunks = 0;
    uint16_t mask = (uint16_t)(d->mask >> HIGH_SHIFT);
    for (unsigned segment = 0; segment < d->segment_count; segment++) {
        uint16_t low = d->high_low[segment], span = d->high_span[segment];
        for (unsigned chunk = 0; chunk < STRIP / 64; chunk++) {
            const uint8_t *even = data + chunk * 64 + HIGH_AT, *odd = even + 1;
            uint16_t any = 0;
            for (unsigned at = 0; at < 32; at++) {
                uint16_t first = (uint16_t)((load16(even + 2 * at) & mask) - low), second = (uint16_t)((load16(odd + 2 * at) & mask) - low);
                any |= (uint16_t)((first <= span && at % (WORD / 2) != 0) | (second <= span));
            }
            chunks |= (unsigned)(any != 0) << chunk;
        }
    }
    return chunks;
}

#define SIX_MASK ((UINT64_C(1) << 48) - 1)

/* Examine six bytes of this word as a pointer. Addresses below 4 GiB are skipped, because they are
 * too similar to other numbers. */
static void look_at_six_bytes(const strip *s, unsigned at, uint64_t word) {
    const disguises *d = s->d;
    uint64_t value = word & SIX_MASK;
    if (d->numbers[SIX_BYTES] != NONE && value >> 32 && in_segments(d, value))
        examine(s, BIG ? at + 2 : at, 6, d->numbers[SIX_BYTES], value, false);
}

static void look_unaligned(const strip *s, unsigned chunk) {
    const disguises *d = s->d;
    for (unsigned at = chunk * 64; at < chunk * 64 + 64; at++) {
        if (at % WORD == 0)
            continue;
        uint64_t value = load(s->data + at);
        if (d->numbers[UNALIGNED] != NONE && !(value & ~d->mask) && in_segments(d, value))
            examine(s, at, WORD, d->numbers[UNALIGNED], value, false);
        if (WORD == 8)
            look_at_six_bytes(s, at, value);
    }
}

/* -- aligned words */

/* In a byte-swapped pointer, the lower half of the word contains the upper half of the address.
 * Addresses below 4 GiB are skipped: their words are numbers with a lower half of zeros, as V8
 * stores small integers, and counters refer to every second block of 120 bytes, for example. */
INLINE void look_at_swapped(const strip *s) {
    const disguises *d = s->d;
    uint32_t upper[STRIP / 8];
    for (unsigned at = 0; at < STRIP / 8; at++)
        upper[at] = __builtin_bswap32((uint32_t)load64(s->data + at * 8));
    for (unsigned segment = 0; segment < d->segment_count; segment++) {
        uint32_t low = (uint32_t)(d->segments[segment].start >> 32), any = 0;
        uint32_t span = (uint32_t)((d->segments[segment].end - 1) >> 32) - low;
        for (unsigned at = 0; at < STRIP / 8; at++)
            any |= upper[at] - low <= span;
        for (unsigned at = 0; any && at < STRIP / 8; at++) {
            uint64_t value = __builtin_bswap64(load64(s->data + at * 8));
            if (value >> 32 && in_segment(d, segment, value))
                examine(s, at * 8, 8, d->numbers[BYTE_SWAPPED], value, false);
        }
    }
}

/* The upper half of the distance from a word to an address in the segment is in a small range. For
 * words near the segment, the range includes 0 and 0xFFFFFFFF. A pointer to a word of a block is
 * aligned, so only distances that are multiples of 8 count. */
INLINE void look_at_relative(const strip *s, const uint32_t *high) {
    const disguises *d = s->d;
    for (unsigned segment = 0; segment < d->segment_count; segment++) {
        uint32_t low = (uint32_t)((d->segments[segment].start - s->address - STRIP) >> 32), any = 0;
        uint32_t span = (uint32_t)((d->segments[segment].end - s->address) >> 32) - low;
        for (unsigned at = 0; at < STRIP / 8; at++)
            any |= high[at] - low <= span;
        for (unsigned at = 0; any && at < STRIP / 8; at++) {
            uint64_t word = load64(s->data + at * 8), value = s->address + at * 8 + word;
            if (word && word % 8 == 0 && in_segment(d, segment, value))
                examine(s, at * 8, 8, d->numbers[RELATIVE], value, false);
        }
    }
}

/* A word that is itself an address in a segment counts as a plain pointer, not as a safe-linked
 * pointer. */
INLINE void look_at_safe_linked(const strip *s, const uint32_t *high) {
    const disguises *d = s->d;
    uint32_t mangling = (uint32_t)(s->address >> 44);
    for (unsigned segment = 0; segment < d->segment_count; segment++) {
        uint32_t low = (uint32_t)(d->segments[segment].start >> 32), any = 0;
        uint32_t span = (uint32_t)((d->segments[segment].end - 1) >> 32) - low;
        for (unsigned at = 0; at < STRIP / 8; at++)
            any |= (high[at] ^ mangling) - low <= span;
        for (unsigned at = 0; any && at < STRIP / 8; at++) {
            uint64_t word = load64(s->data + at * 8), value = word ^ (s->address + at * 8) >> 12;
            if (word && in_segment(d, segment, value) && !in_segments(d, word))
                examine(s, at * 8, 8, d->numbers[SAFE_LINKED], value, false);
        }
    }
}

INLINE void look_at_words(const strip *s) {
    const disguises *d = s->d;
    uint32_t high[STRIP / WORD], some = 0; /* some: whether any form may match */
    for (unsigned at = 0; at < STRIP / WORD; some |= bit(d->upper_bits, high[at++] >> 16))
        high[at] = WORD == 8 ? (uint32_t)(load(s->data + at * WORD) >> 32) : (uint32_t)load(s->data + at * WORD);
    for (uint32_t number = 0; some && number < d->interval_count; number++) {
        const interval *i = &d->intervals[number];
        uint32_t low = (uint32_t)(WORD == 8 ? i->low >> 32 : i->low), any = 0;
        uint32_t span = (uint32_t)(WORD == 8 ? (i->low + i->span) >> 32 : i->low + i->span) - low;
        for (unsigned at = 0; at < STRIP / WORD; at++)
            any |= high[at] - low <= span;
        for (unsigned at = 0; any && at < STRIP / WORD; at++) {
            uint64_t word = load(s->data + at * WORD);
            if (word - i->low > i->span)
                continue;
            uint64_t value = decode(&d->forms[i->form], word);
            if (d->forms[i->form].kind != MANGLED || in_segment(d, i->segment, value))
                examine(s, at * WORD, WORD, i->form, value, false);
        }
    }
    if (WORD == 8 && d->numbers[BYTE_SWAPPED] != NONE)
        look_at_swapped(s);
    if (WORD == 8 && d->numbers[RELATIVE] != NONE)
        look_at_relative(s, high);
    if (WORD == 8 && d->numbers[SAFE_LINKED] != NONE)
        look_at_safe_linked(s, high);
    if (WORD == 4 || (d->numbers[TAGGED] == NONE && d->numbers[SIX_BYTES] == NONE))
        return;
    for (unsigned segment = 0; segment < d->segment_count; segment++) {
        uint32_t mask = (uint32_t)(d->mask >> 32), low = d->high_low[segment], span = d->high_span[segment], any = 0;
        for (unsigned at = 0; at < STRIP / WORD; at++)
            any |= ((high[at] & mask) - low <= span) & (high[at] > mask);
        for (unsigned at = 0; any && at < STRIP / WORD; at++) {
            uint64_t word = load(s->data + at * WORD), value = word & d->mask;
            if (word == value || !in_segment(d, segment, value))
                continue;
            if (d->numbers[TAGGED] != NONE)
                examine(s, at * WORD, WORD, d->numbers[TAGGED], value, false);
            look_at_six_bytes(s, at * WORD, word);
        }
    }
}

/* -- numbers of 32 bits */

/* Return the 8 bytes whose lower half is the number at `place`. */
INLINE uint64_t whole_word(const strip *s, unsigned place) {
    unsigned first = BIG ? place - 4 : place;
    return !BIG || place >= 4 ? load64(s->data + first) : 0;
}

/* Return whether `upper`, the upper half of an address, is near the lower half at `place`. The
 * other half of the same word does not count, nor does the upper half of a plain pointer. */
static bool has_upper_half(const strip *s, unsigned place, uint32_t upper) {
    uint64_t lower = s->before + place, first = lower > REACH ? lower - REACH : 0;
    uint64_t end = s->length - lower < REACH + 4 ? s->length : lower + REACH + 4;
    for (uint64_t at = first; at + 4 <= end; at += 4) {
        if (load32(s->piece + at) != upper || at == lower || at == (BIG ? lower - 4 : lower + 4))
            continue;
        bool in_word = (at % 8 == 0) == BIG; /* whether it is the upper half of an aligned word */
        uint64_t beside = BIG ? at + 4 : at - 4;
        if (!in_word || (beside + 4 <= s->length ? load32(s->piece + beside) : 0) < SMALL)
            return true;
    }
    return false;
}

/* Return whether `upper` may be in or near the strip, outside plain pointers. If this is false,
 * has_upper_half is false for all places in the strip. */
INLINE bool may_have_upper_half(const strip *s, uint32_t upper) {
    uint64_t first = s->before > REACH ? s->before - REACH : 0, end = s->before + STRIP + REACH;
    if (end > s->length)
        return true;
    uint64_t any = 0;
    for (uint64_t at = first; at < end; at += 8) {
        uint64_t word = load64(s->piece + at);
        any |= ((uint32_t)word == upper) | ((word >> 32 == upper) & ((uint32_t)word < SMALL));
    }
    return any;
}

INLINE void look_at_numbers(const strip *s) {
    const disguises *d = s->d;
    for (uint32_t number = 0; number < d->narrow_count; number++) {
        const interval *i = &d->narrow[number];
        uint32_t low = (uint32_t)i->low, span = (uint32_t)i->span, any = 0;
        for (unsigned at = 0; at < STRIP / 4; at++)
            any |= load32(s->data + at * 4) - low <= span;
        const form *f = &d->forms[i->form];
        if (any && f->kind == HALVES && !may_have_upper_half(s, (uint32_t)(f->base >> 32)))
            continue;
        for (unsigned at = 0; any && at < STRIP / 4; at++) {
            uint32_t found = load32(s->data + at * 4);
            if (found - low > span)
                continue;
            uint64_t whole = whole_word(s, at * 4);
            if (f->kind == HALVES) {
                bool plain = whole == (f->base | found) && at % 2 == BIG;
                if (!plain && has_upper_half(s, at * 4, (uint32_t)(f->base >> 32)))
                    examine(s, at * 4, 4, i->form, f->base | found, false);
                continue;
            }
            uint64_t value = decode(f, found);
            bool like_tagged = (whole & d->mask) == value;
            bool is_half = at % 2 == BIG && whole >> 32 && block_find(d->g->b, whole) != NONE;
            /* A plain pointer to any block is not a disguise. What looks like a tagged one counts
             * neither for nor against a form: the next number of a table may look like a tag. */
            if (like_tagged ? whole != value && d->most : !is_half)
                examine(s, at * 4, 4, i->form, value, like_tagged);
        }
    }
}

/* Halves of a plain pointer are not distances. */
static void look_at_distance(const strip *s, unsigned at) {
    const disguises *d = s->d;
    uint32_t number = load32(s->data + at);
    uint64_t value = s->address + at + (uint64_t)(int64_t)(int32_t)number;
    if (number && number % 4 == 0 && in_segments(d, value) && !in_segments(d, load64(s->data + at / 8 * 8)))
        examine(s, at, 4, d->numbers[RELATIVE_32], value, false);
}

INLINE void look_at_distances(const strip *s) {
    const disguises *d = s->d;
    for (unsigned segment = 0; segment < d->segment_count; segment++) {
        int64_t low = (int64_t)(d->segments[segment].start - s->address - STRIP);
        int64_t high = (int64_t)(d->segments[segment].end - s->address);
        if (low > INT32_MAX || high < INT32_MIN)
            continue;
        low = low < INT32_MIN ? INT32_MIN : low, high = high > INT32_MAX ? INT32_MAX : high;
        uint32_t first = (uint32_t)low, span = (uint32_t)(high - low), any = 0;
        for (unsigned at = 0; at < STRIP / 4; at++) {
            uint32_t number = load32(s->data + at * 4);
            any |= (number - first <= span) & (number != 0) & (number % 4 == 0);
        }
        if (!any)
            continue;
        for (unsigned at = 0; at < STRIP; at += 4)
            look_at_distance(s, at);
        return;
    }
}

INLINE void look_at_strip(const strip *s) {
    const disguises *d = s->d;
    unsigned chunks = d->numbers[UNALIGNED] == NONE && d->numbers[SIX_BYTES] == NONE ? 0 : unaligned_chunks(d, s->data);
    for (unsigned chunk = 0; chunks; chunk++, chunks >>= 1)
        if (chunks & 1)
            look_unaligned(s, chunk);
    look_at_words(s);
    look_at_numbers(s);
    if (d->numbers[RELATIVE_32] != NONE)
        look_at_distances(s);
}

static void look_plain(const strip *s) { look_at_strip(s); }
#if defined(__x86_64__)
AVX2 static void look_avx2(const strip *s) { look_at_strip(s); }
#else
#define look_avx2 look_plain
#endif

/* -- strips */

typedef struct {
    disguises *d;
    const uint8_t *data;
    uint64_t address, length, step;
    bool roots, avx2;
} searching;

/* Return which one of each `step` strips is searched. It varies, because structures repeat at
 * regular distances. */
INLINE uint64_t chosen(uint64_t group, uint64_t step) { return group * step + ((group * 0x9E3779B97F4A7C15u) >> 33) % step; }

static void look_at_some(void *context, unsigned thread, uint64_t first, uint64_t end) {
    const searching *j = context;
    uint8_t padded[STRIP + BEYOND];
    for (uint64_t group = first; group < end; group++) {
        uint64_t at = chosen(group, j->step) * STRIP;
        if (at >= j->length)
            continue;
        strip s = {j->d, &j->d->found[thread], j->data + at, j->address + at, j->roots, j->data, at, j->length};
        if (j->length - at < STRIP + BEYOND) { /* bytes after the end are zeros */
            memset(padded, 0, sizeof padded);
            memcpy(padded, s.data, j->length - at);
            s.data = padded;
        }
        if (j->avx2)
            look_avx2(&s);
        else
            look_plain(&s);
    }
}

/* Search a piece, or one strip of each `step` strips. */
API int fl_disguises_scan(disguises *d, const piece *p, uint64_t step, bool roots) {
    uint64_t skip = -p->address & 7u;
    if (p->length <= skip || !d->segment_count)
        return DONE;
    searching j = {d, p->data + skip, p->address + skip, p->length - skip, step ? step : 1, roots, has_avx2()};
    d->sorted = false;
    run_in_parts(d->g->b->threads, (j.length - 1) / STRIP / j.step + 1, SOME_STRIPS, look_at_some, &j);
    return d->failed;
}
