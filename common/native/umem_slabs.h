/* Tables of caches and slabs, as ../allocators/umem/engine.py describes their words. */
#ifndef FINDLEAKS_SLABS_H
#define FINDLEAKS_SLABS_H

#include "native.h"

typedef struct cache {
    uint64_t address, nullslab, first, chunksize, slabsize, bufctl, flags, bufsize, tag, least, buftag;
} cache;

typedef struct slab {
    uint64_t address, base, cache, chunks, refcnt, prev, first;
} slab;

typedef struct user {
    uint64_t base, end, number;
} user;

#endif
