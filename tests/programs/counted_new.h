// operator new and delete that count what is there: blocks, and their usable bytes. For programs of one source file.
#pragma once
#include <cstdlib>
#include <malloc.h>
#include <new>

static long counted_blocks, counted_bytes;

void *operator new(std::size_t size) {
    void *made = std::malloc(size);
    if (!made)
        std::abort();
    counted_blocks++;
    counted_bytes += (long)malloc_usable_size(made);
    return made;
}

void operator delete(void *block) noexcept {
    if (!block)
        return;
    counted_blocks--;
    counted_bytes -= (long)malloc_usable_size(block);
    std::free(block);
}

void operator delete(void *block, std::size_t) noexcept { operator delete(block); }
