"""Recognise structures by their contents: arrays of C++ objects, glibc's FILE, std::string."""

from __future__ import annotations

import re
from collections.abc import Sequence

from findleaks.allocators.images import find_modules
from findleaks.allocators.memory import Memory
from findleaks.errors import UnreadableMemory
from findleaks.libc.stdio_buffers import MAGIC, MAGIC_MASK
from findleaks.target.base import Target
from findleaks.target.ranges import nonzero_pieces, region_at

_SMALLEST_FILE = {8: 216, 4: 148}  # bytes by the size of words
_LARGEST_FILE = 1024
_ROUNDING = 5  # maximum number of words by which the allocator rounds sizes up
_READ_OF_ARRAY = 4096  # bytes of an array that are read
_LIBRARIES = ("libstdc++", "libc++")
_ABI = re.compile(rb"N10__cxxabiv1")  # in names of type_info classes, also in stripped files


def is_array(target: Target, start: int, size: int, count: int, vtable: int) -> bool:
    """Whether `count` objects of one class, each beginning with `vtable`, fill [start, start +
    size), except for the allocator's rounding. Their size is the distance to the next `vtable`;
    only the second and the last object are read."""
    memory, word = Memory(target), target.arch.word
    if count == 1:
        return size >= word and memory.word(start) == vtable
    most = size // count
    least = max(word, (size - _ROUNDING * word) // count // word * word)
    sizes = range(most // word * word, least - 1, -word)
    return any(memory.word(start + element) == vtable == memory.word(start + (count - 1) * element) for element in sizes)


def has_counted_elements(target: Target, address: int, size: int) -> bool:
    """Whether the first word of a block can be the count of alike elements that fill the rest of
    the block, except for the allocator's rounding: the word at one offset is an address of mapped
    memory in some elements, and 0 in the others.

    `new T[n]` stores n only if T has a destructor. Most such classes own something, so they have a
    pointer. Without this test, nearly every small number would be taken for a count, because the
    tolerated rounding lets small numbers divide any size."""
    memory, word = Memory(target), target.arch.word
    count, *words = memory.words(address, min(size, _READ_OF_ARRAY) // word) or (0,)
    if not 0 < count <= size // word:
        return False
    least = max(word, (size - word - _ROUNDING * word) // count // word * word)
    for element in range((size - word) // count // word * word, least - 1, -word):
        step = element // word
        for column in range(min(step, len(words))):
            values = words[column : count * step : step]
            if any(values) and all(not value or region_at(target.regions(), value) is not None for value in values):
                return True
    return False


def is_file(target: Target, first: int, address: int, size: int) -> bool:
    """Whether a block is a FILE of glibc's fopen (glibc 2.36 libio/bits/types/struct_FILE.h,
    libio/iofopen.c): int _flags with its magic, 13 pointers …; _lock and _wide_data point to just
    after the FILE in the structure that fopen allocates (struct locked_FILE)."""
    memory, word = Memory(target), target.arch.word
    flags, padding = memory.halves(first) if word == 8 else (first, 0)
    if flags & MAGIC_MASK != MAGIC or padding or not _SMALLEST_FILE[word] <= size <= _LARGEST_FILE:
        return False
    words = memory.words(address, size // word) or ()
    return any(address + _SMALLEST_FILE[word] <= value < address + size for value in words[8:40])


def may_have_strings(target: Target) -> bool:
    """Whether the process may use C++: a module is the C++ library, contains names of it, or is
    unreadable. In programs without C++, a block with the shape of a std::string is another
    buffer {pointer, length, capacity}, such as GLib's GString."""
    modules = target.modules()
    if not modules or find_modules(target, _LIBRARIES):
        return True
    unread = {module.start for module in modules}
    for region in target.regions():
        module = region_at(modules, region.start)
        if module is not None and region.readable and not region.writable:
            for piece in nonzero_pieces(target, region.start, region.end):
                if _ABI.search(piece.data):
                    return True
                unread.discard(module.start)
    return bool(unread)


def is_string(target: Target, words: Sequence[int], address: int, size: int) -> bool:
    """Whether a block is a std::string of libstdc++: {pointer, length, 16 bytes or capacity} (GCC
    12 bits/basic_string.h, _Alloc_hider, _M_string_length, _M_local_buf).

    Short strings point into themselves. In long ones the text must end at its length, and memory
    must extend to the capacity. A value that points into a loaded file is not a capacity: a
    std::function, {functor, unused, manager, invoker} (GCC 12 bits/std_function.h, _Function_base),
    has the same shape, and in a program at a fixed address its code addresses are small enough for
    a capacity."""
    word = target.arch.word
    if len(words) < 4 or not 2 * word + 16 <= size <= 3 * word + 16:
        return False
    pointer, length, capacity = words[:3]
    own = pointer == address + 2 * word
    if not pointer or length > (15 if own else 1 << 32) or (not own and not 15 < capacity < 1 << 32) or (not own and length > capacity):
        return False
    if not own and _is_loaded(target, capacity):
        return False
    try:
        if target.read(pointer + length, 1) != b"\0":
            return False
        return own or (bool(target.read(pointer + capacity, 1)) and b"\0" not in target.read(pointer, min(length, 256)))
    except UnreadableMemory:
        return False


def _is_loaded(target: Target, value: int) -> bool:
    """Whether `value` is in a module or other code. Most capacities are below all mappings."""
    regions = target.regions()
    if not regions or value < regions[0].start:
        return False
    region = region_at(regions, value)
    return region_at(target.modules(), value) is not None or (region is not None and region.executable)
