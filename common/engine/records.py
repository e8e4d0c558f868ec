"""Sorting the records of managed heaps by what some of their words say: a slot's flags and class, an object's type.

A *record* is a stretch of memory whose first word's low bits, the *tag*, say which of its other words tell its sort. Its *key* is that
first word, masked, and up to three more words. Keys get numbers in the order in which they are met; each record gets its key's number.
"""

from __future__ import annotations

import ctypes
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from ctypes import byref, c_uint64
from typing import NamedTuple, Protocol

from findleaks.engine.kernel.library import DISORDER, check
from findleaks.engine.kernel.memory import c_array, c_piece
from findleaks.target.arch import Arch
from findleaks.target.base import Piece

COLUMNS = 3
RUN = 4
"""Words of a run of records: start, stride, count, mark. The mark is or-ed into the first words of its records' keys."""

NONE = 0xFFFFFFFF
"""In place of a number: there are too many keys, and this record's is not among them."""

MOST = 1 << 20
"""Keys that are told apart."""

KNOWN = 1 << 16
"""First words of records whose numbers the twin remembers."""

Key = tuple[int, int, int, int]


class Shape(NamedTuple):
    """What makes up the key of a record: the mask of its first word, and the offsets of up to three more words (multiples of a word, above
    0)."""

    mask: int
    offsets: tuple[int, ...] = ()


class Records(Protocol):
    """Made by `Engine.records`."""

    @property
    def left(self) -> int:
        """Records that got no number, for there were too many keys."""
        ...

    def read(self, piece: Piece, runs: array[int]) -> array[int]:
        """The numbers ("I") of the records of these runs (`RUN` words each, "Q"), one behind the other. ValueError, and nothing counted,
        unless every record lies whole and aligned in `piece` and is as long as the shapes ask for."""
        ...

    def keys(self) -> list[Key]:
        """The keys, by number; words that a key does not have are 0."""
        ...

    def counts(self) -> list[int]:
        """How many records each key had so far, by number."""
        ...


def shape_words(shapes: Mapping[int, Shape], tag_mask: int) -> array[int]:
    """The shapes of all tags as the kernel takes them; a tag that is not listed has nothing but itself in its key."""
    if tag_mask & (tag_mask + 1) or tag_mask > 0xFFF:
        raise ValueError(f"no mask of low bits: {tag_mask:#x}")
    words = array("Q")
    for tag in range(tag_mask + 1):
        mask, offsets = shapes.get(tag, Shape(tag_mask))
        words.extend((mask, *offsets, *(0 for _ in range(COLUMNS - len(offsets)))))
    return words


class PureRecords:
    """See Records."""

    def __init__(self, arch: Arch, shapes: Mapping[int, Shape], tag_mask: int, most: int = MOST) -> None:
        self._arch, self._tag_mask, self._most = arch, tag_mask, most
        shape_words(shapes, tag_mask)
        self._shapes = [shapes.get(tag, Shape(tag_mask)) for tag in range(tag_mask + 1)]
        self._reach = max(offset for shape in self._shapes for offset in (0, *shape.offsets)) + arch.word
        self._numbers: dict[Key, int] = {}
        self._counts: list[int] = []
        self._known: dict[int, dict[tuple[int, ...], int]] = {}  # by mark: numbers by the first words of records
        self._left = 0

    @property
    def left(self) -> int:
        """See Records."""
        return self._left

    def read(self, piece: Piece, runs: array[int]) -> array[int]:
        """See Records."""
        word, end = self._arch.word, piece.address + len(piece.data)
        for start, stride, count in zip(runs[::RUN], runs[1::RUN], runs[2::RUN]):
            inside = piece.address <= start <= end and start % word == 0 and stride % word == 0 and stride >= self._reach
            if not inside or count > (end - start) // stride:
                raise ValueError(f"records at {start:#x} do not lie in their piece")
        made = array("I")
        for start, stride, count, mark in zip(*(runs[i::RUN] for i in range(RUN))):
            words = self._arch.unpack(bytes(piece.data[start - piece.address : start - piece.address + stride * count]))
            made += self._run(words, stride // word, mark)
        return made

    def _run(self, words: Sequence[int], step: int, mark: int) -> array[int]:
        """The numbers of records of `step` words."""
        word, tag_mask, shapes, known = self._arch.word, self._tag_mask, self._shapes, self._known.setdefault(mark, {})
        numbers = array("I")
        for at, (first, second) in enumerate(zip(words[::step], words[1::step] if step > 1 else words)):
            mask, offsets = shapes[first & tag_mask]
            # Most records have the same few first words, and only one more in their key, if any: the one behind it.
            seen = (first, second) if offsets == (word,) else (first,) if not offsets else ()
            number = known.get(seen) if seen else None
            if number is None:
                more = [*(words[at * step + offset // word] for offset in offsets), *(0 for _ in range(COLUMNS))]
                number = self._number((first & mask | mark, more[0], more[1], more[2]))
                if seen and number != NONE and len(known) < KNOWN:
                    known[seen] = number
            numbers.append(number)
        for number, count in Counter(numbers).items():
            if number == NONE:
                self._left += count
            else:
                self._counts[number] += count
        return numbers

    def keys(self) -> list[Key]:
        """See Records."""
        return list(self._numbers)

    def counts(self) -> list[int]:
        """See Records."""
        return list(self._counts)

    def _number(self, key: Key) -> int:
        number = self._numbers.get(key)
        if number is None:
            if len(self._numbers) >= self._most:
                return NONE
            number = self._numbers[key] = len(self._numbers)
            self._counts.append(0)
        return number


class KernelRecords:
    """See Records."""

    def __init__(self, library: ctypes.CDLL, shapes: Mapping[int, Shape], tag_mask: int, most: int = MOST) -> None:
        self._library = library
        words = shape_words(shapes, tag_mask)
        self._handle = library.fl_records_new(c_array(words), tag_mask, most)
        if not self._handle:
            raise MemoryError("no memory for sorting records")

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.fl_records_free(self._handle)

    def read(self, piece: Piece, runs: array[int]) -> array[int]:
        """See Records."""
        numbers = array("I", bytes(4 * self._count(piece, runs)))
        arguments = (c_piece(piece), c_array(runs), len(runs) // RUN, c_array(numbers))
        if check(self._library.fl_records(self._handle, *arguments), "records") == DISORDER:
            raise ValueError("records do not lie in their piece")
        return numbers

    def _count(self, piece: Piece, runs: Sequence[int]) -> int:
        """How many records there are; no more than the piece has words, or the kernel will refuse them."""
        count = sum(runs[2::RUN])
        if count > len(piece.data):
            raise ValueError("records do not lie in their piece")
        return count

    @property
    def left(self) -> int:
        """See Records."""
        return self._read()[2]

    def keys(self) -> list[Key]:
        """See Records."""
        words = self._read()[0]
        return list(zip(words[0::4], words[1::4], words[2::4], words[3::4]))

    def counts(self) -> list[int]:
        """See Records."""
        return self._read()[1].tolist()

    def _read(self) -> tuple[array[int], array[int], int]:
        left = c_uint64()
        count = self._library.fl_records_keys(self._handle, 0, None, None, byref(left))
        keys, counts = array("Q", bytes(8 * (1 + COLUMNS) * count)), array("Q", bytes(8 * count))
        if count:
            self._library.fl_records_keys(self._handle, 0, c_array(keys), c_array(counts), byref(left))
        return keys, counts, left.value
