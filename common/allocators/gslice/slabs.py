"""Structures of GSlice: its variables, slabs, and magazines of free chunks.

Source: glib/gslice.c of GLib 2.56 to 2.74 (struct _Allocator, _SlabInfo, _ChunkLink, ThreadMemory),
the same in all of them. A chunk size is a multiple of two words; `index` is the size in such units,
minus 1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.allocators.record import Record
from findleaks.allocators.type_nodes import find_types
from findleaks.engine.contract import Engine
from findleaks.target.base import Target
from findleaks.value_classes import NamedTuple

_FIELDS = (
    "W min_page, W max_page, I always_malloc, I bypass, I debug, W working_set, I color_increment, W largest, Q magazine_mutex,"
    "W magazines, W contention, I mutex_counter, I stamp, I last_stamp, Q slab_mutex, W slab_stack, I color"
)
_LEAST_PAGE = 128  # bytes; the value of `min_page` if GLib uses posix_memalign
_PAGES = (4096, 8192, 16384, 32768, 65536)  # values of `max_page`: page sizes of systems
MOST_SLABS = 1 << 20
MOST_CACHED = 1 << 20  # most chunks in all magazines
_MOST_VOTES = 1 << 22  # most pointers that are counted to find where chunks begin
PTHREAD_WORDS = 320
"""Words from the thread pointer on that are read. They contain the first 32 thread-specific values
of glibc."""


class Place(NamedTuple):
    """The allocator's variables. `classes`: the number of chunk sizes. `magazines` and `stack` are
    the addresses of arrays with one word for each chunk size."""

    address: int
    size: int
    max_page: int
    classes: int
    magazines: int
    contention: int
    stack: int


class Slab(NamedTuple):
    """An aligned block of `page` bytes that contains chunks of `chunk` bytes. `info`: the address
    of its SlabInfo, which follows the chunks. `free`: its list of free chunks."""

    start: int
    page: int
    chunk: int
    info: int
    free: tuple[int, ...]

    @property
    def spare(self) -> int:
        """Bytes before SlabInfo that belong to no chunk. The offset of the first chunk in the slab
        is a multiple of two words, and less than this number."""
        return (self.info - self.start) % self.chunk

    @property
    def chunks(self) -> int:
        return (self.info - self.start) // self.chunk


def find_places(target: Target, engine: Engine, image: Image) -> Iterator[Place]:
    """Yield the variables of GSlice in this file's data."""
    memory, word = Memory(target), target.arch.word
    record = Record(_FIELDS, word)
    for piece in image.pieces(target):
        for address in engine.search(piece, _LEAST_PAGE, _LEAST_PAGE + 1):
            place = _place_at(memory, record, address)
            if place is not None:
                yield place


def _place_at(memory: Memory, record: Record, address: int) -> Optional[Place]:
    word = memory.size
    first = memory.words(address, 2)
    if first is None or first[1] not in _PAGES:
        return None
    always = memory.int32(address + record["always_malloc"])
    bypass = memory.int32(address + record["bypass"])
    largest = memory.word(address + record["largest"])
    arrays = [memory.word(address + record[name]) for name in ("magazines", "contention", "slab_stack")]
    if always != 0 or bypass not in (0, 1) or largest is None or largest > first[1] or None in arrays:
        return None
    most = (first[1] - info_bytes(word)) // 8  # MAX_SLAB_CHUNK_SIZE
    magazines, contention, stack = (value or 0 for value in arrays)
    if not stack or stack % word:
        return None
    return Place(address, record.size, first[1], most // (2 * word), magazines, contention, stack)


def info_bytes(word: int) -> int:
    """Return the bytes at the end of a slab that no chunk uses: SlabInfo has four words, and two
    words are left to malloc."""
    return 6 * word


def page_of(chunk: int, word: int) -> int:
    """Return the bytes of a slab for chunks of this size: a power of two, at least 8 chunks."""
    return max(_LEAST_PAGE, 1 << (8 * chunk + info_bytes(word) - 1).bit_length())


def read_slabs(memory: Memory, place: Place) -> tuple[list[Slab], str]:
    """Return the slabs of all rings, and a message if a ring is broken (else "")."""
    word, trouble = memory.size, ""
    found: list[Slab] = []
    heads = memory.words(place.stack, place.classes)
    if heads is None:
        return [], f"GSlice's slabs at {place.stack:#x} cannot be read: leaks in them are not reported"
    seen: set[int] = set()
    for index, head in enumerate(heads):
        chunk, info = 2 * word * (index + 1), head
        page = page_of(chunk, word)
        while info and info not in seen and len(seen) < MOST_SLABS:
            seen.add(info)
            fields = memory.members(info, "PIPP")
            start = info + info_bytes(word) - page
            after = memory.word(fields[2] + 3 * word) if fields is not None else None
            if fields is None or start % page or after != info:
                trouble = f"GSlice's ring of slabs for {chunk} bytes is broken at {info:#x}: leaks in the rest of them are not reported"
                break
            found.append(Slab(start, page, chunk, info, tuple(_chain(memory, fields[0], page // chunk))))
            info = fields[2]
    return found, trouble


def _chain(memory: Memory, chunk: int, most: int) -> Iterator[int]:
    """Yield the chunks of a list linked by their first word, at most `most`."""
    while chunk and most > 0:
        yield chunk
        chunk, most = memory.word(chunk) or 0, most - 1


def cached_chunks(target: Target, memory: Memory, place: Place) -> tuple[list[int], list[int]]:
    """Return the free chunks in all magazines, and the addresses of the threads' arrays of
    magazines (ThreadMemory). Each thread has magazines, and full ones are shared by all threads."""
    word = memory.size
    found: list[int] = []
    own: list[int] = []
    for thread in target.threads():
        values = memory.words(thread.thread_pointer, PTHREAD_WORDS) if thread.thread_pointer else None
        for value in set(values or ()):
            second = value + 2 * word * (1 + place.classes)
            if value % word == 0 and value and memory.words(value, 2) == (value + 2 * word, second):
                own.append(value)
                heads = memory.words(value + 2 * word, 4 * place.classes) or ()
                for head in heads[::2]:
                    found += _magazine(memory, head, 0, MOST_CACHED - len(found))
    for first in memory.words(place.magazines, place.classes) or ():
        head = first
        seen: set[int] = set()
        while head and head not in seen and len(found) < MOST_CACHED:
            seen.add(head)
            found += _magazine(memory, head, 4, MOST_CACHED - len(found))
            second_chunk = memory.word(head) or 0
            third = memory.word(second_chunk) or 0
            head = memory.word(third + word) or 0
    return found, own


def _magazine(memory: Memory, chunk: int, fields: int, most: int) -> list[int]:
    """Return the chunks of a magazine. It is a list linked by the first words of its chunks. The
    second word of a chunk is the head of a further list, except in the first `fields` chunks, where
    it has another meaning."""
    word = memory.size
    found: list[int] = []
    seen: set[int] = set()
    while chunk and chunk not in seen and len(found) < most:
        seen.add(chunk)
        found.append(chunk)
        if len(found) > fields:
            found += _chain(memory, memory.word(chunk + word) or 0, min(most - len(found), 1 << 16))
        chunk = memory.word(chunk) or 0
    return found


def vote_on_starts(target: Target, engine: Engine, slabs: Sequence[Slab], unit: int) -> dict[int, int]:
    """Return the offset of the first chunk in each of these slabs, by the start of the slab. The
    slabs have no free chunk, and several offsets are possible.

    GSlice shifts the chunks of a slab by a multiple of `unit` bytes ("color"), and does not store
    the shift. Instances of GObject in a slab decide, as their place in a chunk is known. In other
    slabs, pointers to the chunks decide: most of them point to the start of a chunk."""
    found = _elect(_vote_by_instances(target, engine, slabs))
    return {**found, **_elect(_vote_by_pointers(target, engine, [slab for slab in slabs if slab.start not in found], unit))}


def _elect(votes: dict[int, dict[int, int]]) -> dict[int, int]:
    """Return the offset with the most votes of each slab that has votes."""
    return {start: max(counts, key=lambda shift: (counts[shift], -shift)) for start, counts in votes.items() if counts}


def _vote_by_instances(target: Target, engine: Engine, slabs: Sequence[Slab]) -> dict[int, dict[int, int]]:
    memory, votes = Memory(target), dict[int, dict[int, int]]()
    classes = find_types(memory).read(memory) if slabs else {}
    if not classes:
        return votes
    by_start, pages, words = {slab.start: slab for slab in slabs}, sorted({slab.page for slab in slabs}), sorted(classes)
    for piece in target.pieces(min(by_start), max(slab.info for slab in slabs)):
        places = engine.search_any(piece, words)
        values, _ = engine.gather((piece,), places, memory.size)
        for place, word in zip(places, memory.arch.words(values)):
            one = classes[word]
            for page in pages:
                slab = by_start.get(place & -page)
                if slab is None or slab.page != page or place >= slab.info or one.private + one.size > slab.chunk:
                    continue
                shift = (place - slab.start - one.private) % slab.chunk
                if shift < slab.spare:
                    counts = votes.setdefault(slab.start, {})
                    counts[shift] = counts.get(shift, 0) + 1
    return votes


def _vote_by_pointers(target: Target, engine: Engine, slabs: Sequence[Slab], unit: int) -> dict[int, dict[int, int]]:
    votes: dict[int, dict[int, int]] = {slab.start: {} for slab in slabs}
    chunks, pages = {slab.start: slab for slab in slabs}, sorted({slab.page for slab in slabs})
    if not slabs:
        return {}
    low, high = min(slab.start for slab in slabs), max(slab.info for slab in slabs)
    left = _MOST_VOTES
    for region in target.regions():
        if not (region.readable and region.writable and region.private):
            continue
        for piece in target.pieces(region.start, region.end):
            addresses = engine.search(piece, low, high)[:left]
            left -= len(addresses)
            data, _ = engine.gather((piece,), addresses, target.arch.word)
            for value in target.arch.unpack(bytes(data)):
                for page in pages:
                    slab = chunks.get(value & -page)
                    shift = (value - slab.start) % slab.chunk if slab is not None and slab.page == page else 1
                    if slab is not None and shift % unit == 0 and shift < slab.spare:
                        votes[slab.start][shift] = votes[slab.start].get(shift, 0) + 1
    return votes
