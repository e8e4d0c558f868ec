"""The spread of types over blocks in the C engine (common/native/type_spread.c)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Optional, Union

from findleaks.engine.native.blocks import NativeBlocks
from findleaks.engine.native.library import DISORDER, Handle
from findleaks.engine.native.memory import c_array, c_pieces, c_ranges, large_zeros, zeros
from findleaks.engine.type_spread import GROUP, LEVEL_SHIFT, NO_FEATURE, NO_ORIGIN, OPTION, Choosing, Level, Pointers
from findleaks.target.base import Piece, Range

_ROW = 6  # words of a rule before its pointers


class NativeTypeSpread:
    """See type_spread.TypeSpread. Takes 8 bytes a block, and 8 bytes for each block that waits for
    its visit."""

    def __init__(self, blocks: NativeBlocks) -> None:
        blocks.seal()
        self._blocks, self._library = blocks, blocks.library
        count = max(len(blocks), 1)
        self._claims, self._origins = large_zeros(count), large_zeros(count)
        self._held = c_array(self._claims), c_array(self._origins)
        made = self._library.fl_spread_new(blocks.handle, *self._held)
        self._handle = Handle(made, self._library.fl_spread_free, "for the types of blocks")
        self.use(())

    def use(self, pieces: Sequence[Piece]) -> None:
        self._pieces = c_pieces(pieces)
        self._library.fl_spread_use(self._handle, *self._pieces)

    def set_memory(self, mapped: Sequence[Range], code: Sequence[Range], instructions: Sequence[Range] = ()) -> None:
        self._memory = *c_ranges(mapped), *c_ranges(code), *c_ranges(instructions)
        self._library.fl_spread_memory(self._handle, *self._memory)

    def set_flags(self, flags: bytearray) -> None:
        self._flags = c_array(flags), len(flags)
        self._library.fl_spread_flags(self._handle, *self._flags)

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

    def add_roots(self, addresses: array[int], sizes: array[int], layouts: array[int]) -> None:
        columns = c_array(addresses), c_array(sizes), c_array(layouts), len(addresses)
        if self._library.fl_spread_roots(self._handle, *columns) == DISORDER:
            raise ValueError("no such layout")

    def seed(self, index: int, layout: int, level: Level, inferred: bool, origin: int = NO_ORIGIN) -> bool:
        made = self._library.fl_spread_seed(self._handle, index, layout | level << LEVEL_SHIFT, inferred, origin)
        if made == DISORDER:
            raise ValueError(f"no layout {layout}, or no block {index}")
        return bool(made)

    def seed_all(self, indices: array[int], layout: int, level: Level) -> None:
        if self._library.fl_spread_seed_all(self._handle, c_array(indices), len(indices), layout | level << LEVEL_SHIFT) == DISORDER:
            raise ValueError(f"no layout {layout}, or no such block")

    def relabel(self, indices: array[int], layout: int) -> None:
        if self._library.fl_spread_relabel(self._handle, c_array(indices), len(indices), layout) == DISORDER:
            raise ValueError(f"no layout {layout}")

    def seed_words(self, words: array[int], layouts: array[int], least: array[int], level: Level = Level.SEED) -> None:
        self._library.fl_spread_seed_words(self._handle, c_array(words), c_array(layouts), c_array(least), len(words), level)

    def run(self, budget: int) -> bool:
        return not self._library.fl_spread_run(self._handle, max(1, budget))

    def questions(self) -> array[int]:
        return self._library.words(self._library.fl_spread_questions, self._handle)

    def answer(self, questions: array[int], answers: array[int]) -> None:
        if self._library.fl_spread_answer(self._handle, c_array(questions), c_array(answers), len(answers)) == DISORDER:
            raise ValueError("no such question or layout")

    def take_deferred(self) -> list[Pointers]:
        words, found, at = self._library.words(self._library.fl_spread_deferred, self._handle), [], 0
        while at < len(words):
            reference, offset, size, total, untyped, typed = words[at : at + _ROW]
            middle = at + _ROW + 3 * untyped
            end = middle + 3 * typed
            found.append(Pointers(reference, offset, size, total, words[at + _ROW : middle], words[middle:end]))
            at = end
        return found

    def revisit(self, references: Sequence[int]) -> None:
        packed = array("I", references)
        self._library.fl_spread_revisit(self._handle, c_array(packed), len(packed))

    def queue_doubtful(self) -> None:
        self._library.fl_spread_doubtful(self._handle)

    def confirm(self) -> None:
        self._library.fl_spread_confirm(self._handle)

    def set_pools(self, indices: array[int]) -> None:
        if self._library.fl_spread_pools(self._handle, c_array(indices), len(indices)) == DISORDER:
            raise ValueError("no such block")

    def take_pool_pointers(self) -> array[int]:
        return self._library.words(self._library.fl_spread_pool_pointers, self._handle)

    @staticmethod
    def _unless_asked(code: int, found: array[int]) -> Optional[array[int]]:
        """Return the result of a comparison; None if questions must be answered first."""
        if code == DISORDER:
            raise ValueError("no such layout")
        return None if code else found

    def fits(self, layouts: Sequence[int], indices: array[int]) -> Optional[array[int]]:
        packed, masks = array("I", layouts), zeros("Q", len(indices))
        made = self._library.fl_spread_fits(self._handle, c_array(packed), len(packed), c_array(indices), len(indices), c_array(masks))
        return self._unless_asked(made, masks)

    def choose(self, options: Sequence[int], how: Choosing, indices: array[int]) -> Optional[array[int]]:
        packed, claims = array("Q", options), zeros("I", len(indices))
        rows = c_array(packed), len(packed) // OPTION, how, c_array(indices), len(indices), c_array(claims)
        return self._unless_asked(self._library.fl_spread_choose(self._handle, *rows), claims)

    def add_decision(self, options: Sequence[int], feature: int = NO_FEATURE, keys: Sequence[int] = (), claims: Sequence[int] = ()) -> int:
        rows, values, packed = array("Q", options), array("Q", keys), array("I", claims)
        keyed = feature, c_array(values), c_array(packed), len(values)
        made = self._library.fl_spread_decision(self._handle, c_array(rows), len(rows) // OPTION, *keyed)
        if made == DISORDER:
            raise ValueError("no such layout")
        return int(made)

    def feature(self, feature: int, rows: array[int]) -> array[int]:
        values = zeros("Q", len(rows) // 3)
        self._library.fl_spread_feature(self._handle, feature, c_array(rows), len(values), c_array(values))
        return values

    def add_owner_word(self, layout: int, offset: int, size: int) -> int:
        made = self._library.fl_spread_owner_word(self._handle, layout, offset, size)
        if made == DISORDER:
            raise ValueError("no such layout or size, or too many features")
        return int(made)

    def separate(self, rows: array[int], labels: array[int]) -> int:
        return int(self._library.fl_spread_separate(self._handle, c_array(rows), c_array(labels), len(labels)))

    def find_untyped(self, kinds: Union[bytes, memoryview], wanted: int, most: int) -> array[int]:
        return self._indices(self._library.fl_spread_untyped, bytes(kinds), wanted, most)

    def with_layout(self, layout: int, most: int) -> array[int]:
        return self._indices(self._library.fl_spread_with_layout, layout, most)

    def sample(self, most: int) -> array[int]:
        return self._indices(self._library.fl_spread_sample, most)

    def _indices(self, function: Any, *arguments: Any) -> array[int]:
        return array("I", self._library.words(function, self._handle, *arguments))

    @property
    def claimed(self) -> int:
        return int(self._library.fl_spread_claimed(self._handle))

    def group_by_classes(self, indices: array[int], words: int) -> tuple[array[int], array[int]]:
        groups = zeros("I", len(indices))
        columns = c_array(indices), len(indices), words, c_array(groups)
        return groups, self._library.words(self._library.fl_spread_group, self._handle, *columns)

    @property
    def followed(self) -> int:
        return int(self._library.fl_spread_followed(self._handle))

    def disputes(self) -> list[int]:
        return sorted(set(self._library.words(self._library.fl_spread_disputes, self._handle)))

    def retract(self) -> int:
        return int(self._library.fl_spread_retract(self._handle))

    def claims(self) -> memoryview:
        return self._claims

    def origins(self) -> memoryview:
        return self._origins
