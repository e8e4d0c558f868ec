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
from collections.abc import Sequence

from findleaks.engine.terms import EVERY_WORD, LAST_WORD, Exclusion
from findleaks.runtimes.lua.layout import FUNCTION, TABLE, USERDATA, Layout
from findleaks.target.base import Range

VALUE = 16  # bytes of a value (TValue): first an object's address or a number, then the type
_UNSET = re.compile(rb"[\x00\x10\x20\x01\x11]+")  # types nil, empty, absent key, false and true
_NIL = re.compile(rb"[\x00\x10\x20]+")
_BOOLEAN = re.compile(rb"[\x01\x11]")
_MOST_PATTERNS = 256
_MOST_RANGES = 1 << 17
_LONGER = 0x80  # flag of a table of 5.4: the array is longer than `alimit`
_CLOSED = 24  # offset of the value in a closed upvalue, whose function has returned
_TABLE_BYTES = {"5.1": 64}  # bytes of a Table; 56 since 5.2
_HEAD = 0xFFFF00FF  # mask of the second word of an object, without the collector's bits
_MOST_KNOWN = 32  # patterns are reused only for parts with fewer values or nodes
_USERDATA_LENGTH = {"5.1": 32, "5.2": 32, "5.3": 24, "5.4": 16}  # offset of the length

Words = tuple[int, int]
"""Successive words of a block: the index of the first one, and of the one after the last one."""


class Unused:
    """The words of blocks that are not references.

    - `exclusions` has the mask of such words for each pattern. The masks that are given come first.
    - `ranges` has the words that no pattern can describe.
    - `is_full` is True if `ranges` cannot have all these words. The others count as references."""

    def __init__(self, exclusions: Sequence[Exclusion]) -> None:
        self.exclusions = list(exclusions)
        self.ranges: list[Range] = []
        self.is_full = False
        self._numbers = {one.words: number for number, one in enumerate(self.exclusions)}
        self._known: dict[object, int] = {}  # patterns, by the properties on which they depend

    def object_pattern(self, layout: Layout, plain: int, start: int, size: int, words: Sequence[int], is_c: bool) -> int:
        """Return the pattern of an object, given its first 9 words; see `pattern` and
        `list_unused`."""
        length = words[_USERDATA_LENGTH[layout.version] // 8] if words[1] & 15 == USERDATA else 0
        key = layout.version, plain, size, words[1] & _HEAD, words[4] & 15 < 2, is_c, length
        number = self._known.get(key)
        if number is None:
            number = self._remember(key, plain, start, size, list_unused(layout, size, words, is_c))
        return number

    def part_pattern(self, layout: Layout, start: int, size: int, data: bytes, step: int) -> int:
        """Return the pattern of a block with the values or nodes `data`, each of `step` words.
        No words are excluded if `data` is unreadable (b"")."""
        if not data:
            return 0
        tags = data[8 : 8 * step * _MOST_KNOWN : 8 * step]
        key = layout.version, size, step, len(data), tags
        number = self._known.get(key) if len(data) < 8 * step * _MOST_KNOWN else None
        if number is None:
            found = list_unused_values(layout, data, size) if step == VALUE // 8 else list_unused_nodes(data, size, step)
            number = self._remember(key, 0, start, size, found)
        return number

    def _remember(self, key: object, plain: int, start: int, size: int, words: Sequence[Words]) -> int:
        count = len(self.ranges)
        number = self.pattern(plain, start, size, words)
        if count == len(self.ranges) and len(self._known) < _MOST_RANGES:
            self._known[key] = number
        return number

    def pattern(self, plain: int, start: int, size: int, words: Sequence[Words]) -> int:
        """Return the pattern of the block of `size` bytes at `start`. `plain`: the pattern of the
        words to exclude in all objects of the type. `words`: further words to exclude."""
        mask, count = self.exclusions[plain].words, size // 8
        beyond: list[Words] = []
        for first, end in words:
            if first < LAST_WORD and (end <= LAST_WORD or end >= count):
                # Including the words after the block does no harm, and results in fewer masks.
                mask |= EVERY_WORD << first & EVERY_WORD >> (LAST_WORD + 1 - end if end < count else 0)
            else:
                beyond.append((first, min(end, count)))
        number = self._numbers.get(mask)
        if number is None:
            if len(self.exclusions) >= _MOST_PATTERNS:
                number, beyond = plain, [(first, min(end, count)) for first, end in words]
            else:
                number = self._numbers[mask] = len(self.exclusions)
                self.exclusions.append(Exclusion(mask))
        for first, end in beyond:
            if len(self.ranges) >= _MOST_RANGES:
                self.is_full = True
                break
            self.ranges.append(Range(start + 8 * first, start + 8 * end))
        return number


def list_unused(layout: Layout, size: int, words: Sequence[int], is_c: bool) -> list[Words]:
    """Return the unused words of an object in a block of `size` bytes, given its first 9 words.
    `is_c`: whether the object is a function written in C. No words of strings, threads and
    prototypes are returned."""
    kind, old, version = words[1] & 15, layout.version == "5.1", layout.version
    used, found = size, []
    if kind == TABLE:
        used = _TABLE_BYTES.get(version, 56)
    elif kind == FUNCTION:
        used = layout.function + 8 + (words[1] >> (24 if old else 16) & 0xFF) * (VALUE if is_c else 8)
    elif kind == USERDATA:
        values = words[1] >> 16 & 0xFFFF if version == "5.4" else 0
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


def list_unused_values(layout: Layout, data: bytes, size: int, most: int = LAST_WORD // 2) -> list[Words]:
    """Return the unused words of a block of `size` bytes that begins with the array `data`. In Lua
    5.4, the second words of used values are included, but only for the first `most` values."""
    tags, step = data[8::VALUE], VALUE // 8
    found = [(step * run.start(), step * run.end()) for run in _UNSET.finditer(tags)]
    if layout.version == "5.4":
        found += [(step * number + 1, step * number + 2) for number, tag in enumerate(tags[:most]) if tag & 15 > 1]
    return [*found, (step * len(tags), size // 8)] if len(data) < size else found


def list_unused_nodes(data: bytes, size: int, step: int) -> list[Words]:
    """Return the unused words of a block of `size` bytes that begins with the nodes `data`, each of
    `step` words. Booleans are found only in the first LAST_WORD words, which patterns describe."""
    tags = data[8 :: 8 * step]
    found = [(step * run.start(), step * run.end()) for run in _NIL.finditer(tags)]
    found += [(step * one.start(), step * one.start() + 1) for one in _BOOLEAN.finditer(tags, 0, LAST_WORD // step)]
    return [*found, (step * len(tags), size // 8)] if len(data) < size else found
