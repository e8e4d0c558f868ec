"""Find the words of Lua's objects that are not references and that may have stale values.

Lua requests exactly the bytes of an object. The allocator may return more bytes, and Lua does not
clear these. For nil (and, in 5.4, for booleans), Lua sets only the type of a value, so the first
word of the value is stale. In 5.4, Lua sets only the first byte of the second word of a value, so
this word can look like an interior pointer. A key whose value is nil is not a reference either,
because the collector does not follow it.

Sources: lobject.h, lfunc.h, ltable.c (luaH_realasize), lgc.c (clearkey) of Lua 5.1.5, 5.2.4, 5.3.6
and 5.4.4, 64-bit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice

from findleaks.allocators.memory import Memory
from findleaks.engine.terms import EVERY_WORD, LAST_WORD, Exclusion
from findleaks.runtimes.exclusion_table import ExclusionTable
from findleaks.runtimes.lua.layout import FUNCTION, TABLE, USERDATA, Layout
from findleaks.runtimes.lua.weak import WeakWords
from findleaks.target.base import Range
from findleaks.target.interruptible import interruptible

VALUE = 16  # bytes of a value (TValue): first an object's address or a number, then the type
_UNSET = re.compile(rb"[\x00\x10\x20\x01\x11]+")  # types nil, empty, absent key, false and true
_NIL = re.compile(rb"[\x00\x10\x20]+")
_BOOLEAN = re.compile(rb"[\x01\x11]")
_UNREADABLE = b"\xff"  # stands for a type that cannot be read
_SLICE = 1 << 20  # bytes of a large part that are read at once
_MOST_RANGES, _MOST_STACK_RANGES = 1 << 17, 1 << 15  # of tables and other objects; of stacks
_MOST_SLOTS = 1 << 12  # values of a stack of 5.4 whose second words are excluded
_LONGER = 0x80  # flag of a table of 5.4: the array is longer than `alimit`
_CLOSED = 24  # offset of the value in a closed upvalue, whose function has returned
_TABLE_BYTES = {"5.1": 64}  # bytes of a Table; 56 since 5.2
_HEAD = 0xFFFF00FF  # mask of the second word of an object, without the collector's bits
_MOST_KNOWN = 32  # patterns are reused only for parts with fewer values or nodes
_USERDATA_LENGTH = {"5.1": 32, "5.2": 32, "5.3": 24, "5.4": 16}  # offset of the length

Words = tuple[int, int]
"""Successive words of a block: the index of the first one, and of the one after the last one."""
EXCLUSIONS: Sequence[Exclusion] = (
    Exclusion(0),
    Exclusion(EVERY_WORD),
    Exclusion(3 | 1 << 6),  # a table: the next object, the type, and gclist
    Exclusion(3 | 1 << 2),  # a function: the next object, the type, and gclist
    Exclusion(3),
    Exclusion(3 | 1 << 8 | 1 << 14),  # a prototype of 5.2: also the last closure, and gclist
    Exclusion(3 | 1 << 12 | 1 << 14),  # a prototype of 5.3: also the last closure, and gclist
    # A thread of 5.1, of 5.2, and since 5.3: the next object, the type, global_State, and gclist.
    # Since 5.3, the extra space precedes the object, and twups follows gclist.
    Exclusion(3 | 1 << 4 | 1 << 20),
    Exclusion(3 | 1 << 3 | 1 << 13),
    Exclusion(3 << 1 | 1 << 4 | 3 << 10),
    Exclusion(3 | 1 << 15),  # a prototype of 5.4: gclist
    Exclusion(3 | 1 << 13),  # a prototype of 5.1: gclist
)
"""Words of objects that do not count as references. The address of the next object does not count,
because it belongs to a list of all objects. The word with the type also contains stale bytes, and
may look like an address, such as 0x7f215e011006. `gclist` lists objects that the collector must
still follow, and is stale afterwards. From a global_State, all objects can be reached; its block is
a root."""
THREAD_PATTERNS = {"5.1": 7, "5.2": 8, "5.3": 9, "5.4": 9}
PROTOTYPE_PATTERNS = {"5.1": 11, "5.2": 5, "5.3": 6, "5.4": 10}


class Elements:
    """The types of the values of an array or a stack, or those of nodes. `used`: bytes of all
    values or nodes. `step`: words of each."""

    def __init__(self, memory: Memory, start: int, used: int, step: int) -> None:
        self.used, self.step = max(used, 0), step
        self._memory, self._start = memory, start
        self._slice = _SLICE // (8 * step) * 8 * step

    @cached_property
    def first(self) -> bytes:
        """The types of the first _SLICE bytes; b"" if these are unreadable."""
        return self._read(0)

    def slices(self) -> Iterator[bytes]:
        """Yield the types of all values or nodes. Raises Interrupted."""
        for at in interruptible(self._memory.target, range(0, self.used, self._slice)):
            yield (self._read(at) if at else self.first) or _UNREADABLE * self._count(min(self._slice, self.used - at))

    def words_after(self, size: int) -> list[Words]:
        """Return the words that follow all values or nodes in a block of `size` bytes."""
        return [(self.step * self._count(self.used), size // 8)] if self.used < size else []

    def begin(self) -> Elements:
        """Return the values or nodes that have the first LAST_WORD words."""
        return Elements(self._memory, self._start, min(self.used, -(-LAST_WORD // self.step) * 8 * self.step), self.step)

    def _read(self, at: int) -> bytes:
        size = min(self._slice, self.used - at)
        return self._memory.read(self._start + at, size)[8 :: 8 * self.step] if size > 0 else b""

    def _count(self, size: int) -> int:
        """Return the number of types in `size` bytes. The type is in the second word."""
        return max(0, -(-(size - 8) // (8 * self.step)))


class Unused:
    """The words of blocks that are not references.

    - `exclusions` has the mask of such words for each pattern. The masks that are given come first.
    - `ranges` has the words that no pattern can describe.
    - `is_full` is True if `ranges` cannot have all these words. The others count as references."""

    def __init__(self, exclusions: Sequence[Exclusion], memory: Memory) -> None:
        self._table = ExclusionTable(exclusions)
        self.ranges: list[Range] = []
        self._memory = memory
        # Further ranges that are kept: of tables and other objects, and of stacks; -1 if some were
        # not kept. Many coroutines must not use up the ranges of tables.
        self._left = [_MOST_RANGES, _MOST_STACK_RANGES]
        self._known: dict[object, int] = {}  # patterns, by the properties on which they depend

    @property
    def exclusions(self) -> Sequence[Exclusion]:
        """The exclusions. The index of an exclusion is the number of its pattern."""
        return self._table.exclusions

    @property
    def is_full(self) -> bool:
        return min(self._left) < 0

    def object_pattern(self, layout: Layout, plain: int, start: int, size: int, words: Sequence[int], is_c: bool) -> int:
        """Return the pattern of an object, given its first 9 words; see `pattern` and
        `list_unused`."""
        length = words[_USERDATA_LENGTH[layout.version] // 8] if words[1] & 15 == USERDATA else 0
        key = layout.version, plain, size, words[1] & _HEAD, words[4] & 15 < 2, is_c, length
        number = self._known.get(key)
        if number is None:
            number = self._remember(key, plain, start, size, list_unused(layout, size, words, is_c))
        return number

    def weak_pattern(self, weak: WeakWords, start: int, step: int, count: int) -> int:
        """Return the pattern of the weak words in a block that begins with `count` values or nodes
        of `step` words each."""
        self.add_words(weak.places)
        mask, period = sum(1 << word for word in weak.columns), step
        if step * count <= LAST_WORD:
            mask, period = sum(mask << step * number for number in range(count)), 0
        number = self._table.add(Exclusion(mask, period=period)) if mask else 0
        if number is None:
            self.add_words(start + 8 * (step * at + word) for at in range(count) for word in weak.columns)
        return number or 0

    def part_pattern(self, layout: Layout, start: int, size: int, used: int, step: int, plain: int = 0) -> int:
        """Return the pattern of a block that begins with `used` bytes of values or nodes, each of
        `step` words. No words are excluded if the first values or nodes are unreadable. `plain`:
        the pattern of its weak words."""
        elements = whole = Elements(self._memory, start, min(used, size), step)
        if self._left[False] < 0:
            elements = whole.begin()
        if not elements.first:
            return plain
        of, all_weak = self.exclusions[plain], 0b101 if step > VALUE // 8 else 0b1
        if of.period and of.words == all_weak:  # no key and no value is a reference
            return self.pattern(plain, start, size, whole.words_after(size))
        is_small = whole.used < 8 * step * _MOST_KNOWN
        key = layout.version, size, step, whole.used, elements.first[:_MOST_KNOWN], plain
        number = self._known.get(key) if is_small else None
        if number is None:
            most = LAST_WORD + max(self._left[False], 0)  # further runs are not kept
            found = list_unused_values(layout, elements, most) if step == VALUE // 8 else list_unused_nodes(elements, most)
            found = [*found, *whole.words_after(size)] if elements.used == whole.used else _first_words(found)
            number = self._remember(key, plain, start, size, found) if is_small else self.pattern(plain, start, size, found)
        return number

    def stack_pattern(self, layout: Layout, start: int, size: int, top: int) -> int:
        """Return the pattern of a block that begins with a stack up to `top`. If the stack is
        unreadable, only the words from `top` on are excluded."""
        elements = Elements(self._memory, start, top - start, VALUE // 8)
        if not elements.first:
            self.ranges.append(Range(top, start + (size & -8)))
            return 0
        most, after = LAST_WORD + max(self._left[True], 0), elements.words_after(size)
        if self._left[True] < 0:
            found = _first_words(list_unused_values(layout, elements.begin(), most))
        else:
            found = list_unused_values(layout, elements, most, _MOST_SLOTS)
        return self.pattern(0, start, size, [*after, *found], True)

    def add_stack(self, start: int, top: int, end: int) -> None:
        """Add the unused words of a stack inside a block that ends at `end`. The rest of the block
        may have anything."""
        self.ranges.append(Range(top, end & -8))
        elements = Elements(self._memory, start, top - start, VALUE // 8)
        runs = find_runs(_NIL, elements.slices()) if elements.first and self._left[True] >= 0 else ()
        for first, after in islice(runs, self._left[True] + 1):
            self._add(Range(start + VALUE * first, start + VALUE * after), True)

    def _remember(self, key: object, plain: int, start: int, size: int, words: Sequence[Words]) -> int:
        count = len(self.ranges)
        number = self.pattern(plain, start, size, words)
        if count == len(self.ranges) and len(self._known) < _MOST_RANGES:
            self._known[key] = number
        return number

    def pattern(self, plain: int, start: int, size: int, words: Sequence[Words], is_stack: bool = False) -> int:
        """Return the pattern of the block of `size` bytes at `start`. `plain`: the pattern of the
        words to exclude in all objects of the type. `words`: further words to exclude."""
        of, count = self.exclusions[plain], size // 8
        mask, beyond = of.words, list[Words]()
        for first, end in words:
            if not of.period and first < LAST_WORD and (end <= LAST_WORD or end >= count):
                # Including the words after the block does no harm, and results in fewer masks.
                mask |= EVERY_WORD << first & EVERY_WORD >> (LAST_WORD + 1 - end if end < count else 0)
            else:
                beyond.append((first, min(end, count)))
        number = plain if of.period else self._table.add(Exclusion(mask))
        if number is None:
            number, beyond = plain, [(first, min(end, count)) for first, end in words]
        for first, end in beyond:
            one = Range(start + 8 * first, start + 8 * end)
            if is_stack and end == count:  # the words above its top
                self.ranges.append(one)
            else:
                self._add(one, is_stack)
        return number

    def add_words(self, places: Iterable[int]) -> None:
        """Add the words at these places."""
        for place in places:
            self._add(Range(place, place + 8), False)
            if self._left[False] < 0:
                return

    def _add(self, one: Range, is_stack: bool) -> None:
        if self._left[is_stack] > 0:
            self._left[is_stack] -= 1
            self.ranges.append(one)
        else:
            self._left[is_stack] = -1


def _first_words(found: Sequence[Words]) -> list[Words]:
    """Return those of the words that a pattern can describe."""
    return [(first, min(end, LAST_WORD)) for first, end in found if first < LAST_WORD]


def list_unused(layout: Layout, size: int, words: Sequence[int], is_c: bool) -> list[Words]:
    """Return the unused words of an object in a block of `size` bytes, given its first 9 words.
    `is_c`: whether the object is a function written in C. No words of strings, threads and
    prototypes are returned."""
    kind, old, version = words[1] & 15, layout.version == "5.1", layout.version
    used = size
    found: list[Words] = []
    if kind == TABLE:
        used = _TABLE_BYTES.get(version, 56)
    elif kind == FUNCTION:
        used = layout.function + 8 + (words[1] >> (24 if old else 16) & 0xFF) * (VALUE if is_c else 8)
    elif kind == USERDATA:
        values = words[1] >> 16 & 0xFFFF if version == "5.4" else 0
        found += [(4, 5)] if values else ()  # gclist
        used = (40 + VALUE * values if values or version != "5.4" else 32) + words[_USERDATA_LENGTH[version] // 8]
    elif kind == layout.upvalue:
        used = _CLOSED + VALUE
        if words[4] & 15 < 2:
            found.append((_CLOSED // 8, _CLOSED // 8 + 1))
        if version == "5.4":
            found.append((_CLOSED // 8 + 1, _CLOSED // 8 + 2))
    return [*found, (-(-used // 8), size // 8)] if used < size else found


def array_length(layout: Layout, words: Sequence[int]) -> int:
    """Return the number of values of the array of a table, given the words of the table."""
    length = words[layout.length // 8] >> 8 * (layout.length % 8) & 0xFFFFFFFF
    if layout.version == "5.4" and words[1] >> 16 & _LONGER and length:
        return 1 << (length - 1).bit_length()
    return length


def find_runs(types: re.Pattern[bytes], slices: Iterable[bytes]) -> Iterator[Words]:
    """Yield the index of the first element, and that after the last one, of each run of elements
    that have one of these types. Runs continue in the next slice."""
    first = end = start = 0
    for part in slices:
        for run in types.finditer(part):
            if start + run.start() != end:
                if first < end:
                    yield first, end
                first = start + run.start()
            end = start + run.end()
        start += len(part)
    if first < end:
        yield first, end


def list_unused_values(layout: Layout, values: Elements, most: int, most_slots: int = LAST_WORD // 2) -> list[Words]:
    """Return the unused words of an array: at most `most` runs of values. In Lua 5.4, the second
    words of used values are included, but only for the first `most_slots` values."""
    step = values.step
    found = [(step * first, step * end) for first, end in islice(find_runs(_UNSET, values.slices()), most)]
    if layout.version == "5.4":
        found += [(step * number + 1, step * number + 2) for number, tag in enumerate(values.first[:most_slots]) if tag & 15 > 1]
    return found


def list_unused_nodes(nodes: Elements, most: int) -> list[Words]:
    """Return the unused words of nodes: at most `most` runs of nodes. Booleans are found only in
    the first LAST_WORD words, which patterns describe."""
    step = nodes.step
    found = [(step * first, step * end) for first, end in islice(find_runs(_NIL, nodes.slices()), most)]
    found += [(step * one.start(), step * one.start() + 1) for one in _BOOLEAN.finditer(nodes.first, 0, LAST_WORD // step)]
    return found
