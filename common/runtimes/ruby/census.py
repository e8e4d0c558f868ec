"""Count all slots of Ruby's heap by T_ type, by class and, for T_DATA, by data type.

Layouts: include/ruby/internal/core/{rbasic,rdata,rtypeddata}.h, internal/imemo.h of 2.7.4, 3.1.2
and 3.3.8. A slot begins with flags and its class. If the flags are 0, the slot is free. The low 5
bits of the flags are the type. In a typed T_DATA, the data type follows, then a flag of 1 (3 if the
data is in the slot). In an untyped T_DATA, the functions that mark and free the data follow."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from itertools import compress, starmap
from typing import NamedTuple

from findleaks.engine.contract import Engine
from findleaks.engine.records import NONE, Shape
from findleaks.runtimes.memory_part import Part
from findleaks.runtimes.ruby.pages import Pages, runs
from findleaks.target.base import Range
from findleaks.target.interruptible import interruptible

T_NONE, T_OBJECT, T_CLASS, T_MODULE, T_FLOAT, T_STRING, T_ARRAY, T_HASH, T_STRUCT = 0, 1, 2, 3, 4, 5, 7, 8, 9
T_FILE, T_DATA, T_SYMBOL, T_IMEMO, T_ICLASS, T_ZOMBIE, T_MOVED = 0xB, 0xC, 0x14, 0x1A, 0x1C, 0x1D, 0x1E
MASK = 0x1F
# Possible values of FL_SINGLETON, the flag of a class that has only one object: FL_USER0 before
# 3.4, FL_USER1 since 3.4.
SINGLETON_FLAGS = 1 << 12, 1 << 13
IMEMO_SHIFT, IMEMO_MASK = 12, 0xF

_NUMBERED = {
    0: "NONE OBJECT CLASS MODULE FLOAT STRING REGEXP ARRAY HASH STRUCT BIGNUM FILE DATA MATCH COMPLEX RATIONAL",
    0x11: "NIL TRUE FALSE SYMBOL FIXNUM UNDEF",
    0x1A: "IMEMO NODE ICLASS ZOMBIE MOVED",
}
TYPES = {number: name for first, names in _NUMBERED.items() for number, name in enumerate(names.split(), first)}
"""Names of enum ruby_value_type, without "T_"."""

_IMEMO_NAMES = "env cref svar throw_data ifunc memo ment iseq tmpbuf ast parser_strterm callinfo callcache constcache"
IMEMOS = tuple(_IMEMO_NAMES.split())  # enum imemo_type, from 0
METHOD_ENTRY = T_IMEMO | IMEMOS.index("ment") << IMEMO_SHIFT  # the flags of method entries
LAYOUTS = {T_OBJECT: 1 << 13, T_STRING: 3 << 13, T_ARRAY: 0x7FF << 12, T_HASH: 1 << 15 | 0xF << 20, T_STRUCT: 0x7F << 13}
"""Flags that show which data of an object is in its slot, and which data the slot only refers to;
see objects.py."""

PLAIN, _CLASSED = Shape(MASK), Shape(MASK, (8,))
SHAPES = {
    **{
        tag: _CLASSED
        for tag, name in TYPES.items()
        if name not in ("NONE", "CLASS", "MODULE", "IMEMO", "NODE", "ICLASS", "ZOMBIE", "MOVED")
    },
    **{tag: Shape(MASK | flags, (8,)) for tag, flags in LAYOUTS.items()},
    T_CLASS: Shape(MASK | SINGLETON_FLAGS[0] | SINGLETON_FLAGS[1]),
    T_DATA: Shape(MASK, (8, 16, 24)),
    T_IMEMO: Shape(MASK | IMEMO_MASK << IMEMO_SHIFT),
}


class Sort(NamedTuple):
    """A group of slots with the same size, relevant flags, class and data type.

    `klass` is 0 for hidden objects and for types that are not distinguished by class. `data` is 0
    for slots without a data type."""

    size: int
    flags: int
    klass: int
    data: int

    @property
    def tag(self) -> int:
        """The T_ type of the slots."""
        return self.flags & MASK


class Census:
    """All slots of these pages.

    `sorts[number]` is a group of slots, `counts[number]` the number of slots in it. `left` is the
    number of slots in no group."""

    def __init__(self, engine: Engine, pages: Pages) -> None:
        records = engine.records(SHAPES, MASK)
        self._target = pages.target
        self._chunks: list[tuple[array[int], array[int]]] = []
        for piece, some in interruptible(pages.target, pages.pieces()):
            spans = runs(some)
            self._chunks.append((spans, records.read(piece, spans)))
        self.sorts = list(starmap(_sort, records.keys()))
        self.counts = records.counts()
        self.left = records.left

    def by_type(self) -> dict[int, int]:
        """Return the number of slots by T_ type. T_NONE are the free slots."""
        found: dict[int, int] = {}
        for sort, count in zip(self.sorts, self.counts):
            found[sort.tag] = found.get(sort.tag, 0) + count
        return found

    def addresses(self, wanted: bytearray, kinds: array[int]) -> tuple[array[int], array[int], array[int]]:
        """Return the slots whose group is wanted: addresses ("Q", ascending), sizes ("I"), and the
        values of `kinds` ("I") for their groups.

        `wanted` and `kinds` are indexed by the group's number. They have one more element, for
        slots in no group."""
        addresses, sizes, found = array("Q"), array("I"), array("I")
        for start, size, numbers in self._runs():
            known = _replace_none(numbers, len(self.sorts))
            keep = bytes(map(wanted.__getitem__, known))
            chosen = array("Q", compress(range(start, start + size * len(numbers), size), keep))
            addresses += chosen
            sizes += array("I", [size]) * len(chosen)
            found += array("I", map(kinds.__getitem__, compress(known, keep)))
        return addresses, sizes, found

    def free(self) -> list[Range]:
        """Return the ranges of free slots."""
        dead = bytearray(sort.tag == T_NONE for sort in self.sorts) + b"\0"
        found = []
        for start, size, numbers in self._runs():
            marks = bytes(map(dead.__getitem__, _replace_none(numbers, len(self.sorts))))
            found += [Range(start + size * one.start(), start + size * one.end()) for one in re.finditer(b"\1+", marks)]
        return found

    def _runs(self) -> Iterator[tuple[int, int, array[int]]]:
        """Yield, for each page, the address of its first slot, the size of its slots, and the
        numbers of their groups."""
        for spans, numbers in interruptible(self._target, self._chunks):
            at = 0
            for start, size, count in zip(spans[0::4], spans[1::4], spans[2::4]):
                yield start, size, numbers[at : at + count]
                at += count


def _replace_none(numbers: array[int], count: int) -> array[int]:
    """Return the numbers, with NONE replaced by `count`, which is the number after the last
    group."""
    return array("I", (min(number, count) for number in numbers)) if NONE in numbers else numbers


def _sort(flags: int, klass: int, data: int, mark: int) -> Sort:
    """Return the group for a key of `Records`. In an untyped T_DATA, `data` and `mark` are its
    functions."""
    typed = flags & MASK == T_DATA and mark in (1, 3)
    return Sort(flags >> 32, flags & 0xFFFFFFFF, klass, data if typed else 0)


def describe_pages(census: Census, pages: Pages, page: int, is_inside: bool) -> Part:
    """Return the heap pages as a part of the runtime's memory. `page`: the size of a page in bytes.
    `is_inside`: whether pages are in blocks of malloc."""
    live = [(sort.size, count) for sort, count in zip(census.sorts, census.counts) if sort.tag != T_NONE]
    count, free = sum(number for _, number in live), census.by_type().get(T_NONE, 0)
    detail = f"{len(pages.all):,} pages of {page >> 10} KiB: {count:,} slots live, {free:,} free"
    unswept = sum(one.unswept for one in pages.all)
    if unswept:
        detail += f"; {unswept:,} pages not swept yet"
    return Part("heap pages", pages.ranges(), sum(size * number for size, number in live), is_inside, detail)
