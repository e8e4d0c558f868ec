"""Recognise containers whose elements are in arrays: std::vector, std::deque, arrays of
pointers."""

from __future__ import annotations

from typing import Optional

from findleaks.audit.containers import LEAST, Container
from findleaks.audit.containers.hashes import read_buckets
from findleaks.audit.containers.reader import BlockPlace, ContainerReader, PointerBuckets

SLACK = 3
"""Maximum number of words by which a block of glibc exceeds the requested size, because of
alignment or of the minimum size of a chunk. Other allocators round sizes up by an eighth."""


# A block with at least this many pointers and nothing else is an array, whatever the pointers
# refer to
SURE = 16
COUNTERS = ("std::make_shared<", "counters of std::shared_ptr<")  # types of shared_ptr's blocks
SAMPLE = 64  # elements examined to determine their type


def _fits(used: int, size: int, word: int) -> bool:
    """Whether a block of `size` usable bytes can be the result of a request for `used` bytes."""
    return used <= size <= max(used + SLACK * word, used * 5 // 4 + 2 * word)


def recognise_vector(reader: ContainerReader, address: int, plain: bool = False) -> Optional[Container]:
    """Recognise a std::vector with its head {begin, end, end of storage} at `address`.
    Source: GCC 12 bits/stl_vector.h, _Vector_impl_data; libc++ has the same layout.

    If the elements are pointers or vectors, the length is the number of elements; otherwise it is
    the number of bytes. `plain`: always count bytes, and do not read the elements."""
    size = reader.size
    words = reader.words(address, 3)
    if words is None:
        return None
    begin, end, last = words
    table = reader.place(begin)
    if table is None or table.offset or not begin < end <= last or (end - begin) % size or not _fits(last - begin, table.size, size):
        return None
    if plain:
        return Container("std::vector", address, address + 3 * size, end - begin, "bytes", tables=(table.start,))
    made = _vector(reader, address, table, begin, end)
    if made is not None:
        made.bytes = end - begin
    return made


def _vector(reader: ContainerReader, address: int, table: BlockPlace, begin: int, end: int) -> Optional[Container]:
    """Return a vector container whose kind and length follow from its elements."""
    size = reader.size
    if _are_shared(reader, begin, end):
        count = (end - begin) // (2 * size)
        return Container("std::vector of shared_ptr or weak_ptr", address, address + 3 * size, count, "elements", tables=(table.start,))
    inner = _count_vectors(reader, begin, end)
    if inner:
        return Container("std::vector of vectors", address, address + 3 * size, inner, "vectors", tables=(table.start,))
    return _elements(reader, "std::vector", address, address + 3 * size, table, end)


def _is_vector_or_empty(reader: ContainerReader, address: int) -> bool:
    return reader.words(address, 3) == (0, 0, 0) or recognise_vector(reader, address, plain=True) is not None


def _count_vectors(reader: ContainerReader, start: int, last: int) -> int:
    """Count the vector heads in [start, last); 0 if a sample contains anything else."""
    each = 3 * reader.size
    count, odd = divmod(last - start, each)
    if odd or count < LEAST:
        return 0
    sample = range(0, count, max(count // SAMPLE, 1))
    return count if all(_is_vector_or_empty(reader, start + number * each) for number in sample) else 0


def _are_shared(reader: ContainerReader, start: int, last: int) -> bool:
    """Whether the elements in [start, last) are std::shared_ptr or std::weak_ptr, judged by a
    sample. An element is {object, counters} (GCC 12 bits/shared_ptr_base.h, __shared_ptr; libc++
    has the same layout). Each sampled element must meet one of these conditions: it is null, its
    counters are a separate block, or its counters precede the object in the same block."""
    count, odd = divmod(last - start, 2 * reader.size)
    if odd or count < LEAST:
        return False
    seen = 0
    for number in range(0, count, max(count // SAMPLE, 1)):
        words = reader.words(start + number * 2 * reader.size, 2)
        if words is None:
            return False
        place = reader.place(words[1]) if words[1] else None
        if place is None or place.offset:
            if words != (0, 0):
                return False
            continue
        first = reader.word(place.start)
        if not reader.session.types.name(first or 0).startswith(COUNTERS):
            return False
        seen += 1
    return seen > 0


def _holds_vector(reader: ContainerReader, table: BlockPlace) -> bool:
    """Whether the block contains the head of a vector. Such a block is a structure, not an
    array."""
    words = reader.words(table.start, min(table.size // reader.size, SAMPLE)) or ()
    begins = (number for number, word in enumerate(words[:-2]) if reader.low <= word < reader.high)
    return any(recognise_vector(reader, table.start + number * reader.size, plain=True) is not None for number in begins)


def recognise_pointers(reader: ContainerReader, address: int, table: BlockPlace) -> Optional[Container]:
    """Recognise an array of pointers in the block that the word at `address` points to.
    A block with few pointers, to blocks of different sizes, is more likely a structure and is not
    recognised."""
    if table.offset or _holds_vector(reader, table):
        return None
    return _elements(reader, "array", address, address + reader.size, table, table.start + table.size)


def _all_alike(reader: ContainerReader, found: PointerBuckets) -> bool:
    first = found.sample[0]
    return first is not None and all(reader.is_alike_or_same(first, place) for place in found.sample)


def _elements(reader: ContainerReader, what: str, start: int, end: int, table: BlockPlace, last: int) -> Optional[Container]:
    """Return the container with elements from `table` up to `last`. The elements are pointers if
    all non-zero words point to blocks."""
    found = read_buckets(reader, table.start, last)
    if len(found.heads) >= LEAST and not found.mixed and (what != "array" or len(found.heads) >= SURE or _all_alike(reader, found)):
        return Container(f"{what} of pointers", start, end, len(found.heads), "pointers", tables=(table.start,))
    if what == "array":
        return None
    return Container(what, start, end, last - table.start, "bytes", tables=(table.start,))


def recognise_deque(reader: ContainerReader, address: int) -> Optional[Container]:
    """Recognise libstdc++'s std::deque at `address`.
    The head is {map, map size, start, finish}; an iterator is {current, first, last, node} (GCC 12
    bits/stl_deque.h, _Deque_impl_data). A chunk has 512 bytes, or one element if that is larger."""
    size = reader.size
    words = reader.words(address, 10)
    if words is None:
        return None
    table, map_size, cur, first, last, node, cur2, first2, last2, node2 = words
    place = reader.place(table)
    if place is None or place.offset or map_size < 8 or map_size * size > place.size:
        return None
    if not (table <= node <= node2 < table + map_size * size) or (node - table) % size or (node2 - table) % size:
        return None
    chunk = last - first
    if reader.word(node) != first or reader.word(node2) != first2 or chunk != last2 - first2 or chunk < 512:
        return None
    if not (first <= cur < last and first2 <= cur2 < last2):
        return None
    chunks = (node2 - node) // size
    length = chunks * chunk + (cur2 - first2) - (cur - first)
    return Container("std::deque", address, address + 10 * size, length, "bytes", tables=(table,))
