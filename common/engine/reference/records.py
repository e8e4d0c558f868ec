"""Sort records of managed heaps, in pure Python."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence

from findleaks.engine.records import COLUMNS, MOST, NONE, RUN, Key, Shape, shape_words
from findleaks.target.arch import Arch
from findleaks.target.base import Piece

CACHED_KEYS = 1 << 16  # number of keys that the Python engine caches, by their first words


class PureRecords:
    """See Records."""

    def __init__(self, arch: Arch, shapes: Mapping[int, Shape], tag_mask: int, most: int = MOST) -> None:
        self._arch, self._tag_mask, self._most = arch, tag_mask, most
        shape_words(shapes, tag_mask)
        self._shapes = [shapes.get(tag, Shape(tag_mask)) for tag in range(tag_mask + 1)]
        self._reach = max(offset for shape in self._shapes for offset in (0, *shape.offsets)) + arch.word
        self._numbers: dict[Key, int] = {}
        self._counts: list[int] = []
        # by mark: numbers by the first words of records
        self._numbers_by_words: dict[int, dict[tuple[int, ...], int]] = {}
        self._left = 0

    @property
    def left(self) -> int:
        return self._left

    def read(self, piece: Piece, runs: array[int]) -> array[int]:
        word, end = self._arch.word, piece.address + len(piece.data)
        for start, stride, count in zip(runs[::RUN], runs[1::RUN], runs[2::RUN]):
            inside = piece.address <= start <= end and start % word == 0 and stride % word == 0 and stride >= self._reach
            if not inside or count > (end - start) // stride:
                raise ValueError(f"records at {start:#x} are not in their piece")
        made = array("I")
        for start, stride, count, mark in zip(*(runs[i::RUN] for i in range(RUN))):
            words = self._arch.unpack(bytes(piece.data[start - piece.address : start - piece.address + stride * count]))
            made += self._run(words, stride // word, mark)
        return made

    def _run(self, words: Sequence[int], step: int, mark: int) -> array[int]:
        word, tag_mask, shapes, known = self._arch.word, self._tag_mask, self._shapes, self._numbers_by_words.setdefault(mark, {})
        numbers = array("I")
        for at, (first, second) in enumerate(zip(words[::step], words[1::step] if step > 1 else words)):
            mask, offsets = shapes[first & tag_mask]
            # Most records have one of a few different first words, and have at most the second word
            # in their key.
            seen = (first, second) if offsets == (word,) else (first,) if not offsets else ()
            number = known.get(seen) if seen else None
            if number is None:
                more = [*(words[at * step + offset // word] for offset in offsets), *(0 for _ in range(COLUMNS))]
                number = self._number((first & mask | mark, more[0], more[1], more[2]))
                if seen and number != NONE and len(known) < CACHED_KEYS:
                    known[seen] = number
            numbers.append(number)
        for number, count in Counter(numbers).items():
            if number == NONE:
                self._left += count
            else:
                self._counts[number] += count
        return numbers

    def keys(self) -> list[Key]:
        return list(self._numbers)

    def counts(self) -> list[int]:
        return list(self._counts)

    def _number(self, key: Key) -> int:
        number = self._numbers.get(key)
        if number is None:
            if len(self._numbers) >= self._most:
                return NONE
            number = self._numbers[key] = len(self._numbers)
            self._counts.append(0)
        return number
