"""Structures of GSlice: its variables, slabs, and magazines of free chunks.

Source: glib/gslice.c of GLib 2.50 to 2.74 (struct _Allocator, _SlabInfo, _ChunkLink, ThreadMemory).
All these releases have the same structures. A chunk size is a multiple of two words; `index` is the
size in such units, minus 1."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Optional

from findleaks.allocators.gslice.engine import LEAST_PAGE, OVERLAPS, SlabRead, chunk_starts, read_slabs
from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.allocators.record import Record
from findleaks.allocators.thread_values import read_thread_values
from findleaks.allocators.type_nodes import BUILDER_MAGIC, MAGIC_WORD, InstanceType, find_types
from findleaks.engine.contract import Engine
from findleaks.target.base import Piece, Region, Target
from findleaks.value_classes import NamedTuple

_FIELDS = (
    "W min_page, W max_page, I always_malloc, I bypass, I debug, W working_set, I color_increment, W largest, Q magazine_mutex,"
    "W magazines, W contention, I mutex_counter, I stamp, I last_stamp, Q slab_mutex, W slab_stack, I color"
)
_PAGES = (4096, 8192, 16384, 32768, 65536)  # values of `max_page`: page sizes of systems
MOST_PLACES = 4
"""Maximum number of places read in a file's data. GLib has its variables once; each further place
can only be damage, and costs a walk of all slabs."""


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


def find_places(target: Target, engine: Engine, image: Image) -> Iterator[Place]:
    """Yield each place with GSlice's variables in this file's data, at most MOST_PLACES."""
    memory, record = Memory(target), Record(_FIELDS, target.arch.word)
    addresses = (address for piece in image.pieces(target) for address in engine.search(piece, LEAST_PAGE, LEAST_PAGE + 1))
    places = (_place_at(memory, record, address) for address in addresses)
    return islice((place for place in places if place is not None), MOST_PLACES)


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


def read_all_slabs(target: Target, engine: Engine, memory: Memory, place: Place) -> tuple[SlabRead, Sequence[Piece], str]:
    """Return the slabs of all rings, the memory that contains them, and a message if rings are
    broken (else "")."""
    heads = memory.words(place.stack, place.classes)
    if heads is None:
        empty = SlabRead(*(array("Q") for _ in SlabRead._fields))
        return empty, (), f"GSlice's slabs at {place.stack:#x} cannot be read: leaks in them are not reported"
    regions = [region for region in target.regions() if region.readable and region.writable and region.private]
    used = [region for region in regions if any(region.start <= head < region.end for head in heads if head)]
    pieces = list_pieces(target, used)
    slabs = read_slabs(engine, pieces, heads)
    if slabs.broken and len(used) < len(regions):  # a slab may be in a region of no head
        pieces = list_pieces(target, regions)
        slabs = read_slabs(engine, pieces, heads)
    return slabs, pieces, _explain(memory.size, slabs.broken)


def list_pieces(target: Target, regions: Iterable[Region]) -> tuple[Piece, ...]:
    """Return the memory of regions."""
    return tuple(piece for region in regions for piece in target.pieces(region.start, region.end))


def _explain(word: int, broken: Sequence[int]) -> str:
    """Return what is wrong with the rings; see SlabRead."""
    for number, address in zip(broken[::2], broken[1::2]):
        if number != OVERLAPS:
            size = 2 * word * (number + 1)
            return f"GSlice's ring of slabs for {size} bytes is broken at {address:#x}: leaks in the rest of them are not reported"
    return f"GSlice's slab at {broken[1]:#x} overlaps another one: leaks in it are not reported" if broken else ""


def find_magazines(target: Target, memory: Memory, place: Place) -> tuple[list[int], list[int]]:
    """Return the magazines of all threads, and the addresses of the threads' arrays of magazines
    (ThreadMemory). Each array belongs to one thread, so it is read once."""
    word = memory.size
    found: list[int] = []
    own: list[int] = []
    for value in sorted(read_thread_values(target)):
        second = value + 2 * word * (1 + place.classes)
        if value % word == 0 and value and memory.words(value, 2) == (value + 2 * word, second):
            own.append(value)
            found += (memory.words(value + 2 * word, 4 * place.classes) or ())[::2]
    return [head for head in found if head], own


def _describe_builder(word: int) -> InstanceType:
    """Return the builder of a variant as a type of instances. Its magic number takes the place of
    the address of the class, and the words before it that of private data."""
    return InstanceType(0, BUILDER_MAGIC, 2 * word, MAGIC_WORD * word, 0)


def find_starts(target: Target, engine: Engine, slabs: SlabRead, cached: array[int]) -> None:
    """Move the start of the run of each slab to the first chunk of the slab.

    GSlice shifts the chunks of a slab by a multiple of two words ("color"), and does not store the
    shift. The shift is computed from a free chunk in the slab or in a magazine. If the slab has no
    free chunk, it is computed from instances of GObject and builders of variants, because their
    place in a chunk is known. In other slabs, it is computed from pointers to the chunks: most of
    them point to the start of a chunk. If there are none, because all chunks of a slab are leaked,
    it is computed from the bytes at both ends of the slab that no chunk uses."""
    starts = chunk_starts(engine, slabs)
    starts.count_chunks(cached)
    left = starts.elect()
    memory = Memory(target)
    if left:
        types = [*find_types(memory).read(memory).values(), _describe_builder(memory.size)]
        for piece in target.pieces(slabs.ranges[0], slabs.ranges[-1]):
            starts.count_instances(piece, types)
        left = starts.elect()
    if left:
        for region in target.regions():
            if region.readable and region.writable and region.private:
                for piece in target.pieces(region.start, region.end):
                    starts.count_pointers(piece)
        left = starts.elect()
    if left:
        for piece in target.pieces(slabs.ranges[0], slabs.ranges[-1]):
            starts.count_edges(piece)
        starts.elect()
