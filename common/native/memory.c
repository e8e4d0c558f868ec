/* Growing arrays, and pages of memory.
 *
 * Large arrays do not ask for huge pages. In a virtual machine that returns free memory to its
 * host, the host must provide each huge page anew: `roots` on 10 M blocks took 2 s more of system
 * CPU time, and 3 % less of 2.7 s of user CPU time. */
#define _DEFAULT_SOURCE /* madvise */
#include "native.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#define MANY_BLOCKS (UINT64_C(1) << 20)
#define OWN_PAGES ((size_t)256 << 10) /* bytes of the smallest array that has pages of its own */

bool grow(void *array, uint64_t count, uint64_t *capacity, size_t size) {
    void *items;
    if (count < *capacity)
        return true;
    uint64_t wanted = *capacity + *capacity / 2 + 64;
    memcpy(&items, array, sizeof items); /* a pointer of any type */
    if (wanted > SIZE_MAX / size || !(items = realloc(items, (size_t)wanted * size)))
        return false;
    memcpy(array, &items, sizeof items);
    *capacity = wanted;
    return true;
}

void free_all(void *const *all, size_t count) {
    for (size_t at = 0; at < count; at++)
        free(all[at]);
}

/* Make the pages of memory resident that will be written soon, if the system supports this. */
void ready_pages(void *memory, size_t bytes) {
#ifdef MADV_POPULATE_WRITE
    uintptr_t first = (uintptr_t)memory & ~(uintptr_t)4095;
    (void)madvise((void *)first, bytes + ((uintptr_t)memory - first), MADV_POPULATE_WRITE);
#else
    (void)memory, (void)bytes;
#endif
}

void *allocate_zeros(size_t bytes) {
    if (bytes < OWN_PAGES)
        return calloc(1, bytes);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void free_zeros(void *memory, size_t bytes) {
    if (bytes < OWN_PAGES)
        free(memory);
    else if (memory)
        (void)munmap(memory, bytes);
}

/* Return the pages of memory that contains only zeros to the kernel. The memory still reads as
 * zeros. */
void release_zeros(void *memory, size_t bytes) {
#ifdef __linux__ /* on other systems, the pages may not read as zeros afterwards */
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = ((uintptr_t)memory + page - 1) & -page, end = ((uintptr_t)memory + bytes) & -page;
    if (first < end)
        (void)madvise((void *)first, end - first, MADV_DONTNEED);
#else
    (void)memory, (void)bytes;
#endif
}

/* Return freed memory to the kernel if the heap has many blocks: there may then be much of it.
 * glibc keeps freed arrays of up to 32 MiB if memory above them is still used. */
void trim_memory(uint64_t blocks) {
#ifdef __GLIBC__
    if (blocks >= MANY_BLOCKS)
        malloc_trim(0);
#else
    (void)blocks;
#endif
}

int words_append(words *list, const uint64_t *items, size_t count) {
    int failed = DONE;
    for (size_t at = 0; at < count && !failed; at++)
        failed = words_push(list, items[at]);
    return failed;
}

API void fl_free(void *memory) { free(memory); }

#ifndef FL_SOURCES
#define FL_SOURCES 0
#endif

API uint32_t fl_sources(void) { return FL_SOURCES; } /* checksum: engine/native/sources.py */
API uint32_t fl_target(void) { return WORD | BIG << 8; } /* what it was built for */
