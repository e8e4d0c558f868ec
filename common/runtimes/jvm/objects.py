"""List the objects of the Java heap by class.

In each space, objects are contiguous from the bottom to the top, except for the unused parts of
threads' buffers (spaces.py). If an object is damaged, the walk continues at the next region or
buffer."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from findleaks.engine.contract import Engine
from findleaks.engine.terms import NO_BLOCK
from findleaks.errors import Interrupted
from findleaks.runtimes.jvm.engine import (
    CLASS_WORD,
    END,
    LIMIT,
    MIRROR,
    MOST_NARROW,
    MOVED,
    MOVED_BITS,
    ClassTable,
    ObjectWalk,
    Step,
    select_objects,
)
from findleaks.runtimes.jvm.java_classes import ClassReader, JavaClass
from findleaks.runtimes.jvm.layout import ObjectLayout
from findleaks.runtimes.jvm.references import NO_COLORS, Moves
from findleaks.runtimes.jvm.relocation import Relocation
from findleaks.runtimes.jvm.spaces import ObjectRange
from findleaks.runtimes.jvm.tables import Tables
from findleaks.target.base import Piece, Range
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import merge_ranges, subtract
from findleaks.value_classes import NamedTuple

_MOST_CLASSES = 1 << 21
_CHUNK = 8 << 20  # bytes of objects that are read together
# Factor for the bytes of the heap in Blocks.reserve: objects are smaller than allocators' blocks.
_RESERVED = 2
_HEADER = 256  # first bytes of an object; they determine its size


class ClassTotals(NamedTuple):
    """The objects of one class."""

    java_class: JavaClass
    objects: int
    bytes: int


class JavaObjects:
    """The objects of a Java heap. They are read when this instance is created. `ranges`: the ranges
    of memory that contain objects, ascending.

    `blocks` has a block for each object, in ascending order. `classes` has the classes of the
    objects. `numbers` ("H" or "I") has for each object the index of its class in `classes`.
    `unread_ranges` is memory whose objects are unknown, such as the memory from a damaged object to
    the end of a range. `moves`: objects that Shenandoah has moved, while their previous memory
    still exists (`has_moves`). Their previous copies are not among the objects."""

    def __init__(
        self, tables: Tables, engine: Engine, layout: ObjectLayout, ranges: Sequence[ObjectRange], has_moves: bool = False
    ) -> None:
        self._tables, self._engine, self.layout, self._ranges = tables, engine, layout, ranges
        self._relocation, self._has_moves = tables.relocation or Relocation(), has_moves
        self._moved_here = array("Q", sorted({*layout.references.colors.young.now, *layout.references.colors.old.now}))
        self.moves = Moves(array("Q"), array("Q"))
        self.reader = ClassReader(tables)
        self.table = ClassTable()
        self.classes: list[JavaClass] = []
        self.numbers = array("H")
        self.unread_ranges: list[Range] = []
        reserved = _RESERVED * sum(one.end - one.start for one in ranges)
        self._main_walk = ObjectWalk(layout.header, layout.references, self.table)
        self.blocks = engine.blocks(tables.target.arch, min(layout.header.alignment, 16), reserved)
        self._walk()
        self.blocks.seal()

    def _walk(self) -> None:
        """Read the objects of all ranges."""
        walk = self._main_walk
        if self._has_moves:
            walk.record_moved()
        position = 0
        for start, end, limit, step, chunk, least in self._ranges:
            self._least = least
            position = max(position, start)
            if position >= end:
                continue
            walk.set_range(position, end, limit, step, chunk)
            self._walk_range(walk, end)
            while walk.position < end:
                following = self._next_known(walk.position, end)
                self.unread_ranges.append(Range(walk.position, following))
                walk.skip_to(following)
                self._walk_range(walk, end)
            position = walk.position
        self.unread_ranges = merge_ranges([*self.unread_ranges, *subtract(self._relocation.moving, self.ranges)])

    def _walk_range(self, walk: ObjectWalk, end: int) -> None:
        """Continue the walk to the end of a range, or to a damaged object."""
        target = self._tables.target
        for piece in interruptible(target, target.pieces(walk.position, end)):
            if piece.address > walk.position:
                return
            if piece.address + len(piece.data) > walk.position and not self._walk_piece(walk, piece):
                return

    def _next_known(self, address: int, end: int) -> int:
        """Return the next address at which an object is known to begin. While the collector copies
        objects to a page or region, some objects are incomplete and cannot be walked. Then the walk
        continues at the address that this method returns."""
        at = bisect_right(self._moved_here, address)
        return min(self._moved_here[at], end) if at < len(self._moved_here) else end

    def _walk_piece(self, walk: ObjectWalk, piece: Piece) -> bool:
        """Walk the objects that start in a piece. Returns False if one is damaged."""
        while True:
            step = walk.run(self._engine, piece)
            if not self._take(walk):
                return False
            if step == Step.CUT:
                data = self._tables.memory.read(walk.position, min(_HEADER, walk.state[LIMIT] - walk.position))
                if piece.address == walk.position or not data:
                    return False
                end, walk.state[END] = walk.state[END], walk.position + 1
                sound = self._walk_piece(walk, Piece(walk.position, memoryview(data)))
                walk.state[END] = end
                return sound
            if step == Step.NEW_CLASS and not self._add_class(walk):
                return False
            if step == Step.MOVED_HEADER and not self._skip_moved(walk):
                return False
            if step in (Step.DONE, Step.DAMAGED):
                return step == Step.DONE

    def _take(self, walk: ObjectWalk) -> bool:
        """Add the objects that one call of `walk.run` found. Returns False if an object is too
        small for its page."""
        for at in range(0, 2 * walk.state[MOVED], 2):
            self._add_move(walk.moved[at], walk.moved[at + 1])
        count = walk.found
        if not count:
            return True
        starts, sizes, numbers = walk.starts[:count], walk.sizes[:count], walk.numbers[:count]
        sound = next((at for at, size in enumerate(sizes) if size <= self._least), count) if self._least else count
        if sound < count:
            self._uncount(sizes[sound:], numbers[sound:])
            walk.skip_to(starts[sound])
            starts, sizes, numbers = starts[:sound], sizes[:sound], numbers[:sound]
        copies = self._relocation.copies
        low, high = (bisect_left(copies, starts[0]), bisect_right(copies, starts[-1])) if starts else (0, 0)
        if low < high:
            starts, sizes, numbers = self._without(copies[low:high], starts, sizes, numbers)
        self.blocks.append(starts, sizes, bytes(len(starts)))
        self.numbers += numbers
        return sound == count

    def _add_move(self, before: int, now: int) -> None:
        if self._ranges[0].start <= now < self._ranges[-1].end and now != before and now % self.layout.header.alignment == 0:
            self.moves.before.append(before)
            self.moves.now.append(now)
        else:
            self.unread_ranges.append(Range(before, before + self.layout.header.alignment))

    def _skip_moved(self, walk: ObjectWalk) -> bool:
        """Skip a moved object whose header has only the new address. Its size is that of the object
        there. Returns False if there is no such object. Raises Interrupted."""
        if self._tables.target.is_interrupted():
            raise Interrupted
        now = (self._tables.memory.word(walk.position) or 0) & ~MOVED_BITS
        size = self._size_at(now)
        if not 0 < size <= walk.state[LIMIT] - walk.position:
            return False
        self._add_move(walk.position, now)
        walk.skip_to(walk.position + size)
        return True

    def _size_at(self, address: int) -> int:
        """Return the size of the object at an address, 0 if there is none."""
        walk, limit = self._single_walk, self._ranges[-1].limit
        data = self._tables.memory.read(address, _HEADER) if address < limit else b""
        walk.set_range(address, address + 1, limit)
        while data:
            step = walk.run(self._engine, Piece(address, memoryview(data)))
            if walk.found:
                self._uncount(walk.sizes[:1], walk.numbers[:1])
                return walk.sizes[0]
            if step != Step.NEW_CLASS or not self._add_class(walk):
                break
        return 0

    @cached_property
    def _single_walk(self) -> ObjectWalk:
        """A walk for single objects."""
        walk = ObjectWalk(self.layout.header, self.layout.references, self.table)
        walk.widen()
        return walk

    def _uncount(self, sizes: Sequence[int], numbers: Sequence[int]) -> None:
        for size, number in zip(sizes, numbers):
            self.table.totals[2 * number] -= 1
            self.table.totals[2 * number + 1] -= size

    def _without(
        self, copies: Sequence[int], starts: array[int], sizes: array[int], numbers: array[int]
    ) -> tuple[array[int], array[int], array[int]]:
        """Leave out previous copies of objects that were moved, and do not count them."""
        previous, kept = set(copies), [array("Q"), array("Q"), array(numbers.typecode)]
        for one in zip(starts, sizes, numbers):
            if one[0] in previous:
                self._uncount(one[1:2], one[2:])
                continue
            for column, value in zip(kept, one):
                column.append(value)
        return kept[0], kept[1], kept[2]

    def _add_class(self, walk: ObjectWalk) -> bool:
        word = walk.state[CLASS_WORD]
        found = self.reader.read(self.layout.klass(word)) if word and len(self.classes) < _MOST_CLASSES else None
        if found is None:
            return False
        self.table.add(word, found.row, found.maps)
        self.classes.append(found)
        if len(self.classes) == MOST_NARROW + 1:
            self._main_walk.widen()
            self.numbers = array("I", self.numbers)
        return True

    @property
    def unread(self) -> int:
        """Bytes of the heap whose objects are unknown."""
        return sum(end - start for start, end in self.unread_ranges)

    @property
    def ranges(self) -> list[Range]:
        """The ranges in which objects start, sorted and disjoint."""
        return merge_ranges(Range(one.start, one.end) for one in self._ranges)

    @property
    def bounds(self) -> Range:
        """The range from the first object to the end of the last one."""
        blocks, last = self.blocks, len(self.blocks) - 1
        return Range(blocks.address(0), blocks.address(last) + blocks.size(last)) if last >= 0 else Range(0, 0)

    def index_of(self, address: int) -> int:
        """Return the index of the object that begins at this address, or NO_BLOCK."""
        found = self.blocks.lookup(address) if address else None
        return found[0] if found is not None and found[1] == address else NO_BLOCK

    def of_classes(self, numbers: Iterable[int]) -> array[int]:
        """Return the indices ("I", ascending) of the objects of these classes."""
        marks, count = bytearray(len(self.classes)), 0
        for number in numbers:
            marks[number] = 1
            count += self.table.totals[2 * number]
        return select_objects(self._engine, self.numbers, marks, count)

    def name_of(self, index: int) -> str:
        """Return the name of an object's class. For the mirror of a class A, this is
        "java.lang.Class of A"."""
        found = self.classes[self.numbers[index]]
        offset = self._tables.int32("java_lang_Class", "_klass_offset")
        if found.kind != MIRROR or not offset:
            return found.name
        klass = self._tables.memory.word(self.blocks.address(index) + offset)
        name = self.reader.name(klass) if klass else ""
        return f"{found.name} of {name}" if name else found.name

    def pieces(self) -> Iterator[Piece]:
        """Yield the memory of the objects, ascending. Only a large array may be in several pieces.
        Raises Interrupted."""
        blocks, target = self.blocks, self._tables.target
        for start, end in merge_ranges(Range(one.start, one.limit) for one in self._ranges):
            while start < end:
                if target.is_interrupted():
                    raise Interrupted
                index = blocks.at_or_after(min(start + _CHUNK, end))
                stop = min(blocks.address(index), end) if index < len(blocks) else end
                pieces = list(target.pieces(start, stop))
                data = self._tables.memory.read(start, stop - start) if len(pieces) > 1 and stop - start < 2 * _CHUNK else b""
                yield from [Piece(start, memoryview(data))] if data else pieces
                start = stop

    def by_class(self) -> Iterator[ClassTotals]:
        """Yield the objects of each class."""
        totals = self.table.totals
        yield from map(ClassTotals, self.classes, totals[::2], totals[1::2])


def read_objects(tables: Tables, engine: Engine, layout: ObjectLayout, ranges: Sequence[ObjectRange], has_moves: bool) -> JavaObjects:
    """Return the objects of a Java heap. `has_moves`: whether Shenandoah may be moving objects.

    References may still contain previous addresses of moved objects, so the format of references
    gets their new addresses. If some objects cannot be read, the new addresses are also needed to
    find the objects after these."""
    objects = JavaObjects(tables, engine, layout, ranges, has_moves)
    if not objects.moves.before:
        return objects
    tables.references = layout.references._replace(colors=NO_COLORS._replace(young=objects.moves))
    layout = layout._replace(references=tables.references)
    if objects.unread_ranges:
        return JavaObjects(tables, engine, layout, ranges, has_moves)
    objects.layout = layout
    return objects
