"""Find pymalloc's states in an interpreter's data.

A state consists of the array of arena_objects, and of the variables around the pointer to it. Up to
3.11 there is one static set of variables. Since 3.12 an interpreter may have a struct
_obmalloc_state: in the interpreter's state (3.12.0), or behind a pointer there (3.12.2 and later).
The state of the main interpreter is in the file's data; the states of other interpreters are in
blocks. layout.py has the sources."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Optional

from findleaks.allocators.bulk import find_pointers
from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.allocators.pymalloc.layout import (
    MAX_ARENAS,
    NEAR,
    POOL_SIZES,
    POOLS,
    SMALLEST_ARENAS,
    VARIABLES,
    Layout,
    Variables,
    layout_of,
)
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges, range_at, subtract

PAGE = 4096
# Bytes at the start of an interpreter's state that contain the link to the next one (at 5,472 in
# 3.12, at 7,416 in 3.14), and bytes that contain the allocator's state or a pointer to it.
INTERPRETER = 1 << 14
STATE = 1 << 20

MAX_INTERPRETERS = 4096


class ArenaObject(NamedTuple):
    """An arena_object that has an arena. `number` is its index in the array. The headers of its
    pools contain this number."""

    number: int
    address: int
    pool_address: int
    nfreepools: int
    ntotalpools: int
    freepools: int


@dataclass
class State:
    """A set of the allocator's variables.

    `variables` is None if no known layout fits, so that there are no counters to compare with.
    `interpreter` is the address of the interpreter's own state, or 0."""

    pointer: int  # the address of `arenas`
    array: int
    count: int
    arenas: list[ArenaObject]
    pool: int
    variables: Optional[Variables]
    interpreter: int = 0

    def variable(self, memory: Memory, name: str) -> Optional[int]:
        """Read a variable by its name in `Variables`, or return None."""
        if self.variables is None:
            return None
        return memory.word(self.pointer + getattr(self.variables, name) * memory.size)


def states(target: Target, engine: Engine, image: Image) -> list[State]:
    """Return the states of all interpreters of this image, the main one's first."""
    finder = _Finder(target, engine, image)
    main = finder.main()
    return [main, *finder.others(main)] if main else []


class _Finder:
    """Searches one image for states."""

    def __init__(self, target: Target, engine: Engine, image: Image) -> None:
        self.target, self.engine, self.image = target, engine, image
        self.memory = Memory(target)
        self.layout: Layout = layout_of(target.arch)
        order, word = target.arch.word_format[0], target.arch.word_format[1]
        self._unpack = struct.Struct(f"{order}2{word}2I3{word}").unpack  # an arena_object
        self._unpack_indices = struct.Struct(f"{order}4I").unpack
        anonymous = merge_ranges(
            Range(region.start, region.end)
            for region in target.regions()
            if region.readable and region.writable and not region.name.startswith(("/", "[stack"))
        )
        # Without randomised addresses, the heap may directly follow the program's data, and is
        # merged with it.
        self.anonymous = subtract(anonymous, image.data)
        self._pages: dict[int, bytes] = {}

    def main(self) -> Optional[State]:
        """Return the state whose variables are in the image's data, or None."""
        outward = list(self._outward())
        addresses = [address for address, _ in outward]
        seen: set[int] = set()
        clusters: list[dict[int, int]] = []
        for address, value in outward:
            one = None if address in seen else self._object(value)
            if one is None or not one.address:
                continue
            near = NEAR * self.layout.word
            first, last = bisect_left(addresses, address - near), bisect_right(addresses, address + near)
            around = {place: other for place, other in outward[first:last] if self._beside(other, value)}
            seen.update(around)
            for variables in VARIABLES:
                for pointer in sorted(around):
                    found = self.at(pointer, variables)
                    if found is not None:
                        return found
            clusters.append(around)
        return next(filter(None, map(self._find_unordered, clusters)), None)

    def _outward(self) -> Iterator[tuple[int, int]]:
        """Yield (address, value) of the words of the image's data that are aligned addresses in
        anonymous memory."""
        if not self.anonymous:
            return
        low, high, align = self.anonymous[0].start, self.anonymous[-1].end, self.layout.align
        # Some 40,000 words are checked, for which range_at would be too slow.
        starts, ends = zip(*self.anonymous)
        for piece in self.image.pieces(self.target):
            for address, value in zip(*find_pointers(self.engine, piece, low, high)):
                if not value % align and value < ends[bisect_right(starts, value) - 1]:
                    yield address, value

    def _beside(self, other: int, value: int) -> bool:
        """Return whether these words may point to elements of one array of arena_objects."""
        return (value - other) % self.layout.object == 0 and abs(value - other) < MAX_ARENAS * self.layout.object

    def _find_unordered(self, around: dict[int, int]) -> Optional[State]:
        """Return the state that has these words as variables, if no known order of variables fits.
        One word is the pointer to the array, others point to its elements, and some may be
        unrelated."""
        for pointer, array in sorted(around.items(), key=lambda item: item[1]):
            count = self._count(array)
            arenas = self._arenas(array, count)
            pool = self._pool(arenas)
            if pool:
                return State(pointer, array, count, arenas, pool, None)
        return None

    def at(self, pointer: int, variables: Variables) -> Optional[State]:
        """Return the state with `arenas` at `pointer`, or None if the variables around it do not
        fit."""
        memory, layout = self.memory, self.layout
        array = memory.word(pointer)
        count = memory.int32(pointer + variables.maximum * layout.word)
        if not array or not count or count > MAX_ARENAS or count % SMALLEST_ARENAS or count & (count - 1):
            return None
        last = memory.words(pointer + variables.last * layout.word, POOLS + 1)
        words = [memory.word(pointer + place * layout.word) for place in (variables.unused, variables.usable)]
        numbers = [memory.word(pointer + place * layout.word) for place in (variables.current, variables.highwater, variables.times)]
        if last is None or None in words or None in numbers:
            return None
        end = array + count * layout.object
        for word in (*last, *words):
            if word and not (array <= word < end and (word - array) % layout.object == 0):
                return None
        if not (numbers[0] or 0) <= (numbers[1] or 0) <= (numbers[2] or 0):
            return None
        arenas = self._arenas(array, count)
        pool = self._pool(arenas)
        return State(pointer, array, count, arenas, pool, variables) if pool and numbers[0] == len(arenas) else None

    def _count(self, array: int) -> int:
        """Find the length of the array, if no variable has it. It is a number that is doubled as
        long as the elements are plausible."""
        count = SMALLEST_ARENAS
        while count < MAX_ARENAS and all(
            self._object(array + number * self.layout.object) is not None for number in range(count, 2 * count)
        ):
            count *= 2
        return count

    def _arenas(self, array: int, count: int) -> list[ArenaObject]:
        """Return the elements that have an arena. Other elements are left out."""
        found = []
        for number in range(count):
            one = self._object(array + number * self.layout.object, number)
            if one is not None and one.address:
                found.append(one)
        return found

    def _object(self, at: int, number: int = 0) -> Optional[ArenaObject]:
        """Read the arena_object at this address, or return None. Its `address` is 0 if it has no
        arena."""
        data = self._bytes(at, self.layout.object)
        if data is None:
            return None
        address, pool_address, nfreepools, ntotalpools, freepools, following, _ = self._unpack(data)
        if not address:
            return ArenaObject(number, 0, 0, 0, 0, 0) if not following or self._beside(following, at) else None
        if not POOLS - 1 <= ntotalpools <= POOLS or nfreepools > ntotalpools or address % self.layout.align:
            return None
        if not address <= pool_address <= address + POOLS * POOL_SIZES[0] or pool_address % POOL_SIZES[-1]:
            return None
        return ArenaObject(number, address, pool_address, nfreepools, ntotalpools, freepools)

    def _bytes(self, address: int, size: int) -> Optional[bytes]:
        """Read a few bytes. Whole pages are cached, because many candidates point near each
        other."""
        page = address & -PAGE
        if address + size <= page + PAGE:
            data = self._pages.get(page)
            if data is None:
                data = self.memory.read(page, PAGE)
                if len(self._pages) > 16384:
                    self._pages.clear()
                self._pages[page] = data
            if data:
                return data[address - page : address - page + size]
        return self.memory.read(address, size) or None

    def _pool(self, arenas: Sequence[ArenaObject]) -> int:
        """Find the size of the pools, or return 0. In the header of a pool, maxnextoffset is
        POOL_SIZE minus the size of a block."""
        layout = self.layout
        for arena in arenas:
            for size in POOL_SIZES:
                first = arena.address + -arena.address % size
                for pool in range(first, min(arena.pool_address, first + 4 * size), size):
                    numbers = self._header(pool)
                    if numbers is None:
                        continue
                    owner, index, _, most = numbers
                    if owner == arena.number and index < layout.classes and most + layout.size(index) == size:
                        return size
        return 0

    def _header(self, pool: int) -> Optional[tuple[int, ...]]:
        """Read arenaindex, szidx, nextoffset and maxnextoffset of a pool."""
        data = self._bytes(pool + 4 * self.layout.word, 16)
        return self._unpack_indices(data) if data is not None else None

    # ---- sub-interpreters ----

    def others(self, main: State) -> list[State]:
        """Return the states of the sub-interpreters that have a separate state.

        _PyRuntime has the head of the list of interpreters, newest first. In the next word it has
        the address of the main interpreter, which is the last of the list and in the image's data.
        The allocator's state, or the pointer to it, has the same offset in all interpreters."""
        if main.variables is None or not main.variables.used:
            return []
        word = self.layout.word
        begin = main.pointer + main.variables.used * word
        places = [begin, *(address for piece in self.image.pieces(self.target) for address in self.engine.search(piece, begin, begin + 1))]
        for head, first in self._heads(begin):
            for place in places:
                if not first < place < first + STATE:
                    continue
                found = self._chain(head, first, place - first, place != begin, main, main.variables)
                if found:
                    return found
        return []

    def _heads(self, begin: int) -> Iterator[tuple[int, int]]:
        """Yield (value, next word) of the words in the image's data that may be the head of the
        list: the value points to a block, and the next word into the image's data."""
        word = self.layout.word
        for address, value in self._outward():
            beside = self.memory.word(address + word)
            if beside and not beside % word and any(start <= beside < end for start, end in self.image.data):
                yield value, beside

    def _chain(self, head: int, first: int, offset: int, pointed: bool, main: State, variables: Variables) -> list[State]:
        """Return the states of the interpreters from `head` on. [] if the interpreters are not
        plausible or have no states."""
        found: list[State] = []
        interpreter = head
        link: Optional[int] = None
        for _ in range(MAX_INTERPRETERS):
            begin = self._begin(interpreter, offset, pointed)
            if begin is None:
                return []
            pointer = begin - variables.used * self.layout.word
            known = pointer in (main.pointer, *(other.pointer for other in found))
            state = None if known else self.at(pointer, variables)
            if state is not None:
                state.interpreter = interpreter
                found.append(state)
            if link is None:
                link = self._link(interpreter, first, offset, pointed)
            following = self.memory.word(interpreter + link) if link is not None else None
            if not following or following == first:
                return found
            interpreter = following
        return found

    def _begin(self, interpreter: int, offset: int, pointed: bool) -> Optional[int]:
        """Return the address of an interpreter's allocator state. None unless the state's empty
        size classes and its lists of pools are plausible."""
        begin = self.memory.word(interpreter + offset) if pointed else interpreter + offset
        if not begin or begin % self.layout.word:
            return None
        used = self.memory.words(begin, 2 * self.layout.classes)
        if used is None:
            return None
        word = self.layout.word
        for index in range(self.layout.classes):
            empty = begin + 2 * index * word - 2 * word
            pair = used[2 * index : 2 * index + 2]
            if pair != (empty, empty) and (0 in pair or any(pool % POOL_SIZES[-1] for pool in pair)):
                return None
        return begin

    def _link(self, interpreter: int, first: int, offset: int, pointed: bool) -> Optional[int]:
        """Return the offset of the pointer to the next interpreter in an interpreter's state, or
        None."""
        word = self.layout.word
        words = self.memory.words(interpreter, INTERPRETER // word) or ()
        for number, value in enumerate(words):
            if value == first or (value and value != interpreter and self._names_state(value, offset, pointed)):
                return number * word
        return None

    def _names_state(self, value: int, offset: int, pointed: bool) -> bool:
        """Return whether a word may be the address of the state of another interpreter, in a
        block."""
        aligned = value % self.layout.align == 0
        return aligned and range_at(self.anonymous, value) is not None and self._begin(value, offset, pointed) is not None


def spans(arenas: Iterable[ArenaObject], size: int) -> list[list[ArenaObject]]:
    """Return groups of adjacent arenas, ascending. If two arenas overlap, the second is left
    out."""
    found: list[list[ArenaObject]] = []
    end = 0
    for arena in sorted(arenas, key=lambda one: one.address):
        if found and arena.address == end:
            found[-1].append(arena)
        elif arena.address >= end:
            found.append([arena])
        else:
            continue
        end = arena.address + size
    return found
