/* Exceptions of C++, and their messages. std::exception_ptr refers to the object after the header;
 * the list of the exceptions that a thread has caught refers to a part of the header.
 *
 * Both libstdc++ (libsupc++/unwind-cxx.h: __cxa_refcounted_exception) and libc++abi
 * (src/cxa_exception.h: __cxa_exception) end the header of 128 bytes with a struct
 * _Unwind_Exception of 32 bytes, which begins with the class of the exception. In libstdc++, the
 * __cxa_exception begins 16 bytes after the header.
 *
 * The message of a std::runtime_error is a string of libstdc++'s old ABI (cow_string.h: _Rep):
 * {length, capacity, number of further owners}, then the text, to which the object refers. */
#include "interior_structures.h"

#define GNU UINT64_C(0x474e5543432b2b00)  /* "GNUCC++" */
#define CLANG UINT64_C(0x434c4e47432b2b00) /* "CLNGC++" */
#define DEPENDENT UINT64_C(1)              /* refers to another exception: std::rethrow_exception */
enum { HEADER = 128, CLASS = 96, STRING_HEADER = 24, MOST_SPARE = 64, MOST_OWNERS = 1 << 16, LARGE_STRING = 256 };

int exception_at(const memory *m, const candidate *c) {
    uint64_t value, offset = c->pointer - c->start;
    if (WORD != 8 || (offset != 16 && offset != CLASS && offset != HEADER) || c->size < HEADER || !read_word(m, c->start + CLASS, &value))
        return NOTHING;
    value &= ~DEPENDENT;
    return value == GNU || value == CLANG ? EXCEPTION : NOTHING;
}

int string_at(const memory *m, const candidate *c) {
    uint64_t length, capacity, owners;
    uint8_t last;
    if (WORD != 8 || c->pointer - c->start != STRING_HEADER || !read_word(m, c->start, &length) || !read_word(m, c->start + 8, &capacity) ||
        !read_word(m, c->start + 16, &owners) || !length || length > capacity || capacity >= c->size - STRING_HEADER)
        return NOTHING;
    if (c->size - STRING_HEADER - capacity > MOST_SPARE || (uint32_t)owners > MOST_OWNERS)
        return NOTHING;
    if (!read_bytes(m, c->pointer + length, 1, &last) || last)
        return NOTHING;
    return capacity >= LARGE_STRING || (read_bytes(m, c->pointer + length - 1, 1, &last) && last) ? STRING : NOTHING;
}
