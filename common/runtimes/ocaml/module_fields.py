"""Find the fields of OCaml's modules that refer to the most memory.

A program that ocamlopt compiled has a block of static data for each module. The fields of the block
are the values that the module defines, in the order of their definitions. The binary has no names
for these fields. `caml_globals` is a list of lists of these blocks. Each list ends with 0
(OCaml 4.13, runtime/roots_nat.c, caml_oldify_local_roots).

A value is an odd number or the address of a block. The word before a block is its header: its
number of words << 10 | color << 8 | tag (runtime/caml/mlvalues.h)."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Optional

from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.errors import UnreadableMemory
from findleaks.runtimes.unread_heaps import Holder
from findleaks.target.base import Range, Target
from findleaks.target.ranges import subtract

_GLOBALS, _PREFIX = "caml_globals", "caml"
_MOST_MODULES, _MOST_FIELDS = 1 << 14, 1 << 12  # modules; fields of each
_MOST_OBJECTS, _MOST_WORDS = 1 << 19, 1 << 22  # that are visited in all
_STEP = 1 << 12  # objects between two checks for Ctrl-C
_WINDOW = 1 << 16  # bytes that are read at a time

_INFIX, _NO_SCAN, _CUSTOM, _ABSTRACT = 249, 251, 255, 251  # tags; no values from _NO_SCAN on
_CUSTOM_WORDS = 8  # first words of a custom block, which may refer to memory of C


def list_holders(target: Target, blocks: Blocks, heaps: Sequence[Range], check: Callable[[], None]) -> list[Holder]:
    """Return the fields that refer to memory. Fields that refer to the most bytes come first. If
    several fields refer to the same memory, it counts for only one field: that of the module that
    was linked last, because libraries are linked first. `check` is called now and then, and raises
    an exception after Ctrl-C."""
    visit = _Visit(target, blocks, heaps, check)
    found = [holder for name, module in reversed(list(_modules(target, visit))) for holder in visit.fields_of(name, module)]
    return sorted((one for one in found if one.bytes), key=lambda one: (-one.bytes, one.name))


def _modules(target: Target, visit: _Visit) -> Iterator[tuple[str, int]]:
    """Yield name and address of the block of each module."""
    table = target.symbol(_GLOBALS)
    if table is None:
        return
    symbols = target.symbols_starting(_PREFIX)
    names = {one.address: one.name for one in sorted(symbols, key=lambda one: -len(one.name))}
    word = target.arch.word
    for number in range(_MOST_MODULES):
        blocks = visit.word(table.address + number * word)
        if not blocks:
            return
        for at in range(blocks, blocks + _MOST_MODULES * word, word):
            module = visit.word(at)
            if not module:
                break
            if module in names:
                yield names[module][len(_PREFIX) :].replace("__", "."), module


class _Visit:
    """Follows values, and visits each object once."""

    def __init__(self, target: Target, blocks: Blocks, heaps: Sequence[Range], check: Callable[[], None]) -> None:
        self._target, self._blocks, self._check = target, blocks, check
        self._bytes = target.arch.word
        self._windows: dict[int, array[int]] = {}
        regions = [region for region in target.regions() if region.readable and region.writable]
        self._outside = subtract([Range(region.start, region.end) for region in regions], heaps)
        self._starts, self._ends = array("Q"), array("Q")  # memory in which objects were found
        self._visited: set[int] = set()
        self._words = 0

    def word(self, address: int) -> int:
        """Return the word at an address; 0 if it is unreadable or not aligned."""
        number, offset = divmod(address, _WINDOW)
        window = self._windows.get(number)
        if window is None:
            window = self._windows[number] = self._read(number * _WINDOW)
        return window[offset // self._bytes] if offset % self._bytes == 0 else 0

    def _read(self, start: int) -> array[int]:
        self._check()
        data = b""
        for at in range(start, start + _WINDOW, 4096):
            try:
                data += self._target.read(at, 4096)
            except (UnreadableMemory, OverflowError):
                data += bytes(4096)
        words = array("Q" if self._bytes == 8 else "I", data)
        if self._target.arch.byteorder != sys.byteorder:
            words.byteswap()
        return words

    def fields_of(self, name: str, module: int) -> Iterator[Holder]:
        """Yield what each field of a module's block refers to."""
        count = min(self.word(module - self._bytes) >> 10, _MOST_FIELDS)
        for number in range(count):
            value = self.word(module + number * self._bytes)
            objects, blocks, held = self._follow(value)
            if objects:
                what = self._hash_table(value)
                label = f"field {number + 1} of the module {name}{f' ({what})' if what else ''}"
                yield Holder(label, objects, blocks, held, not self._is_full)

    @property
    def _is_full(self) -> bool:
        return self._words >= _MOST_WORDS or len(self._visited) >= _MOST_OBJECTS

    def _follow(self, value: int) -> tuple[int, int, int]:
        """Return the number of objects that a value refers to, directly or through other objects,
        the number of malloc's blocks to which these objects refer, and the bytes of both. Objects
        and blocks that were visited before are not counted."""
        objects, foreign, held, waiting = 0, 0, 0, [value]
        while waiting and not self._is_full:
            if len(self._visited) % _STEP == 0:
                self._check()
            value = waiting.pop()
            if value in self._visited or value % self._bytes or value < _WINDOW:
                continue
            header = self._header(value)
            if header is None:
                size = self._foreign(value)
                foreign, held = foreign + (size > 0), held + size
                continue
            size, tag = header >> 10, header & 255
            if tag == _INFIX:
                waiting.append(value - size * self._bytes)
                continue
            self._visited.add(value)
            objects, held = objects + 1, held + (size + 1) * self._bytes
            if tag >= _NO_SCAN:
                size = min(size, _CUSTOM_WORDS) if tag in (_CUSTOM, _ABSTRACT) else 0
                words = [word for word in self._words_at(value, size) if self._header(word) is None]
            else:
                words = self._words_at(value, size)
            self._words += size + 1
            waiting += words
        return objects, foreign, held

    def _words_at(self, address: int, count: int) -> list[int]:
        return [self.word(at) for at in range(address, address + min(count, _MOST_WORDS) * self._bytes, self._bytes)]

    def _header(self, value: int) -> Optional[int]:
        """Return the header of the object at an address; None if no object can be there."""
        place = bisect_right(self._starts, value - self._bytes) - 1
        if place < 0 or value >= self._ends[place]:
            extent = self._extent(value - self._bytes)
            if extent is None:
                return None
            place = bisect_right(self._starts, extent.start)
            self._starts.insert(place, extent.start)
            self._ends.insert(place, extent.end)
        header = self.word(value - self._bytes)
        return header if value + (header >> 10) * self._bytes <= self._ends[place] and (header >> 10 or not header) else None

    def _extent(self, address: int) -> Optional[Range]:
        """Return the range of the block of malloc, or of the memory outside heaps, that contains an
        address; None if there is none."""
        found = self._blocks.lookup(address)
        if found is not None:
            return Range(found[1], found[1] + found[2]) if found[3] == State.IN_USE else None
        place = bisect_right(self._outside, Range(address, 1 << 64)) - 1
        return self._outside[place] if place >= 0 and address < self._outside[place].end else None

    def _foreign(self, address: int) -> int:
        """Return the size of the block of malloc that starts at an address; 0 if there is none.
        Mark the block as visited, so that it is counted only once."""
        found = self._blocks.lookup(address)
        if found is None or found[1] != address or found[3] != State.IN_USE:
            return 0
        self._visited.add(address)
        return found[2]

    def _hash_table(self, value: int) -> str:
        """Return "hash table, 20,000 entries" if a value is a Hashtbl.t: {size; buckets; seed;
        initial size} (stdlib/hashtbl.ml)."""
        if self._header(value) is None or self.word(value - self._bytes) & ~0x300 != 4 << 10:
            return ""
        size, buckets, seed, initial = self._words_at(value, 4)
        header = (self._header(buckets) if buckets % self._bytes == 0 else None) or 0
        count = header >> 10
        is_table = size & seed & initial & 1 and count and not count & (count - 1) and not header & 255
        return f"hash table, {size >> 1:,} entries" if is_table else ""
