"""Find large maps with few entries, which exist because a Go map never shrinks, and the types of
smaller maps.

A map is recognised by its structure, because global variables have no type without debug
information. Its type is known if its groups or buckets have a header, or if only one map type has
groups or buckets of the size that the objects show.

Sources: Go 1.24 to 1.26, src/internal/runtime/maps: map.go (Map), table.go (table); up to 1.23,
src/runtime/map.go (hmap, makeBucketArray); src/internal/abi: map_swiss.go, map_noswiss.go."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from typing import Optional

from findleaks.allocators.base import size_at
from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import NO_BLOCK
from findleaks.runtimes.go.moduledata import Program, list_types
from findleaks.runtimes.go.span_table import ObjectSpans
from findleaks.runtimes.go.stack_roots import StackRoots
from findleaks.runtimes.go.types import MAP, Type
from findleaks.target.interruptible import interruptible
from findleaks.value_classes import NamedTuple

HEAD = 48  # bytes of maps.Map and of hmap
CONTENTS = 16  # offset of the directory or of the buckets
_FLAGS, _EXTRA = 1 << 4, 24  # hmap.flags is smaller; bytes of mapextra
_SLOTS = 8  # of a group or bucket
_LEAST_SLOTS = 1 << 10  # smaller maps are not large
_LEAST_BITS = 4  # of hmap.B; fewer buckets have no overflow buckets beside them
_LEAST_TYPED = _SLOTS << _LEAST_BITS  # slots of maps of which the type is looked for
_MOST_OF_TABLE = 1 << 10  # slots of a table
_MAX_TABLES = 1 << 22
_BUCKET_SIZE = (82, 2)  # offset and bytes of MapType.BucketSize; of GroupSize:
_GROUP_SIZE = (80, 8)
_PAGE = 8 << 10
_LARGE = 32 << 10  # larger objects are rounded up to pages
_LOOK = 1 << 12  # words of stacks between two checks for Ctrl-C


class GoMap(NamedTuple):
    """A map. `address`: the address of its head. `variable`: the address of the global variable
    that refers to it, 0 if none does. `type`: the address of its type (0: unknown). `contents`: the
    address of its directory or buckets. `bytes`: the bytes of its groups or buckets."""

    address: int
    variable: int
    type: int
    contents: int
    entries: int
    slots: int
    bytes: int


class MapReader:
    """Reads maps by their structure. `blocks`: the objects of the heap. `header`: returns the type
    of an object that begins at an address, if it has a header, else 0. `reads_small`: whether to
    read maps that are not large, too. Of these, only those with headers have a type."""

    def __init__(self, memory: Memory, program: Program, blocks: Blocks, header: Callable[[int], int], reads_small: bool = False) -> None:
        self._least = _LEAST_TYPED if reads_small else _LEAST_SLOTS
        self._memory, self._program, self._blocks, self._header = memory, program, blocks, header
        self._is_classic = program.types.find("runtime.hmap") is not None
        self._types: Optional[list[tuple[Type, int]]] = None

    def read(self, head: int, variable: int = 0) -> Optional[GoMap]:
        """Return the map whose head is at this address; None if there is none."""
        words = self._memory.words(head, HEAD // 8) if self._size(head) == HEAD else None
        if words is None:
            return None
        return self._read_classic(head, variable, words) if self._is_classic else self._read_swiss(head, variable, words)

    def read_on_stack(self, head: int, words: Sequence[int]) -> Optional[GoMap]:
        """Return the map whose head consists of these words of a stack; None if they are not a
        head. The compiler places the head of a map on the stack if the map does not escape."""
        if not self._is_classic:
            return self._read_swiss(head, 0, words)
        # Any words may be on a stack. A map with buckets for overflow has a mapextra, which refers
        # to the next unused one of them, or to none.
        found = self._read_classic(head, 0, words) if words[1] & 0xFF < _FLAGS else None
        extra = self._memory.words(words[5], 3) if found is not None and self._size(words[5]) == _EXTRA else None
        if found is None or extra is None or not (extra[2] == 0 or words[2] < extra[2] < words[2] + found.bytes):
            return None
        return found if found.type else None

    def find_heads(self, words: Sequence[int]) -> Iterator[int]:
        """Yield the numbers of records that may be heads of maps. Nearly all other records are left
        out. `words`: those of all records, HEAD bytes each."""
        count, least = HEAD // 8, self._least
        columns = [words[at::count] for at in range(count)]
        if self._is_classic:
            for at, fields in enumerate(columns[1]):
                if fields & 0xFF < _FLAGS and least <= _SLOTS << (fields >> 8 & 0xFF):
                    yield at
            return
        # Two bytes are the depth and the shift, which is 64 - depth. There are 1 << depth tables.
        for at, (length, fields) in enumerate(zip(columns[3], columns[4])):
            if (fields & 0xFF) + (fields >> 8 & 0xFF) == 64 and length == 1 << (fields & 0xFF):
                yield at

    def _size(self, address: int) -> int:
        """Return the size of the object that begins at this address; 0 if none does."""
        return size_at(self._blocks, address)

    def _read_swiss(self, head: int, variable: int, words: Sequence[int]) -> Optional[GoMap]:
        used, _, directory, length, flags, _ = words
        room = self._contents(directory)
        if not max(self._least // _MOST_OF_TABLE, 1) <= length <= min(room // 8, _MAX_TABLES) or length != 1 << (flags & 0xFF):
            return None
        tables = dict.fromkeys(self._memory.words(directory, length) or ())
        slots = entries = size = 0
        type_ = None
        for table in tables:
            parts = self._memory.words(table, 4) if self._size(table) == 4 * 8 else None
            capacity = parts[0] >> 16 & 0xFFFF if parts is not None else 0
            groups = self._contents(parts[2]) if parts is not None else 0
            if parts is None or not groups or capacity != (parts[3] + 1) * _SLOTS:
                return None
            entries, slots, size = entries + (parts[0] & 0xFFFF), slots + capacity, size + groups
            is_large = length * capacity >= _LEAST_SLOTS
            type_ = type_ if type_ is not None else self._find_type(parts[2], groups, parts[3] + 1, _GROUP_SIZE, is_large)
        if entries != used or slots < self._least:
            return None
        return GoMap(head, variable, type_ or 0, directory, used, slots, size)

    def _read_classic(self, head: int, variable: int, words: Sequence[int]) -> Optional[GoMap]:
        count, bits = words[0], words[1] >> 8 & 0xFF
        room = self._contents(words[2])
        slots = _SLOTS << bits if bits < 40 else 0
        if not self._least <= slots <= room or count > 16 * slots:
            return None
        buckets = (1 << bits) + (1 << bits - _LEAST_BITS)  # with those for overflow
        type_ = self._find_type(words[2], room, buckets, _BUCKET_SIZE, slots >= _LEAST_SLOTS)
        return GoMap(head, variable, type_, words[2], count, slots, room)

    def _contents(self, address: int) -> int:
        """Return the bytes of the object whose contents begin at this address; 0 if there is none.
        A header may precede the contents."""
        return self._size(address) or max(self._size(address - 8) - 8, 0)

    def _find_type(self, contents: int, size: int, count: int, field: tuple[int, int], is_large: bool) -> int:
        """Return the address of the map type of which `count` groups fill an object, whose contents
        have `size` bytes; 0 if there is no such type, or more than one. The object of a map that is
        not large must have a header: many types would fit."""
        header = self._header(contents if self._size(contents) else contents - 8)
        if not header and not is_large:
            return 0
        fitting = [one for one, unit in self._map_types(field) if self._fits(unit * count, size)]
        if header:
            fitting = [one for one in fitting if list(self._program.types.words(one.address, 3)[2:]) == [header]]
        found = {one.name: one.address for one in fitting}
        return next(iter(found.values())) if len(found) == 1 else 0

    @staticmethod
    def _fits(wanted: int, size: int) -> bool:
        return wanted <= size and (size < wanted + _PAGE if size > _LARGE else size <= wanted + wanted // 7 + 16)

    def _map_types(self, field: tuple[int, int]) -> list[tuple[Type, int]]:
        """Return the map types of the program, and the bytes of their groups or buckets."""
        if self._types is None:
            self._types = []
            memory = self._memory
            for one in list_types(memory, self._program, MAP):
                size = memory.read(one.address + field[0], field[1])
                self._types.append((one, int.from_bytes(size, memory.arch.byteorder)))
        return self._types


def heads(blocks: Blocks, types: array[int], values: Iterable[int]) -> Iterator[int]:
    """Yield the addresses of objects with one of these type values."""
    known = frozenset(values)
    for index in compress(range(len(types)), map(known.__contains__, types)):
        yield blocks.address(index)


def find_stack_maps(
    reader: MapReader, memory: Memory, engine: Engine, blocks: Blocks, stacks: StackRoots, spans: ObjectSpans
) -> list[GoMap]:
    """Return the maps that `reader` reads on the stacks of goroutines."""
    words = stacks.find(spans.starts[0], spans.ends[-1]) if len(spans) else ()
    found = dict(interruptible(memory.target, words, _LOOK))
    indices = blocks.find_all(array("Q", found.values()))[0]
    known = [index != NO_BLOCK for index in indices]
    starts = blocks.columns_of(array("I", compress(indices, known))).address
    # A header may precede the contents of a map.
    places = sorted(place - CONTENTS for (place, value), start in zip(compress(found.items(), known), starts) if value - start in (0, 8))
    data, missing = read_records(memory.target, engine, array("Q", places), HEAD)
    heads_of, size = memory.arch.words(data), HEAD // 8
    possible = (at for at in interruptible(memory.target, reader.find_heads(heads_of), _LOOK) if at not in missing)
    read = (reader.read_on_stack(places[at], heads_of[at * size : (at + 1) * size]) for at in possible)
    return [one for one in read if one is not None]
