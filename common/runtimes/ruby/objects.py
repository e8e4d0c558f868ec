"""List Ruby's objects as nodes that refer to one another: slots, and storage outside of slots.

Only the part in use is a node: a Hash's table up to the last entry, an Array's elements up to its
length. The rest contains remains of former blocks, which may refer to anything. Classes and methods
are left out, because every object refers to its class, and the class refers to everything that the
program has.

Sources: include/ruby/internal/core/{rarray,robject,rstring}.h,
internal/{hash,struct,complex,rational}.h (ruby.h, internal.h before 3.0) and st.h of 2.7.4, 3.1.2
and 3.3.8."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.runtimes.base import Objects
from findleaks.runtimes.ruby import census as c
from findleaks.runtimes.ruby.captured_memory import CAPTURING, find_captured_memory
from findleaks.runtimes.ruby.tables import (
    BOUND,
    BOUND_SHIFT,
    DELETED,
    EMBEDDED,
    HASH_LONG,
    HINTS,
    LENGTH_SHIFT,
    LONG,
    LONGEST,
    SHORT,
    ST_TABLE,
    struct_length,
)
from findleaks.runtimes.ruby.values import NOEMBED
from findleaks.runtimes.ruby.variables import NO_VALUES
from findleaks.target.base import Range
from findleaks.target.interruptible import interruptible

T_MATCH, T_COMPLEX, T_RATIONAL = 0xD, 0xE, 0xF
FOLLOWED = (c.T_OBJECT, c.T_STRING, c.T_ARRAY, c.T_HASH, c.T_STRUCT, T_MATCH, T_COMPLEX, T_RATIONAL)
"""Types whose pointers all keep their targets alive. T_DATA is not among them, except for the
types in CAPTURING: its structure belongs to an extension, and may point anywhere."""

HEAD = 16  # bytes of flags and class
TABLE = 56  # bytes of a struct st_table
HASH_SHORT = 32  # used bytes of the slot of a Hash, up to Ruby 3.1
LOOK = 1 << 16  # objects between two checks for the user's interrupt
WORDS = 5  # words read of each slot
MOST_ENTRIES = 1 << 26  # entries of a Hash that are examined
TEXT = 3  # index of the word with the pointer to a String's text


class Slots:
    """All slots that may be values of variables.

    `long`: whether the version is 3.2 or later. `shared`: the flag of an Array whose elements
    belong to another Array, to which it refers. `count_of` returns the number of variables of
    objects with a given shape, `is_complex` whether their variables are in an st_table. `name_data`
    returns the name of a data type."""

    def __init__(
        self,
        memory: Memory,
        engine: Engine,
        taken: c.Census,
        long: bool,
        shared: int,
        count_of: Callable[[int], int],
        name_data: Callable[[int], str] = lambda data_type: "",
        is_complex: Callable[[int], bool] = lambda shape: False,
    ) -> None:
        self._memory, self._engine, self._census, self._long, self._count_of = memory, engine, taken, long, count_of
        self._is_complex = is_complex
        self._shared = shared
        data_types = {sort.data for sort in taken.sorts if sort.data}
        self._capturing = {one: name for one in data_types if (name := name_data(one)) in CAPTURING}
        # Set by `objects`. `plain`: addresses in buffers that contain no references to native
        # memory. `texts`: addresses of texts and of bins of tables, which contain no references at
        # all.
        self.plain, self.texts = array("Q"), array("Q")
        # Set by `objects`: the address of the object to which each buffer belongs.
        self.buffer_owners = array("Q")
        # Set by `objects` if `finds_deleted` is set: the keys and values of deleted entries of
        # Hashes.
        self.deleted: list[Range] = []
        self._finds_deleted = False

    def objects(
        self,
        divided: Sequence[int],
        ranges: Sequence[Range],
        pages: Sequence[Range],
        finds_deleted: bool = False,
        further: Iterable[tuple[int, int, int]] = (),
    ) -> Objects:
        """Return the objects; see base.Objects. `divided` are objects whose variables are roots
        themselves. `finds_deleted`: whether to set `deleted`. `further`: start, size and owner of
        buffers to which their owners do not refer."""
        self._finds_deleted = finds_deleted
        sorts = self._census.sorts
        numbers = array("I", range(len(sorts) + 1))
        wanted = bytearray(sort.tag not in NO_VALUES for sort in sorts) + b"\0"
        addresses, sizes, kinds = self._census.addresses(wanted, numbers)
        in_use = [min(self.in_use(sort), sort.size) for sort in sorts]
        used = array("I", map(in_use.__getitem__, interruptible(self._memory.target, kinds, LOOK)))
        heads = [size if sort.tag in FOLLOWED or self._is_capturing(sort) else HEAD for sort, size in zip(sorts, in_use)]
        followed = array("I", map(heads.__getitem__, interruptible(self._memory.target, kinds, LOOK)))
        self.texts.extend(self._texts(numbers, ranges))
        self.plain.extend(self.texts)
        for value in divided:
            at = bisect_left(addresses, value)
            if at < len(addresses) and addresses[at] == value:
                followed[at] = HEAD
        return Objects(addresses, sizes, used, followed, self._buffers(numbers, ranges, further), ranges, pages)

    def in_use(self, sort: c.Sort) -> int:
        """Return the number of bytes of a slot of this group that are not remains of former
        objects."""
        tag, flags = sort.tag, sort.flags
        if tag == c.T_STRING and not flags & NOEMBED:
            return HEAD  # text
        if tag == c.T_ARRAY and flags & EMBEDDED:
            return HEAD + 8 * (flags >> LENGTH_SHIFT & (LONG if self._long else SHORT))
        if tag == c.T_STRUCT and struct_length(flags, self._long):
            return HEAD + 8 * struct_length(flags, self._long)
        if tag == c.T_HASH:
            pairs = 16 * (flags >> BOUND_SHIFT & BOUND)
            return HASH_SHORT if not self._long else HASH_LONG + (TABLE if flags & ST_TABLE else HINTS + pairs)
        return HEAD + 16 if tag in (T_COMPLEX, T_RATIONAL) else sort.size

    # -- storage outside of slots

    def _buffers(self, numbers: array[int], ranges: Sequence[Range], further: Iterable[tuple[int, int, int]]) -> array[int]:
        """Return the start and size of each buffer. If buffers overlap, which happens only in
        corrupt memory, the first one is kept. Memory that a dead Proc captured may have been
        allocated again, so other buffers are preferred."""
        outside = bytearray(map(self._is_outside, self._census.sorts)) + b"\0"
        slots, _, kinds = self._census.addresses(outside, numbers) if any(outside) else (array("Q"), (), array("I"))
        made = array("Q")
        end = 0
        captured: list[tuple[int, int, bool, int]] = []
        found = chain(self._storage(slots, kinds, ranges, captured), self._iterate_complex(numbers, ranges))
        others = sorted([*found, *((start, size, False, owner) for start, size, owner in further)])
        for start, size, is_table, slot in sorted([*others, *_without_overlaps(captured, others)]):
            if not is_table:
                self.plain.append(start)
            if start >= end and start + size <= self._memory.arch.mask:
                made.extend((start, size))
                self.buffer_owners.append(slot)
                end = start + size
        return made

    def _is_outside(self, sort: c.Sort) -> bool:
        tag, flags = sort.tag, sort.flags
        if self._is_capturing(sort):
            return True
        if tag in (c.T_OBJECT, c.T_ARRAY):
            return not flags & (EMBEDDED if tag == c.T_OBJECT else EMBEDDED | self._shared)
        if tag == c.T_STRUCT:
            return not struct_length(flags, self._long)
        return tag == c.T_HASH and bool(flags & ST_TABLE or not self._long)

    def _is_capturing(self, sort: c.Sort) -> bool:
        return sort.tag == c.T_DATA and sort.data in self._capturing

    def _texts(self, numbers: array[int], ranges: Sequence[Range]) -> Iterator[int]:
        """Yield addresses of Strings' texts that are not in their slots."""
        outside = bytearray(sort.tag == c.T_STRING and bool(sort.flags & NOEMBED) for sort in self._census.sorts) + b"\0"
        slots, _, _ = self._census.addresses(outside, numbers) if any(outside) else (array("Q"), (), ())
        for _, words in self._words(slots, ranges):
            yield from filter(None, words[TEXT])

    def _words(self, slots: array[int], ranges: Sequence[Range]) -> Iterator[tuple[int, Sequence[array[int]]]]:
        """Yield the first WORDS words of these slots, in columns, each time with the index of the
        first slot in the columns.

        The slots are ascending. Words that cannot be read are 0."""
        target, first = self._memory.target, 0
        for piece in interruptible(target, (piece for start, end in ranges for piece in target.pieces(start, end))):
            first = bisect_left(slots, piece.address, first)
            last = bisect_left(slots, piece.address + len(piece.data), first)
            data, _ = self._engine.gather((piece,), slots[first:last], 8 * WORDS) if last > first else (b"", ())
            words = array("Q", bytes(data))
            yield first, [words[column::WORDS] for column in range(WORDS)]
            first = last

    def _storage(
        self, slots: array[int], kinds: array[int], ranges: Sequence[Range], captured: list[tuple[int, int, bool, int]]
    ) -> Iterator[tuple[int, int, bool, int]]:
        """Yield a tuple for each buffer: its start, its size, whether it also contains pointers to
        other memory, as an st_table does, and the address of the object to which it belongs. For
        memory of the types in CAPTURING, add such tuples to `captured` instead."""
        tags = array("B", [*(sort.tag for sort in self._census.sorts), 0])
        for first, words in self._words(slots, ranges):
            count = len(words[0])
            for slot, kind, (flags, _, second, third, fourth) in zip(
                slots[first : first + count], kinds[first : first + count], zip(*words)
            ):
                tag = tags[kind]
                if tag == c.T_DATA:
                    captured += ((start, size, True, slot) for start, size in self._iterate_captured(slot, second, third, fourth))
                    continue
                if tag == c.T_ARRAY:
                    start, size = fourth, 8 * second
                elif tag == c.T_HASH and flags & ST_TABLE:
                    yield from self._table(slot, second, is_separate=not self._long)
                    continue
                elif tag == c.T_HASH:
                    start, size = second, 16 * (flags >> BOUND_SHIFT & BOUND)
                elif tag == c.T_OBJECT and self._long:
                    start, size = second, 8 * self._count_of(flags >> 32)
                else:
                    start, size = third, 8 * (second & 0xFFFFFFFF)
                if start and start % 8 == 0 and 0 < size <= 8 * LONGEST:
                    yield start, size, False, slot

    def _iterate_captured(self, slot: int, data_type: int, flag: int, pointer: int) -> Iterator[tuple[int, int]]:
        return find_captured_memory(self._memory, self._capturing.get(data_type, ""), slot, flag, pointer)

    def _iterate_complex(self, numbers: array[int], ranges: Sequence[Range]) -> Iterator[tuple[int, int, bool, int]]:
        """Yield the tables of T_OBJECTs whose shape is too complex; see members.py. Only the shape
        distinguishes them from objects that have their variables in the slot."""
        wanted = bytearray(self._long and sort.tag == c.T_OBJECT for sort in self._census.sorts) + b"\0"
        slots, _, _ = self._census.addresses(wanted, numbers) if any(wanted) else (array("Q"), (), ())
        known: dict[int, bool] = {}
        for first, words in self._words(slots, ranges):
            shapes = [flags >> 32 for flags in words[0]]
            known.update((one, self._is_complex(one)) for one in set(shapes).difference(known))
            for at, shape in enumerate(shapes):
                if known[shape]:
                    yield from self._table(slots[first + at], words[2][at], is_separate=True)

    def _table(self, slot: int, pointer: int, is_separate: bool) -> Iterator[tuple[int, int, bool, int]]:
        """Yield the table of a Hash or of variables, and the table's entries. Deleted entries keep
        their keys and values. `is_separate`: the table is not in the slot, but at `pointer`."""
        table = self._memory.words(pointer if is_separate else slot + HASH_LONG, TABLE // 8)
        if table is not None and (not is_separate or pointer % 8 == 0):
            if is_separate:
                yield pointer, TABLE, True, slot
            if table[3]:
                self.texts.append(table[3])
            if table[6] and table[6] % 8 == 0 and 0 < table[5] <= LONGEST:
                if self._finds_deleted and table[2] < table[5] <= MOST_ENTRIES:
                    words = self._memory.words(table[6], 3 * table[5]) or ()
                    places = range(table[6] + 8, table[6] + 24 * table[5], 24)
                    self.deleted += [Range(at, at + 16) for at, hashed in zip(places, words[0::3]) if hashed == DELETED]
                yield table[6], 24 * table[5], False, slot


def _without_overlaps(
    captured: Sequence[tuple[int, int, bool, int]], others: Sequence[tuple[int, int, bool, int]]
) -> Iterator[tuple[int, int, bool, int]]:
    """Yield the tuples of `captured` whose memory overlaps with none of `others`, which are sorted;
    see Slots._storage."""
    starts = [one[0] for one in others]
    for one in captured:
        at = bisect_left(starts, one[0])
        is_after = not at or others[at - 1][0] + others[at - 1][1] <= one[0]
        if is_after and (at == len(others) or one[0] + one[1] <= starts[at]):
            yield one
