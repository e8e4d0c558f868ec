"""The spread of types over blocks in the C engine (common/native/type_spread.c)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Optional

from findleaks.engine.native.blocks import NativeBlocks
from findleaks.engine.native.library import DISORDER, Handle
from findleaks.engine.native.memory import c_array, c_pieces, c_ranges, zeros
from findleaks.engine.type_spread import GROUP, LEVEL_SHIFT, NO_ORIGIN, Level, Pointers
from findleaks.target.base import Piece, Range

_ROW = 5  # words before the pointers of a rule


class NativeTypeSpread:
    """See type_spread.TypeSpread. 8 bytes a block, and 8 for each block that waits for its
    visit."""

    def __init__(self, blocks: NativeBlocks) -> None:
        blocks.seal()
        self._blocks, self._library = blocks, blocks.library
        count = max(len(blocks), 1)
        self._claims, self._origins = zeros("I", count), array("I", [NO_ORIGIN]) * count
        self._held = c_array(self._claims), c_array(self._origins)
        made = self._library.fl_spread_new(blocks.handle, *self._held)
        self._handle = Handle(made, self._library.fl_spread_free, "for the types of blocks")
        self.use(())

    def use(self, pieces: Sequence[Piece]) -> None:
        self._pieces = c_pieces(pieces)
        self._library.fl_spread_use(self._handle, *self._pieces)

    def set_memory(self, mapped: Sequence[Range], code: Sequence[Range]) -> None:
        self._memory = *c_ranges(mapped), *c_ranges(code)
        self._library.fl_spread_memory(self._handle, *self._memory)

    def add_layout(self, groups: Sequence[int], slots: Sequence[int], checks: Sequence[int] = ()) -> int:
        rows, pairs, words = (array("Q", one) for one in (groups, slots, checks))
        counts = (c_array(rows), len(rows) // GROUP, c_array(pairs), len(pairs) // 2, c_array(words), len(words) // 2)
        made = self._library.fl_spread_layout(self._handle, *counts)
        if made == DISORDER:
            raise ValueError("no such layout")
        return int(made)

    def add_choices(self, layouts: Sequence[int]) -> int:
        packed = array("I", layouts)
        made = self._library.fl_spread_choices(self._handle, c_array(packed), len(packed))
        if made == DISORDER:
            raise ValueError("no such layout")
        return int(made)

    def add_root(self, address: int, size: int, layout: int) -> int:
        made = self._library.fl_spread_root(self._handle, address, size, layout)
        if made == DISORDER:
            raise ValueError(f"no layout {layout}")
        return int(made)

    def seed(self, index: int, layout: int, level: Level, inferred: bool, origin: int = NO_ORIGIN) -> bool:
        made = self._library.fl_spread_seed(self._handle, index, layout | level << LEVEL_SHIFT, inferred, origin)
        if made == DISORDER:
            raise ValueError(f"no layout {layout}, or no block {index}")
        return bool(made)

    def seed_words(self, words: array[int], layouts: array[int], least: array[int]) -> None:
        self._library.fl_spread_seed_words(self._handle, c_array(words), c_array(layouts), c_array(least), len(words))

    def run(self, budget: int) -> bool:
        return not self._library.fl_spread_run(self._handle, max(1, budget))

    def questions(self) -> array[int]:
        return self._library.words(self._library.fl_spread_questions, self._handle)

    def answer(self, questions: array[int], answers: array[int]) -> None:
        if self._library.fl_spread_answer(self._handle, c_array(questions), c_array(answers), len(answers)) == DISORDER:
            raise ValueError("no such question or layout")

    def deferred(self) -> list[Pointers]:
        words, found, at = self._library.words(self._library.fl_spread_deferred, self._handle), [], 0
        while at < len(words):
            reference, offset, size, total, listed = words[at : at + _ROW]
            end = at + _ROW + 3 * listed
            found.append(Pointers(reference, offset, size, total, words[at + _ROW : end]))
            at = end
        return found

    def revisit(self, references: Sequence[int]) -> None:
        packed = array("I", references)
        self._library.fl_spread_revisit(self._handle, c_array(packed), len(packed))

    def match(self, layout: int, indices: array[int], flags: bytearray) -> Optional[array[int]]:
        counts = zeros("I", max(3 * len(indices), 1))
        sizes = c_array(indices), len(indices), c_array(flags or bytearray(1)), len(flags)
        code = self._library.fl_spread_match(self._handle, layout, *sizes, c_array(counts))
        if code == DISORDER:
            raise ValueError(f"no layout {layout}")
        return None if code else counts[: 3 * len(indices)]

    def classes(self, indices: array[int], words: int) -> array[int]:
        found = zeros("Q", max(words * len(indices), 1))
        self._library.fl_spread_classes(self._handle, c_array(indices), len(indices), words, c_array(found))
        return found[: words * len(indices)]

    def disputes(self) -> list[int]:
        return sorted(set(self._library.words(self._library.fl_spread_disputes, self._handle)))

    def retract(self) -> int:
        return int(self._library.fl_spread_retract(self._handle))

    def claims(self) -> array[int]:
        return self._claims

    def origins(self) -> array[int]:
        return self._origins
