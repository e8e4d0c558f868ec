"""Walk all objects of V8's heap, from the start of each page's area to its end.

Parts of the area without objects are skipped: the unused rest of linear allocation areas, and the
unused part of the new space. If an object is damaged, or its map or its size is unknown, the page
may contain dead objects that V8 has not swept yet. Then its live objects are found by its marking
bitmap (see marks.py). Without a bitmap, the rest of the page is unread."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Optional

from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.engine.terms import NO_BLOCK
from findleaks.runtimes.v8.engine import (
    ASKED,
    COLUMNS,
    COUNTED,
    FIELDS,
    FIXED,
    GIVEN,
    MAP_WORD,
    POSITION,
    SHARED_END,
    SHARED_START,
    SIZE_COLUMNS,
    UP_TO_MAP,
    MapTable,
    ObjectWalk,
    Size,
    Step,
    size_by_count,
)
from findleaks.runtimes.v8.maps import Maps
from findleaks.runtimes.v8.marks import Marks, are_closed
from findleaks.runtimes.v8.metadata import TAG
from findleaks.runtimes.v8.sizes import ARRAYS
from findleaks.target.base import Piece, Range, Target
from findleaks.target.elf import occurrences
from findleaks.target.interruptible import interruptible
from findleaks.value_classes import NamedTuple

MOST_MAPS, MOST_WALKS = 1 << 20, 4
WORD = 8  # bytes; objects are aligned to it
_FEW = 4  # maps for which all objects are searched separately
LARGE = 4 << 20  # bytes: areas from this size on have one object, of which only the start is read
# Offset of the numbers of bytes of instructions and of metadata in Code of V8 11.3 (Node 20), where
# a code object has no size of its own: src/objects/code.h.
CODE, CODE_SIZES, CODE_HEADER, CODE_ALIGN = 8, 56, 16, 64


OWNED_ARRAYS = frozenset([*ARRAYS, "property_array"])
# Offset and width of the number of a Smi at offset 8, which is in the upper half of its word.
SMI_LENGTH, SMI_SHIFT = array("I", [12, 4]), 32


class Marked(NamedTuple):
    """The live objects of an area: their addresses ("Q"), which ascend, and sizes ("Q")."""

    starts: array[int]
    sizes: array[int]


class HeapObjects:
    """The objects in `areas`, which are read on creation. `unread` are parts of the areas whose
    objects are unknown. Arrays in `shared` memory belong to no single object. `headers`: see Marks.

    `blocks` has a block for each object, without free memory, and `numbers` ("I") the number of
    each object's map in `table`."""

    def __init__(
        self, target: Target, engine: Engine, maps: Maps, areas: Sequence[Range], shared: Range, headers: Mapping[int, int]
    ) -> None:
        self._target, self._engine, self._maps, self._memory = target, engine, maps, Memory(target)
        self.table, self.areas = MapTable(), areas
        self.unread: list[Range] = []
        self._shared, self._targets, self._owners = shared, array("Q"), array("I")
        self._marks = Marks(self._memory, headers, lambda word: self.table.find(word) < len(self.table))
        # The live objects of areas with dead ones, by the area's start
        self._marked: dict[int, Marked] = {}
        self.blocks, self.numbers = engine.blocks(target.arch, WORD), array("I")
        for _ in range(MOST_WALKS):
            self._add_maps()
            if self._walk():
                break
        self.blocks.seal()

    def _add_maps(self) -> None:
        """Add all maps, since objects of the kind UP_TO_MAP end at any map."""
        for word in self._maps.all_maps():
            if self.table.find(word) >= len(self.table):
                self._add(word)

    def _add(self, word: int) -> bool:
        """Add a map to the table. Returns False if the word refers to no map, or if the size of the
        map's objects is unknown."""
        size = self._maps.size(word) if len(self.table) < MOST_MAPS else None
        if size is not None:
            self.table.add(word, size, self._maps.array_fields(word), self._maps.is_free(word))
        return size is not None

    def _walk(self) -> bool:
        """Walk all areas. Returns False if the walk must be repeated: if new meta maps were found,
        objects of the kind UP_TO_MAP may have been read beyond their ends; if areas have dead
        objects, their live objects are in self._marked now."""
        self.table.clear_totals()
        walk, is_final = ObjectWalk(self.table), True
        walk.state[SHARED_START], walk.state[SHARED_END] = self._shared
        self.unread, self._targets, self._owners = [], array("Q"), array("I")
        self.blocks, self.numbers = self._engine.blocks(self._target.arch, WORD), array("I")
        wrong: list[Range] = []  # areas of which objects were left out
        for start, end in interruptible(self._target, self.areas):
            walk.set_range(start, end)
            if start in self._marked:
                self._list_marked(*self._marked[start])
                continue
            listed = array("Q")
            data = self._memory.read(start, end - start) if end - start < LARGE else b""
            if end - start >= LARGE:
                walk.state[POSITION] += self._add_large(start, end - start)
            piece = Piece(start, memoryview(data))
            while data:
                step = walk.run(self._engine, piece)
                self._targets += walk.targets[: walk.found]
                self._owners += walk.owners[: walk.found]
                listed += walk.starts[: walk.listed]
                self._list(walk.starts[: walk.listed], walk.sizes[: walk.listed], walk.maps[: walk.listed])
                if step == Step.FULL:
                    continue
                if step == Step.NEW_MAP:
                    word = walk.state[MAP_WORD]
                    is_final = not self._maps.add_meta(word) and is_final
                    if word and self._add(word):
                        continue
                elif step == Step.ASK:
                    walk.state[GIVEN] = self._size_of_code(walk.position)
                    if walk.state[GIVEN]:
                        continue
                break
            if walk.position < end:
                self.unread.append(Range(walk.position, end))
            if walk.position < end or (self._marks.is_known and not set(self._marks.starts(Range(start, end))).issubset(listed)):
                wrong.append(Range(start, end))
        return not self._find_marked(wrong) and is_final

    def _find_marked(self, wrong: Sequence[Range]) -> bool:
        """Add the live objects of these areas to self._marked. Returns whether there are any."""
        if wrong and not self._marks.is_known:
            self._marks.derive(self.areas, wrong)
        found = {area.start: self._read_marked(area) for area in interruptible(self._target, wrong) if self._marks.is_known}
        self._marked.update({start: objects for start, objects in found.items() if objects is not None})
        return any(objects is not None for objects in found.values())

    def _read_marked(self, area: Range) -> Optional[Marked]:
        """Return the marked objects of an area; None if there are none, or if they cannot be the
        live objects."""
        starts = array("Q", self._marks.starts(area))
        sizes = array("Q", (self._size_at(start, end) for start, end in zip(starts, [*starts[1:], area.end])))
        words = self._memory.words(area.start, (area.end - area.start) // WORD) or ()
        return Marked(starts, sizes) if starts and all(sizes) and are_closed(words, area.start, starts, sizes) else None

    def _list_marked(self, starts: array[int], sizes: array[int]) -> None:
        """List the live objects of an area with dead ones, and the references to their arrays."""
        for start, size in zip(starts, sizes):
            number = self._count(start, size)
            row = self.table.rows[COLUMNS * number : COLUMNS * (number + 1)]
            for field in row[COLUMNS - FIELDS :]:
                word = self._memory.word(start + field) or 0 if field and field + WORD <= size else 0
                if word & 3 == TAG and not self._shared.start <= word < self._shared.end:
                    self._targets.append(word)
                    self._owners.append(number)

    def _list(self, starts: array[int], sizes: array[int], numbers: array[int]) -> None:
        """Add objects, which are above all previous ones."""
        self.blocks.append(starts, sizes, bytes(len(starts)))
        self.numbers += numbers

    def _add_large(self, start: int, most: int) -> int:
        """Count the only object of a large area. Returns its size; 0 if it cannot be read."""
        found = self._size_at(start, start + most)
        if found:
            self._count(start, found)
        return found

    def _count(self, start: int, size: int) -> int:
        """Count and list an object, which is above all previous ones. Returns the number of its
        map."""
        number = self.table.find(self._memory.word(start) or 0)
        self.table.firsts[number] = self.table.firsts[number] or start
        self.table.totals[2 * number] += 1
        self.table.totals[2 * number + 1] += size
        self._list(array("Q", [start]), array("Q", [size]), array("I", [number]))
        return number

    def _size_at(self, start: int, end: int) -> int:
        """Return the size of the object at `start`, which ends at `end` at the latest; 0 if it
        cannot be read."""
        word = self._memory.word(start) or 0
        if not word or (self.table.find(word) >= len(self.table) and not self._add(word)):
            return 0
        number = self.table.find(word)
        size = Size(*self.table.rows[COLUMNS * number : COLUMNS * number + SIZE_COLUMNS])
        found = size.base if size.kind == FIXED else self._size_of_code(start) if size.kind == ASKED else 0
        if size.kind == COUNTED:
            values = [self._memory.read(start + at, width) for at, width in ((size.at, size.width), (size.second, 4))]
            found = size_by_count(size, *(int.from_bytes(value, self._memory.arch.byteorder) for value in values)) if all(values) else 0
        elif size.kind == UP_TO_MAP:
            words = self._memory.words(start, (end - start) // WORD) or ()
            maps = (at for at, one in enumerate(words) if at and one and self.table.find(one) < len(self.table))
            found = WORD * next(maps, len(words))
        return found if found % WORD == 0 and found <= end - start else 0

    def _size_of_code(self, address: int) -> int:
        """Return the size of the code object at this address in V8 11.3; 0 if it cannot be read."""
        code = self._memory.word(address + CODE)
        sizes = [self._memory.int32(code - TAG + CODE_SIZES + at) for at in (0, 4)] if code else []
        known = [size for size in sizes if size is not None]
        return -(-(CODE_HEADER + sum(known)) // CODE_ALIGN) * CODE_ALIGN if len(known) == 2 else 0

    def array_bytes(self) -> Counter[int]:
        """Return the bytes of arrays that each belong to one object, by the number of its map.
        Arrays to which two objects refer are left out: they are shared until one is written to."""
        targets, owners = self._engine.sum_by_value(self._targets, array("Q", self._owners))
        _, counts = self._engine.sum_by_value(self._targets, array("Q"))
        places = array("Q", (word - TAG for word in targets))
        data, missing = read_records(self._target, self._engine, places, 16)
        words = self._memory.arch.unpack(bytes(data))
        rows = {word: self._array_row(number) for number, word in enumerate(self.table.words)}
        found: Counter[int] = Counter()
        for at, (word, length) in enumerate(zip(words[::2], words[1::2])):
            row = rows.get(word) if counts[at] == 1 and at not in missing else None
            if row is not None:
                found[owners[at]] += size_by_count(row, length >> SMI_SHIFT)
        return found

    def _array_row(self, number: int) -> Optional[Sequence[int]]:
        """Return the row of a map of arrays, whose length is a Smi after the map; else None."""
        row = self.table.rows[COLUMNS * number : COLUMNS * (number + 1)]
        data = self._maps.data(self.table.words[number]) if row[0] == COUNTED and row[3:5] == SMI_LENGTH else None
        is_array = data is not None and OWNED_ARRAYS.intersection(self._maps.names_of(data.instance_type))
        return row if is_array else None

    def of_maps(self, numbers: Iterable[int]) -> array[int]:
        """Return the indices ("I", ascending) of the objects that have one of these maps."""
        wanted = {number for number in numbers if self.table.totals[2 * number]}
        if len(wanted) > _FEW:
            return array("I", (index for index, number in enumerate(self.numbers) if number in wanted))
        data, found = self.numbers.tobytes(), array("I")
        for number in wanted:
            places = occurrences(data, array("I", [number]).tobytes())
            found.extend(at // 4 for at in places if at % 4 == 0)
        return array("I", sorted(found))

    def indices_of(self, addresses: Sequence[int]) -> list[int]:
        """Return the index of the object that starts at each address; NO_BLOCK if there is none."""
        indices, _ = self.blocks.find_all(addresses)
        starts = self.blocks.columns_of(indices).address
        return [index if start == one else NO_BLOCK for one, index, start in zip(addresses, indices, starts)]
