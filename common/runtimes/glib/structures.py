"""Structures of GLib that have no type in memory: arrays, hash tables, trees, errors and others.

The engine finds blocks whose words fit such a structure, and so do the blocks to which these words
refer (engine.py). This module examines the other memory to which the words refer, and names the
structures.

Other programs have structures like GString, GQueue and a GPtrArray without a function that frees
elements. These are named only in GSlice, from which GLib allocates them up to 2.74."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container, Iterator, Mapping, Sequence

from findleaks.allocators.bulk import read_scattered
from findleaks.allocators.directory import Directory
from findleaks.allocators.gtypes import GTypeNames
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.runtimes.glib import engine as kinds
from findleaks.runtimes.glib.engine import Structure, find_structures
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges, range_at

NAMES = {
    kinds.TABLE: "GHashTable",
    kinds.TREE: "GTree",
    kinds.POINTERS: "GPtrArray",
    kinds.PLAIN_POINTERS: "GPtrArray",
    kinds.ARRAY: "GArray",
    kinds.BYTE_ARRAY: "GByteArray",
    kinds.SEQUENCE: "GSequence",
    kinds.DATE: "GDateTime",
    kinds.BYTES: "GBytes",
    kinds.STRING: "GString",
    kinds.QUEUE: "GQueue",
    kinds.ERROR: "GError",
    kinds.SOURCE: "GSource",
    kinds.CLOSURE: "GClosure",
    kinds.PLAIN_CLOSURE: "GClosure",
    kinds.PART: "GBytes",
    kinds.CHANNEL: "GIOChannel",
}
OTHER = 0  # kind of a structure like a GError without an error domain
SLICED = {kinds.PLAIN_POINTERS, kinds.STRING, kinds.QUEUE}  # kinds that are named only in GSlice
SLICES = "GSlice"  # name of the allocator
MOST_QUARKS = 1 << 16
BATCH = 1 << 16  # structures of a kind that are examined at a time
PREVIOUS, NEXT = 16, 8  # offsets in a node of a GQueue
LAST_DATA = 32  # offset of `data` in a GSequenceNode: that of the last one is the GSequence
FLAGS = 32  # offset of balance, left_child and right_child in a GTreeNode
TRANSITIONS, ZONE_COUNT = 8, 24  # offsets in GTimeZone: an array of TransitionInfo, references
ELEMENT, TRANSITION = 16, 16  # offset of `elt_size` in a GArray; bytes of a TransitionInfo
DISPATCH = 2  # number of `dispatch` in a GSourceFuncs
CHANNEL_FUNCTIONS = 8  # number of functions in a GIOFuncs, all of which a channel needs
DOMAIN = ("-quark", "error", "Error")  # the name of an error domain contains one of these
PART = 0.5  # the least fraction of possible errors that must have an error domain


class Structures:
    """Finds and names structures of GLib.

    `names`: functions that return the name of a structure of this kind at an address, such as that
    of a GSource, or "". `objects`: the memory of libgobject."""

    def __init__(
        self,
        memory: Memory,
        engine: Engine,
        directory: Directory,
        quarks: GTypeNames,
        names: Mapping[int, Callable[[int], str]],
        objects: Range,
    ) -> None:
        self._memory, self._engine, self._directory = memory, engine, directory
        self._quarks, self._names, self._objects = quarks, names, objects
        regions = memory.target.regions()
        self._code = merge_ranges(Range(one.start, one.end) for one in regions if one.executable)
        self._errors = array("I")  # the indices and the quarks of the blocks with a GError
        self._others = 0  # number of structures like a GError without the quark of an error domain
        self._has_slices = any(allocator.name == SLICES for _, allocator in directory.heaps.owners)
        self._domains: dict[int, str] = {}  # by quark
        self._checks: dict[int, bool] = {}  # by the address of a time zone or of a GSourceFuncs

    def find(self) -> Iterator[tuple[int, str]]:
        """Yield the index and the name of the structure in each block that has one. Takes
        microseconds for each structure."""
        waiting: dict[int, list[Structure]] = {}
        for one in self._candidates():
            kind = OTHER if one.kind == kinds.ERROR and not self._domain(one.first) else one.kind
            batch = waiting.setdefault(kind, [])
            batch.append(one)
            if len(batch) == BATCH:
                yield from self._name(kind, batch)
                batch.clear()
        for kind, batch in waiting.items():
            yield from self._name(kind, batch)
        yield from self._list_errors()

    def _name(self, kind: int, ones: Sequence[Structure]) -> Iterator[tuple[int, str]]:
        """Yield the index and the name of each structure of one kind, except errors, which are
        collected."""
        if kind == OTHER:
            self._others += len(self._with_text(ones))
        elif kind == kinds.ERROR:
            self._errors.extend(word for one in self._with_text(ones) for word in (one.block, one.first))
        else:
            for one in self._examine(kind, ones):
                yield one.block, self._name_one(one.block, kind)

    def _candidates(self) -> Iterator[Structure]:
        for start, end in self._directory.ranges():
            for piece in self._memory.target.pieces(start, end):
                found = list(find_structures(self._engine, self._directory.blocks, piece, self._code, MOST_QUARKS))
                sliced = self._list_sliced([one.block for one in found if one.kind in SLICED])
                yield from (one for one in found if one.kind not in SLICED or one.block in sliced)

    def _list_sliced(self, indices: Sequence[int]) -> Container[int]:
        """Return which of these blocks are in GSlice."""
        if not self._has_slices:
            return ()
        allocators = self._directory.heaps.allocators_at(self._directory.blocks.columns_of(array("I", indices)).address)
        return {index for index, one in zip(indices, allocators) if one is not None and one.name == SLICES}

    def _examine(self, kind: int, ones: Sequence[Structure]) -> Iterator[Structure]:
        """Yield the structures of one kind that refer to memory with the content that this kind
        requires."""
        address = self._directory.blocks.address
        if kind == kinds.STRING:
            data, _ = read_scattered(self._memory.target, self._engine, [one.first for one in ones], 1)
            yield from (one for one, byte in zip(ones, data) if not byte)
        elif kind == kinds.SEQUENCE:
            words = self._words([one.first + LAST_DATA for one in ones])
            yield from (one for one, word in zip(ones, words) if word == address(one.block))
        elif kind == kinds.QUEUE:
            before = self._words([one.first + PREVIOUS for one in ones])
            ones = [one for one, word in zip(ones, before) if not word]
            after = self._words([one.second + NEXT for one in ones])
            yield from (one for one, word in zip(ones, after) if not word)
        elif kind == kinds.TREE:
            data, _ = read_scattered(self._memory.target, self._engine, [one.first + FLAGS for one in ones], 3)
            rows = zip(ones, data[::3], data[1::3], data[2::3])
            yield from (one for one, balance, left, right in rows if balance in (0, 1, 255) and left <= 1 and right <= 1)
        elif kind in (kinds.DATE, kinds.SOURCE, kinds.CHANNEL):
            check = {kinds.DATE: self._is_zone, kinds.SOURCE: self._has_functions, kinds.CHANNEL: self._has_channel_functions}[kind]
            for one in ones:
                if one.first not in self._checks:
                    self._checks[one.first] = check(one.first)
                if self._checks[one.first]:
                    yield one
        elif kind == kinds.CLOSURE:
            # Programs have similar structures, but only closures refer to marshallers of GObject.
            yield from (one for one in ones if any(self._objects.start <= word < self._objects.end for word in (one.first, one.second)))
        elif kind == kinds.PLAIN_CLOSURE:
            # The first notifier frees the data, or refers to an object that is watched.
            firsts, functions = self._words([one.first for one in ones]), self._words([one.first + 8 for one in ones])
            yield from (one for one, word, function in zip(ones, firsts, functions) if word == one.second and self._is_code(function))
        elif kind == kinds.PART:
            starts, sizes = self._words([one.first for one in ones]), self._words([one.first + 8 for one in ones])
            yield from (one for one, start, size in zip(ones, starts, sizes) if start <= one.second < start + size)
        else:
            yield from ones

    def _words(self, places: Sequence[int]) -> Sequence[int]:
        """Return the words at these places; a word that cannot be read is 0."""
        data, _ = read_scattered(self._memory.target, self._engine, places, 8)
        return self._memory.arch.words(data)

    def _is_zone(self, address: int) -> bool:
        """Whether there is a GTimeZone at an address."""
        transitions, count = self._memory.word(address + TRANSITIONS), self._memory.int32(address + ZONE_COUNT)
        return bool(transitions and count and self._memory.int32(transitions + ELEMENT) == TRANSITION)

    def _has_functions(self, address: int) -> bool:
        """Whether there is a GSourceFuncs at an address."""
        words = self._memory.words(address, 4)
        return words is not None and words[DISPATCH] != 0 and all(not word or range_at(self._code, word) is not None for word in words)

    def _has_channel_functions(self, address: int) -> bool:
        """Whether there is a GIOFuncs at an address."""
        words = self._memory.words(address, CHANNEL_FUNCTIONS)
        return words is not None and all(map(self._is_code, words))

    def _is_code(self, address: int) -> bool:
        return range_at(self._code, address) is not None

    def _name_one(self, index: int, kind: int) -> str:
        name = self._names[kind](self._directory.blocks.address(index)) if kind in self._names else ""
        return f"{NAMES[kind]} of {name}" if name else NAMES[kind]

    def _domain(self, quark: int) -> str:
        """Return the name of an error domain; "" for other quarks."""
        if quark not in self._domains:
            name = self._quarks.quark(quark)
            self._domains[quark] = name if any(part in name for part in DOMAIN) else ""
        return self._domains[quark]

    def _list_errors(self) -> Iterator[tuple[int, str]]:
        """Yield the index and the name of each GError.

        Other structures can also begin with two small numbers and the address of a text. So most of
        the structures must have a quark that is the name of an error domain."""
        blocks, quarks = self._errors[::2], self._errors[1::2]
        if blocks and len(blocks) >= PART * (len(blocks) + self._others):
            yield from ((block, f"{NAMES[kinds.ERROR]} ({self._domain(quark)})") for block, quark in zip(blocks, quarks))

    def _with_text(self, ones: Sequence[Structure]) -> Sequence[Structure]:
        """Return the structures whose second word refers to text."""
        data, _ = read_scattered(self._memory.target, self._engine, [one.second for one in ones], 4)
        return [one for number, one in enumerate(ones) if _begins_text(bytes(data[4 * number : 4 * number + 4]))]


def _begins_text(data: bytes) -> bool:
    """Whether the bytes before the first NUL may begin a text: no control characters, and at least
    one byte."""
    text = data.partition(b"\0")[0]
    return bool(text) and all(byte >= 32 or byte in b"\t\n\r" for byte in text)
