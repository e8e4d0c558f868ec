"""List the objects of the Java heap by class.

In each space, objects are contiguous from the bottom to the top, except for the unused parts of
threads' buffers (spaces.py). If an object is damaged, the walk continues at the next region or
buffer."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

from findleaks.engine.contract import Engine
from findleaks.engine.terms import NO_BLOCK
from findleaks.errors import Interrupted
from findleaks.runtimes.jvm.engine import CLASS_WORD, END, LIMIT, MIRROR, ClassTable, ObjectWalk, Step, select_objects
from findleaks.runtimes.jvm.java_classes import ClassReader, JavaClass
from findleaks.runtimes.jvm.layout import ObjectLayout
from findleaks.runtimes.jvm.spaces import ObjectRange
from findleaks.runtimes.jvm.tables import Tables
from findleaks.target.base import Piece, Range
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import merge_ranges
from findleaks.value_classes import NamedTuple

_MOST_CLASSES = 1 << 21
_CHUNK = 8 << 20  # bytes of objects that are read together
_HEADER = 256  # first bytes of an object; they determine its size


class ClassTotals(NamedTuple):
    """The objects of one class."""

    java_class: JavaClass
    objects: int
    bytes: int


class JavaObjects:
    """The objects of a Java heap, which are read when this instance is created. `ranges`: the
    ranges that contain them, ascending.

    `blocks` has a block for each object, in ascending order. `classes` has the classes of the
    objects, and `numbers` ("I") the number of each object's class. `unread_ranges` is memory whose
    objects are unknown: each range reaches from a damaged object to the next range."""

    def __init__(self, tables: Tables, engine: Engine, layout: ObjectLayout, ranges: Sequence[ObjectRange]) -> None:
        self._tables, self._engine, self.layout, self._ranges = tables, engine, layout, ranges
        self.reader = ClassReader(tables)
        self.table = ClassTable()
        self.classes: list[JavaClass] = []
        self.numbers = array("I")
        self.unread_ranges: list[Range] = []
        self.blocks = engine.blocks(tables.target.arch, min(layout.header.alignment, 16))
        self._walk()
        self.blocks.seal()

    def _walk(self) -> None:
        """Read the objects of all ranges."""
        target = self._tables.target
        walk = ObjectWalk(self.layout.header, self.layout.references, self.table)
        position = 0
        for start, end, limit, step, chunk in self._ranges:
            position = max(position, start)
            if position >= end:
                continue
            walk.set_range(position, end, limit, step, chunk)
            for piece in interruptible(target, target.pieces(position, end)):
                if piece.address > walk.position:
                    break
                if piece.address + len(piece.data) > walk.position and not self._walk_piece(walk, piece):
                    break
            if walk.position < end:
                self.unread_ranges.append(Range(walk.position, end))
                walk.skip_to(end)
            position = walk.position

    def _walk_piece(self, walk: ObjectWalk, piece: Piece) -> bool:
        """Walk the objects that start in a piece. Returns False if one is damaged."""
        while True:
            step = walk.run(self._engine, piece)
            self._take(walk)
            if step == Step.CUT:
                data = self._tables.memory.read(walk.position, min(_HEADER, walk.state[LIMIT] - walk.position))
                if piece.address == walk.position or not data:
                    return False
                end, walk.state[END] = walk.state[END], walk.position + 1
                sound = self._walk_piece(walk, Piece(walk.position, memoryview(data)))
                walk.state[END] = end
                return sound
            if step == Step.NEW_CLASS and not self._add_class(walk.state[CLASS_WORD]):
                return False
            if step in (Step.DONE, Step.DAMAGED):
                return step == Step.DONE

    def _take(self, walk: ObjectWalk) -> None:
        count = walk.found
        if count:
            self.blocks.append(walk.starts[:count], walk.sizes[:count], bytes(count))
            self.numbers += walk.numbers[:count]

    def _add_class(self, word: int) -> bool:
        found = self.reader.read(self.layout.klass(word)) if word and len(self.classes) < _MOST_CLASSES else None
        if found is None:
            return False
        self.table.add(word, found.row, found.maps)
        self.classes.append(found)
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
        """Yield the memory of the objects, ascending. Only a large array may be in several
        pieces."""
        blocks, target = self.blocks, self._tables.target
        for start, end in merge_ranges(Range(one.start, one.limit) for one in self._ranges):
            while start < end:
                if target.interrupted():
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
