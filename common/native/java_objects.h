/* Describes the layout of a Java heap to the C engine; see ../runtimes/jvm/engine.py. */
#ifndef FINDLEAKS_JAVA_OBJECTS_H
#define FINDLEAKS_JAVA_OBJECTS_H

#include "native.h"

/* Objects that were moved: their addresses before the move (ascending), and their current
 * addresses. */
typedef struct {
    const uint64_t *before, *now;
    uint64_t count;
} java_moves;

typedef struct java_heap {
    /* The header of an object: offset and size (4 or 8 bytes) of the class word, the number of bits
     * by which it is shifted right, and in arrays the offset of the length. `alignment` is that of
     * objects. */
    uint64_t klass_at, klass_bytes, klass_shift, length_at, alignment;
    /* A hash table with `mask` + 1 entries. It maps class words (`keys`; 0 is an unused entry) to
     * numbers of classes. */
    const uint64_t *keys;
    const uint32_t *numbers;
    uint64_t mask;
    /* CLASS_ROW elements for each class, as in ClassTable.rows. */
    const uint32_t *classes;
    uint64_t class_count;
    /* A reference has 4 or 8 bytes. It refers to the address oop_base + (value << oop_shift),
     * unless references have colors (JAVA_ABOVE, JAVA_BELOW). ../runtimes/jvm/references.py
     * describes the colors. */
    uint64_t oop_bytes, oop_base, oop_shift;
    uint64_t colors, offsets, current;
    java_moves young, old;
    /* `maps` has pairs of an offset and a number of references. Class n has the pairs from
     * map_first[n] up to, but not including, map_first[n + 1]. */
    const uint32_t *map_first, *maps;
} java_heap;

#define CLASS_ROW 4u
enum { JAVA_FIXED = 0, JAVA_ARRAY = 1, JAVA_OBJECTS = 2, JAVA_MIRROR = 3 };
enum { JAVA_PLAIN = 0, JAVA_ABOVE = 1, JAVA_BELOW = 2 }; /* where the color of a reference is */

#define ABOVE_BITS 4u /* number of bits of a color; exactly one of the lower three bits is set */
#define ABOVE_VIEWS 7u
/* With JAVA_BELOW, exactly one of four bits is set. The number of this bit (0 to 3) has one bit for
 * each generation. */
#define REMAPPED_SHIFT 12u
#define REMAPPED_MASK 15u
#define REMAPPED_YOUNG 1u
#define REMAPPED_OLD 2u
#define COLOR_RESERVED UINT64_C(0xF)
#define COLOR_REMEMBERED UINT64_C(0x30)

/* Return the current address of the object that was at this address before a move; 0 if no object
 * was moved from there. */
INLINE uint64_t find_moved(const java_moves *m, uint64_t address) {
    uint64_t at = 0;
    BISECT(at, m->count, middle, m->before[middle] < address)
    return at < m->count && m->before[at] == address ? m->now[at] : 0;
}

INLINE uint64_t or_else(uint64_t found, uint64_t otherwise) {
    return found ? found : otherwise;
}

INLINE uint64_t address_below_color(const java_heap *h, uint64_t value) {
    uint64_t bits = (uint64_t)__builtin_popcountll(h->offsets), views = value >> bits & ABOVE_VIEWS;
    if (value >> (bits + ABOVE_BITS) || !views || views & (views - 1))
        return 0;
    uint64_t address = h->oop_base | (value & h->offsets);
    return value & ~h->offsets & h->current ? address : or_else(find_moved(&h->young, address), address);
}

INLINE uint64_t address_above_color(const java_heap *h, uint64_t value) {
    uint64_t bits = value >> REMAPPED_SHIFT & REMAPPED_MASK;
    if (!bits || bits & (bits - 1) || value & COLOR_RESERVED)
        return 0;
    uint64_t number = (uint64_t)__builtin_ctzll(bits), address = value >> (REMAPPED_SHIFT + 1 + number), missed = number ^ h->current;
    if ((address & ~h->offsets) != h->oop_base)
        return 0;
    if (!missed)
        return address;
    if (missed == REMAPPED_YOUNG)
        return or_else(find_moved(&h->young, address), address);
    /* Both bits of COLOR_REMEMBERED are set in a reference from an old object to an old object. */
    if (missed == REMAPPED_OLD || (value & COLOR_REMEMBERED) == COLOR_REMEMBERED)
        return or_else(find_moved(&h->old, address), address);
    return or_else(find_moved(&h->young, address), or_else(find_moved(&h->old, address), address));
}

/* Return the address to which a reference refers, 0 for null. With colors, also return 0 for a
 * value that is not a reference. Without colors, Shenandoah's moves are in `young`. */
INLINE uint64_t java_address(const java_heap *h, uint64_t value) {
    if (!value)
        return 0;
    if (h->colors == JAVA_PLAIN) {
        uint64_t address = h->oop_base + (value << h->oop_shift);
        return h->young.count ? or_else(find_moved(&h->young, address), address) : address;
    }
    return h->colors == JAVA_ABOVE ? address_below_color(h, value) : address_above_color(h, value);
}

#endif
