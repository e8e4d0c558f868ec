/* Describes the layout of a Java heap to the C engine; see ../runtimes/jvm/engine.py. */
#ifndef FINDLEAKS_JAVA_OBJECTS_H
#define FINDLEAKS_JAVA_OBJECTS_H

#include "native.h"

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
    /* A reference has 4 or 8 bytes. Its address is oop_base + (value << oop_shift). */
    uint64_t oop_bytes, oop_base, oop_shift;
    /* `maps` has pairs of an offset and a number of references. Class n has the pairs from
     * map_first[n] up to, but not including, map_first[n + 1]. */
    const uint32_t *map_first, *maps;
} java_heap;

#define CLASS_ROW 4u
enum { JAVA_FIXED = 0, JAVA_ARRAY = 1, JAVA_OBJECTS = 2, JAVA_MIRROR = 3 };

#endif
