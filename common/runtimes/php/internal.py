"""Read objects of PHP's internal classes that contain values: collections, generators, fibers and
weak references.

In the block of an object, the data of its class precedes the zend_object. In generators and fibers,
the data follows it.

Sources: ext/spl/spl_observer.c, spl_fixedarray.c, spl_array.c, spl_dllist.c, spl_heap.c,
spl_directory.c and .h, Zend/zend_weakrefs.c, zend_generators.h, zend_fibers.h, zend_closures.c of
PHP 8.1 to 8.4, 64-bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.base import size_at
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.runtimes.php.engine import VALUE
from findleaks.runtimes.php.objects import Objects, class_name
from findleaks.runtimes.php.tables import BUCKET
from findleaks.runtimes.php.tables import TABLE as TABLE_BYTES
from findleaks.target.base import Range
from findleaks.value_classes import NamedTuple

TABLE, FIXED, ARRAY_OBJECT, LIST, HEAP, WEAK, GENERATOR, FIBER, FILE, CLOSURE = range(10)
COUNTS = {LIST: 16, HEAP: 32}  # offset of the number of values in the structure of a list or heap
WEAK_MAP = "WeakMap"
KINDS = {
    "SplObjectStorage": TABLE,
    WEAK_MAP: TABLE,
    "SplFixedArray": FIXED,
    "ArrayObject": ARRAY_OBJECT,
    "ArrayIterator": ARRAY_OBJECT,
    "SplDoublyLinkedList": LIST,
    "SplHeap": HEAP,
    "SplPriorityQueue": HEAP,
    "WeakReference": WEAK,
    "Generator": GENERATOR,
    "Fiber": FIBER,
    "SplFileInfo": FILE,
    "Closure": CLOSURE,
}
PARENT = 16  # offset of the parent in a zend_class_entry
MOST_PARENTS = 32
LOOK = 64  # elements of a table of which the keys are compared with addresses of objects
NEXT_KEY = 40  # offset in a HashTable of the next free number: the largest key so far, plus one
SLOT = 4  # bytes of a hash slot
PACKED = 4  # flag of a table (HASH_FLAG_PACKED): the keys are small numbers
SMALLEST_PAGE = 1 << 10  # bytes of a page of a fiber's stack
END_OF_FILE = 184  # offset in a spl_filesystem_object behind the members of open files
END_OF_GENERATOR = 272  # bytes of a zend_generator
ENDS_OF_CLOSURES = {"8.1": 328, "8.2": 336, "8.3": 328, "8.4": 344}  # bytes of a zend_closure
END_OF_OBJECT = 56  # bytes of a zend_object with one property, as in a zend_generator
HANDLE = 1  # number of the word of a zend_fiber, after its object, with the native stack pointer
SAVED_WORDS = 64  # words of a native stack that may contain the state of the engine
FIBER_WORDS = 32  # words of a zend_fiber that are searched for an address in its stack


class Collection(NamedTuple):
    """The values that an object contains.

    - `storage`: the address of the block with the values, or of the structure with their number.
    - `first`: the address of the first value.
    - `places`: the number of places for values; 0 if the values are not in one array.
    - `stride`: the bytes from one place to the next.
    - `length`: the number of values."""

    storage: int
    first: int
    places: int
    stride: int
    length: int


class InternalObjects:
    """The objects of the classes in KINDS, and of classes that extend these."""

    def __init__(self, memory: Memory, blocks: Blocks, objects: Objects) -> None:
        self._memory, self._blocks, self._objects = memory, blocks, objects

    @cached_property
    def _bases(self) -> Mapping[int, str]:
        """Map the number of a class to the name in KINDS of this class or of its nearest parent."""
        named = ((number, self._base(entry)) for number, entry in enumerate(self._objects.classes))
        return {number: base for number, base in named if base}

    def _base(self, entry: int) -> str:
        for _ in range(MOST_PARENTS):
            name = class_name(self._memory, entry) if entry else ""
            if not name or name in KINDS:
                return name
            entry = self._memory.word(entry + PARENT) or 0
        return ""

    def _places(self, *kinds: int) -> Iterator[int]:
        """Yield the number of each object of these kinds. Only 64-bit programs are read."""
        bases = {number for number, base in self._bases.items() if KINDS[base] in kinds}
        if bases and self._memory.size == 8:
            yield from (place for place, number in enumerate(self._objects.numbers) if number in bases)

    def _each(self, kind: int) -> Iterator[tuple[int, int]]:
        """Yield the address of each object of this kind, and the address of its block."""
        for place in self._places(kind):
            yield self._objects.addresses[place], self._blocks.address(self._objects.blocks[place])

    def is_array_object(self, place: int) -> bool:
        """Whether object number `place` is an ArrayObject or ArrayIterator whose block begins with
        the zval of its array."""
        base = self._bases.get(self._objects.numbers[place], "")
        return KINDS.get(base) == ARRAY_OBJECT and self._objects.addresses[place] > self._blocks.address(self._objects.blocks[place])

    def file_names(self) -> Iterator[Range]:
        """Yield the unused memory of objects of SplFileInfo and its subclasses. It is for the name
        of a directory's entry, of up to 4 KiB, and PHP does not clear it."""
        for address, start in self._each(FILE):
            if start + END_OF_FILE < address:
                yield Range(start + END_OF_FILE, address)

    def unused_ends(self, version: str) -> Iterator[Range]:
        """Yield the memory after each generator and each closure in its block, which PHP does not
        clear. `version`: that of PHP, such as "8.2.1"."""
        sizes = {GENERATOR: END_OF_GENERATOR, CLOSURE: ENDS_OF_CLOSURES.get(".".join(version.split(".")[:2]), 0)}
        for kind, size in sizes.items():
            for address, start in self._each(kind) if size else ():
                end = start + size_at(self._blocks, start)
                if address == start and end > start + size:
                    yield Range(start + size, end)

    def collection(self, place: int) -> Optional[Collection]:
        """Return the values of object number `place`; None if it is not a collection, or is
        empty."""
        base = self._bases.get(self._objects.numbers[place])
        if base is None:
            return None
        start = self._blocks.address(self._objects.blocks[place])
        return self._collection(KINDS[base], start, self._objects.addresses[place] - start)

    def collections(self) -> Iterator[Collection]:
        """Yield the values of each object that has them in one array (TABLE and FIXED)."""
        found = map(self.collection, self._places(TABLE, FIXED))
        yield from (one for one in found if one is not None)

    def _collection(self, kind: int, start: int, size: int) -> Optional[Collection]:
        """Return the values of an object whose class has `size` bytes of data at `start`."""
        memory = self._memory
        if kind == TABLE and size >= TABLE_BYTES:
            head = memory.members(start, "IIIIPIII") or (0,) * 8
            storage = head[4] - SLOT * (-head[3] & 0xFFFFFFFF)
            bytes_left = size_at(self._blocks, storage) - (head[4] - storage)
            # Since 8.2, a table whose keys are small numbers has only the values.
            stride = VALUE if head[2] & PACKED and head[7] * BUCKET > bytes_left else BUCKET
            if 0 < head[6] <= head[5] <= head[7] and head[5] * stride <= bytes_left:
                return Collection(storage, head[4], head[5], stride, head[6])
        if kind == FIXED and size >= 16:
            length, elements = memory.words(start, 2) or (0, 0)
            if 0 < length * VALUE <= size_at(self._blocks, elements):
                return Collection(elements, elements, length, VALUE, length)
        if kind in COUNTS and size >= 8:
            values = memory.word(start) or 0
            length = memory.int32(values + COUNTS[kind]) or 0
            if 0 < length < 1 << 31 and size_at(self._blocks, values):
                return Collection(values, values, 0, VALUE, length)
        return None

    def weak_words(self, tables: Iterable[int]) -> Iterator[Range]:
        """Yield the words that refer to objects, but do not keep them alive. `tables` are addresses
        at which the PHP engine may have a table. One of these is the table of weak references. The
        keys of this table and of WeakMaps are the addresses of objects (8.1), or these addresses
        divided by 8."""
        for address, start in self._each(WEAK):
            if address - start >= 8:
                yield Range(start, start + 8)
        if not any(KINDS[base] == WEAK or base == WEAK_MAP for base in self._bases.values()):
            return
        objects = set(self._objects.addresses)
        for start in tables:
            one = self._collection(TABLE, start, TABLE_BYTES)
            if one is not None and any(key in objects or 8 * key in objects for key in self._keys(one)):
                yield Range(one.first, one.first + one.places * BUCKET)
                yield Range(start + NEXT_KEY, start + NEXT_KEY + 8)
        for place, number in enumerate(self._objects.numbers):
            one = self.collection(place) if self._bases.get(number) == WEAK_MAP else None
            if one is not None and any(key in objects for key in self._keys(one)):
                start = self._blocks.address(self._objects.blocks[place])
                keys = range(one.first + VALUE, one.first + one.places * BUCKET, BUCKET)
                yield from (Range(at, at + 8) for at in (start + NEXT_KEY, *keys))

    def _keys(self, table: Collection) -> Iterator[int]:
        """Yield the keys of the first elements of a table whose keys are stored and are numbers."""
        for at in range(min(table.places, LOOK) if table.stride == BUCKET else 0):
            yield self._memory.word(table.first + at * BUCKET + VALUE) or 0

    def frames(self) -> Iterator[tuple[int, Range]]:
        """Yield the frame of each generator, with the range of its block."""
        for address, _ in self._each(GENERATOR):
            frame = self._memory.word(address + END_OF_OBJECT) or 0
            size = size_at(self._blocks, frame)
            if size:
                yield frame, Range(frame, frame + size)

    def stacks(self) -> Iterator[tuple[int, Range, Sequence[Range]]]:
        """Yield the innermost frame of each fiber, with the page of its stack, and the words that
        contain the end of this page. A page begins with its top, its end and the address of the
        previous page. In the newest page, the stored top is out of date. The native stack of a
        suspended fiber also contains the end. Another block may begin at this address."""
        for address, _ in self._each(FIBER):
            words = self._memory.words(address + END_OF_OBJECT, FIBER_WORDS) or ()
            for word in words:
                page = self._page(word) if word >= SMALLEST_PAGE else None
                if page is not None:
                    native = words[HANDLE] if words[HANDLE] % 8 == 0 else 0
                    saved = (self._memory.words(native, SAVED_WORDS) or ()) if native else ()
                    ends = [page.start + 8, *(native + 8 * at for at, value in enumerate(saved) if value == page.end)]
                    yield max(one for one in words if page.start <= one < page.end), page, [Range(at, at + 8) for at in ends]
                    break

    def _page(self, address: int) -> Optional[Range]:
        """Return the page of a stack of frames that contains an address."""
        index = self._blocks.find(address)
        size = self._blocks.size(index) if index >= 0 else 0
        if size < SMALLEST_PAGE:
            return None
        start = self._blocks.address(index)
        top, end = self._memory.words(start, 2) or (0, 0)
        return Range(start, end) if start < top <= end == start + size else None
