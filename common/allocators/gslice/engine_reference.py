"""The Python engine's functions for GSlice; see engine.py."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from findleaks.allocators.gslice.engine import LEAST_PAGE, OTHER, OVERLAPS, SlabRead
from findleaks.engine.contract import Engine
from findleaks.engine.reference.words import words_of
from findleaks.engine.terms import RUN, State, run_states
from findleaks.target.base import Piece
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.allocators.type_nodes import InstanceType

_USED = run_states(State.IN_USE, State.IN_USE)
_WRAP = (1 << 64) - 1  # C computes addresses modulo 2^64


class _Reader:
    """Reads words from pieces of memory. A word outside of all pieces reads as 0."""

    def __init__(self, engine: Engine, pieces: Sequence[Piece]) -> None:
        self.pieces, self.size, self.order = pieces, engine.arch.word, engine.arch.byteorder
        self._starts = [piece.address for piece in pieces]

    def read(self, address: int, size: int) -> bytes:
        at = bisect_right(self._starts, address & _WRAP) - 1
        offset = (address & _WRAP) - self._starts[at] if at >= 0 else 0
        data = bytes(self.pieces[at].data[offset : offset + size]) if at >= 0 else b""
        return data if len(data) == size else b""

    def word(self, address: int) -> int:
        return int.from_bytes(self.read(address, self.size), self.order)


class _Shape(NamedTuple):
    """The shape of slabs of one chunk size, in bytes. `chunk` is the chunk size. `page` is the size
    of a slab, including two words that are left to malloc. `info` is the offset of its SlabInfo.
    `spare` is the number of bytes before SlabInfo that belong to no chunk."""

    chunk: int
    page: int
    info: int
    spare: int


def _shape(word: int, number: int) -> _Shape:
    chunk = 2 * word * (number + 1)
    page = max(LEAST_PAGE, 1 << (8 * chunk + 6 * word - 1).bit_length())
    return _Shape(chunk, page, page - 6 * word, (page - 6 * word) % chunk)


def read_slabs(engine: Engine, pieces: Sequence[Piece], heads: Sequence[int]) -> SlabRead:
    reader, made = _Reader(engine, pieces), SlabRead(*(array("Q") for _ in SlabRead._fields))
    most = sum(len(piece.data) // LEAST_PAGE for piece in pieces)
    found: list[tuple[int, int]] = []
    rings = {number: head for number, head in enumerate(heads) if head}
    while rings:  # the rings are walked side by side
        for number, info in list(rings.items()):
            following = _walk_on(reader, info, number, found) if len(found) < most else 0
            if not following:
                made.broken.extend((number, info))
            rings[number] = following
            if following in (0, heads[number]):
                del rings[number]
    floor, last = 0, -1
    found.sort()
    starts = [start for start, _ in found]
    for at, (start, number) in enumerate(found):
        if start == last:
            continue
        last = start
        if start < floor or start in starts[at + 1 : at + 2]:
            made.broken.extend((OVERLAPS, start))
            continue
        shape = _shape(reader.size, number)
        floor = start + shape.info + 4 * reader.size
        _append_slab(reader, start, shape, made)
        made.ranges.extend((start, floor))
    return made


def _walk_on(reader: _Reader, info: int, number: int, found: list[tuple[int, int]]) -> int:
    """Append the slab with this SlabInfo. Return the next SlabInfo, or 0 if the ring is broken."""
    word, shape = reader.size, _shape(reader.size, number)
    start = info - shape.info
    following = reader.word(info + 2 * word) if reader.read(info, 4 * word) else 0
    back = reader.read(following, 4 * word)[3 * word :] if following else b""
    if start < 0 or start % shape.page or int.from_bytes(back, reader.order) != info:
        return 0
    found.append((start, number))
    return following


def _append_slab(reader: _Reader, start: int, shape: _Shape, made: SlabRead) -> None:
    most, unit = shape.info // shape.chunk, 2 * reader.size
    first = reader.word(start + shape.info)
    made.free.extend(_follow(reader, first, most))
    shift = ((first - start) & _WRAP) % shape.chunk if first else 0
    made.choices.append(1 if first or not shape.spare else shape.spare // unit)
    if shift >= shape.spare or shift % unit:
        shift = 0
    made.runs.extend((start + shift, shape.chunk, shape.chunk, most, 0, _USED))


def _follow(reader: _Reader, chunk: int, most: int) -> Iterator[int]:
    while chunk and most > 0:
        yield chunk
        chunk, most = reader.word(chunk), most - 1


def read_magazines(
    engine: Engine, pieces: Sequence[Piece], own: Sequence[int], rings: Sequence[int], most: int
) -> tuple[array[int], list[tuple[int, str]]]:
    reader = _Reader(engine, pieces)
    heads = [*own, *_list_magazines(reader, rings, most)]
    lists = engine.follow_all(pieces, heads, 0, most)
    further: list[int] = []
    for number, end in enumerate(lists.ends):
        first = (lists.ends[number - 1] if number else 0) + (0 if number < len(own) else OTHER)
        further += filter(None, (reader.word(chunk + reader.size) for chunk in lists.nodes[first:end]))
    more = engine.follow_all(pieces, further, 0, most)
    damaged = [(heads[number], why) for number, why in lists.problems] + [(further[number], why) for number, why in more.problems]
    return lists.nodes + more.nodes, damaged


def _list_magazines(reader: _Reader, rings: Sequence[int], most: int) -> list[int]:
    """Return at most `most` magazines. Each round takes the next magazine of every ring."""
    magazines: list[int] = []
    walks = [(first, first) for first in rings if first]
    while walks and len(magazines) < most:
        magazines += [magazine for _, magazine in walks]
        following = [(first, reader.word(reader.word(reader.word(magazine)) + reader.size)) for first, magazine in walks]
        walks = [(first, magazine) for first, magazine in following if magazine not in (0, first)]
    return magazines[:most]


class Starts:
    """See engine.ChunkStarts."""

    def __init__(self, engine: Engine, slabs: SlabRead) -> None:
        self._arch, self._slabs, self._unit = engine.arch, slabs, 2 * engine.arch.word
        self._numbers = [number for number, choices in enumerate(slabs.choices) if choices > 1]
        self._starts = [slabs.runs[RUN * number] for number in self._numbers]
        self._votes = [[0] * slabs.choices[number] for number in self._numbers]

    def _count(self, address: int, least: int = 0) -> None:
        """Count evidence that a chunk begins at `address`, and that `least` bytes are used."""
        at = bisect_right(self._starts, address) - 1
        if at < 0 or address % self._unit:
            return
        number = self._numbers[at]
        chunk, count = self._slabs.runs[RUN * number + 2 : RUN * number + 4]
        choices, offset = len(self._votes[at]), address - self._starts[at]
        shift, end = offset % chunk // self._unit, chunk * count + choices * self._unit
        if offset + max(least, 1) <= end and shift < self._slabs.choices[number] > 1 and least <= chunk:
            self._votes[at][shift] += 1

    def count_chunks(self, chunks: array[int]) -> None:
        for chunk in chunks:
            self._count(chunk)

    def count_pointers(self, piece: Piece) -> None:
        for value in words_of(piece, self._arch)[1]:
            self._count(value)

    def count_instances(self, piece: Piece, types: Iterable[InstanceType]) -> None:
        by_class = {one.class_address: one for one in types}
        base, words = words_of(piece, self._arch)
        for at, value in enumerate(words):
            if value in by_class:
                one = by_class[value]
                self._count(base + at * self._arch.word - one.private, one.private + one.size)

    def count_edges(self, piece: Piece) -> None:
        for number, start, votes in zip(self._numbers, self._starts, self._votes):
            choices = self._slabs.choices[number] if self._slabs.choices[number] > 1 else 0
            chunk, count = self._slabs.runs[RUN * number + 2 : RUN * number + 4]
            used = chunk * count
            data = bytes(piece.data[max(start - piece.address, 0) :][: used + choices * self._unit])
            if start < piece.address or len(data) < used + choices * self._unit:
                continue
            for shift in range(choices):
                first = shift * self._unit
                if not any(data[:first]) and not any(data[first + used :]):
                    starts = range(first, first + used, chunk)
                    votes[shift] += 1 + sum(any(data[at : at + self._arch.word]) for at in starts)

    def elect(self) -> int:
        for number, votes in zip(self._numbers, self._votes):
            if self._slabs.choices[number] > 1 and any(votes):
                self._slabs.runs[RUN * number] += votes.index(max(votes)) * self._unit
                self._slabs.choices[number] = 1
        return sum(choices > 1 for choices in self._slabs.choices)
