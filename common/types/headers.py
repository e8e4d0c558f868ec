"""Find headers that a program's own functions for allocation put before the memory that they
return.

For example, SQLite requests 8 bytes more than its caller wants, stores the size in the first 8
bytes, and returns a pointer to the rest. All pointers to such blocks point to offset 8. Types must
therefore begin there, and their size is the one in the header.

A header is recognised by two facts: the program's pointers point to one offset (a convention, see
graph/conventions.py), and the bytes before it contain the requested size. If no field contains the
size, a magic number identifies the header, but only if the offset is the same in blocks of all
sizes. Otherwise, structs with the same number before the links of a list would have a header.

A block has the header if all such fields are right, whether or not anything refers to it."""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Optional

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.graph.conventions import Convention
from findleaks.target.base import Piece, Range
from findleaks.target.ranges import range_at
from findleaks.types.sizes import SizeClasses
from findleaks.value_classes import NamedTuple

MOST_HEADER = 64  # bytes of a header
SAMPLE = 1 << 11  # blocks that are examined for one convention
LEAST_SHARE = 0.5  # share of these blocks in which a size must be right
LEAST_MAGIC_SHARE = 0.9  # share of these blocks that must have the same magic number
LEAST_MAGIC = 1 << 16  # smaller numbers are counters or flags
BATCH = 1 << 16  # blocks whose headers are read at once


class Field(NamedTuple):
    """A field of a header: `width` bytes at `offset`. `value`: its value in each header; 0 if it
    contains the requested size."""

    offset: int
    width: int
    value: int


class Header(NamedTuple):
    """A header of `size` bytes; `fields` identify it."""

    size: int
    fields: Sequence[Field]


class HeaderedBlocks(NamedTuple):
    """The blocks of a directory without their headers. Indices are those of the directory.

    `headers`: the bytes of each block's header."""

    blocks: Blocks
    headers: bytearray


class _Finder:
    def __init__(self, engine: Engine, blocks: Blocks, sizes: SizeClasses, pieces: Sequence[Piece], mapped: Sequence[Range]) -> None:
        self._engine, self._blocks, self._sizes = engine, blocks, sizes
        self._pieces, self._mapped = tuple(pieces), mapped
        self._least: dict[int, int] = {}  # by usable size: the smallest request

    def learn(self, convention: Convention) -> Optional[Header]:
        """Return the header of the blocks that a convention applies to, if it can be identified."""
        size = convention.offset
        sample = self._sample(convention)
        if not sample:
            return None
        data = self._read([address for address, _ in sample], size)
        order, word = self._engine.arch.byteorder, self._engine.arch.word
        magic = []
        for width in dict.fromkeys((word, 4)):
            for at in range(0, size, width):
                values = [int.from_bytes(one[at : at + width], order) for one in data]
                right = sum(self.is_request(value + size, usable) for value, (_, usable) in zip(values, sample))
                if right >= LEAST_SHARE * len(values):
                    return Header(size, [Field(at, width, 0)])
                value, count = Counter(values).most_common(1)[0]
                if count >= LEAST_MAGIC_SHARE * len(values) and value >= LEAST_MAGIC and range_at(self._mapped, value) is None:
                    magic.append(Field(at, width, value))
        return Header(size, magic) if magic and not convention.sizes else None

    def _sample(self, convention: Convention) -> list[tuple[int, int]]:
        """Return start and usable size of blocks of the convention's sizes, at equal distances."""
        wanted = frozenset(convention.sizes)
        least, greatest = (min(wanted), max(wanted)) if wanted else (convention.offset + 1, sys.maxsize)
        found = array("I", self._blocks.of_sizes(max(least, convention.offset + 1), greatest, len(self._blocks)))
        if len(wanted) > 1:
            found = array("I", (index for index, size in zip(found, self._blocks.columns_of(found).size) if size in wanted))
        columns = self._blocks.columns_of(found[:: max(1, len(found) // SAMPLE)])
        return list(zip(columns.address, columns.size))

    def _read(self, addresses: Sequence[int], size: int) -> list[bytes]:
        data, _ = self._engine.gather(self._pieces, addresses, size)
        return [bytes(data[at : at + size]) for at in range(0, len(data), size)]

    def is_request(self, wanted: int, usable: int) -> bool:
        """Whether a request for `wanted` bytes results in a block of `usable` bytes."""
        if usable not in self._least:
            self._least[usable] = self._sizes.least_request(usable)
        return self._least[usable] <= wanted <= usable

    def remove(self, headers: Sequence[Header], poll: Callable[[], None]) -> HeaderedBlocks:
        """Return all blocks without their headers."""
        arch = self._engine.arch
        made, found = self._engine.blocks(arch, arch.word), bytearray(len(self._blocks))
        for first in range(0, len(self._blocks), BATCH):
            poll()
            columns = self._blocks.columns(first, first + BATCH)
            starts, lengths = array("Q", columns.address), array("Q", columns.size)
            for header in headers:
                for at, data in enumerate(self._read(starts, header.size)):
                    if columns.state[at] == State.IN_USE and not found[first + at]:
                        request = self._request(header, data, lengths[at])
                        if request:
                            found[first + at] = header.size
                            starts[at], lengths[at] = starts[at] + header.size, request
            made.append(starts, lengths, columns.state)
        made.seal()
        return HeaderedBlocks(made, found)

    def _request(self, header: Header, data: bytes, usable: int) -> int:
        """Return the size that the program requested after a header; 0 if the block has no such
        header."""
        order = self._engine.arch.byteorder
        request = usable - header.size
        for offset, width, value in header.fields:
            number = int.from_bytes(data[offset : offset + width], order)
            if value and number != value:
                return 0
            if not value:
                if not self.is_request(number + header.size, usable):
                    return 0
                request = number
        return max(request, 0)


def remove_headers(
    engine: Engine,
    blocks: Blocks,
    sizes: SizeClasses,
    pieces: Sequence[Piece],
    mapped: Sequence[Range],
    conventions: Sequence[Convention],
    poll: Callable[[], None],
) -> HeaderedBlocks:
    """Return the blocks without the headers of these conventions. If there are no headers, return
    `blocks` itself, and an empty bytearray. `mapped`: all readable memory (sorted, disjoint)."""
    finder, word = _Finder(engine, blocks, sizes, pieces, mapped), engine.arch.word
    possible = [one for one in conventions if one.offset % word == 0 and 0 < one.offset <= MOST_HEADER]
    headers = [header for one in possible if (header := finder.learn(one)) is not None]
    return finder.remove(headers, poll) if headers else HeaderedBlocks(blocks, bytearray())
