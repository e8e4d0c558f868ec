/* Defines malloc and related functions by Google's tcmalloc, if it was built with separate names for its
 * functions (TCMALLOC_INTERNAL_METHODS_ONLY). To be linked with its archive into a program or a library. */
#include <stddef.h>

#define FORWARD(type, name, internal, parameters, arguments)                                                                               \
    type internal parameters;                                                                                                              \
    type name parameters;                                                                                                                  \
    type name parameters { return internal arguments; }

FORWARD(void *, malloc, TCMallocInternalMalloc, (size_t size), (size))
FORWARD(void *, calloc, TCMallocInternalCalloc, (size_t count, size_t size), (count, size))
FORWARD(void *, realloc, TCMallocInternalRealloc, (void *block, size_t size), (block, size))
FORWARD(void *, memalign, TCMallocInternalMemalign, (size_t alignment, size_t size), (alignment, size))
FORWARD(void *, aligned_alloc, TCMallocInternalAlignedAlloc, (size_t alignment, size_t size), (alignment, size))
FORWARD(int, posix_memalign, TCMallocInternalPosixMemalign, (void **block, size_t alignment, size_t size), (block, alignment, size))
FORWARD(void *, valloc, TCMallocInternalValloc, (size_t size), (size))
FORWARD(void *, pvalloc, TCMallocInternalPvalloc, (size_t size), (size))
FORWARD(size_t, malloc_usable_size, TCMallocInternalMallocSize, (void *block), (block))

void TCMallocInternalFree(void *block);
void free(void *block);
void free(void *block) { TCMallocInternalFree(block); }
