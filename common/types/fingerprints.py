"""Fingerprints: types of blocks that no typed pointer refers to, by their likeness to typed blocks
of the same process.

A word of a block has a class: zero, small number, number, text, code, other static memory, the
start of a block of some size, or the middle of a block. Each type has, for each word, how often its
blocks have each class. A block is of the type for which its classes are most likely, if every other
type is much less likely, and if its pointers do not contradict the type."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.engine.type_spread import TypeSpread, WordClass
from findleaks.types.content import Content
from findleaks.types.heap import HeapView
from findleaks.types.layouts import Layouts
from findleaks.value_classes import NamedTuple

WORDS = 24  # Words at the start of a block that are compared.
WITNESSES = 256  # Blocks of a type and size from which its fingerprint is learned.
LEAST_WITNESSES = 2
MARGIN = math.log(30)  # By this the second most likely type must be less likely.
ALIEN = math.log(1e-3)  # Least likelihood of a word, on average.
SMOOTH = 0.02
SAME_SIZE = 0.7  # Part of a pointer's likelihood that depends on the size of its target.

CHUNK = 1 << 12  # Blocks whose classes are computed at a time.
MOST_RANKED = 8  # Types that are compared with a block's pointers.
SORT = 15  # The bits of a class without the size or offset.

_NUMBERS = frozenset((WordClass.ZERO, WordClass.SMALL, WordClass.NUMBER))


class Likeness(NamedTuple):
    """The type that a block resembles: its layout, and the number of blocks it was learned from."""

    layout: int
    witnesses: int


class _Model:
    """The classes of the words of one type's blocks. `fold` maps a word to the word of the type
    that it is like: the elements of arrays are alike."""

    def __init__(self, fold: Sequence[int]) -> None:
        self.blocks = 0
        self.fold = fold
        self.classes: list[Counter[int]] = [Counter() for _ in range(WORDS)]
        self.sorts: list[Counter[int]] = [Counter() for _ in range(WORDS)]

    def learn(self, classes: Sequence[int]) -> None:
        self.blocks += 1
        for at, one in zip(self.fold, classes):
            self.classes[at][one] += 1
            self.sorts[at][one & SORT] += 1

    def likelihood(self, classes: Sequence[int]) -> float:
        """Return the logarithm of the likelihood of a block with these classes."""
        total = 0.0
        for at, one in zip(self.fold, classes):
            seen = sum(self.sorts[at].values())
            part = float(self.sorts[at][one & SORT])
            if one > SORT:
                part = (1 - SAME_SIZE) * part + SAME_SIZE * self.classes[at][one]
            elif one in _NUMBERS:
                part = 0.5 * part + 0.5 * sum(self.sorts[at][other] for other in _NUMBERS)
            total += math.log((part + SMOOTH) / (seen + 1))
        return total


class Fingerprints:
    """The fingerprints of the typed blocks of a process."""

    def __init__(self, spread: TypeSpread, heap: HeapView, layouts: Layouts, content: Content) -> None:
        self._spread, self._heap, self._layouts, self._content = spread, heap, layouts, content
        self._models: dict[tuple[int, int], _Model] = {}  # By layout and size; size 0: of any size.
        self._by_size: dict[int, list[int]] = {}
        self._decided: dict[tuple[int, tuple[int, ...]], Sequence[tuple[float, int, int]]] = {}

    def learn(self, typed: Sequence[int]) -> None:
        """Learn from these typed blocks."""
        for index, classes in self._classes(typed):
            layout, size = self._heap.layout(index), self._heap.blocks.size(index)
            keys = [(layout, size)] if not self._varies(layout) else [(layout, size), (layout, 0)]
            for key in keys:
                if key not in self._models:
                    self._models[key] = _Model(self._fold(layout, key[1]))
                    self._by_size.setdefault(key[1], []).append(layout)
                if self._models[key].blocks < WITNESSES:
                    self._models[key].learn(classes)

    def _varies(self, layout: int) -> bool:
        spec = self._layouts.specs[layout]
        return spec.many or self._layouts.flexible(spec.type) is not None

    def _fold(self, layout: int, size: int) -> Sequence[int]:
        """Return, for each word of a block, the word of the type that it is compared with."""
        table, spec = self._layouts.table, self._layouts.specs[layout]
        word, bare = table.word, table.bare(spec.type)
        own = max((table.sizes[bare] or word) // word, 1)
        if size:
            return range(min(WORDS, max(size // word, 1)) if spec.many else min(own, WORDS))
        if spec.many:
            return [at % own if own < WORDS else at for at in range(WORDS)]
        tail = self._layouts.flexible(bare)
        first, step = (tail[0] // word, max(table.sizes[tail[1]] // word, 1)) if tail is not None else (own, 1)
        return [at if at < first else min(first + (at - first) % step, WORDS - 1) for at in range(WORDS)]

    def find(self, untyped: Sequence[int]) -> dict[int, Likeness]:
        """Return the type that each untyped block resembles, and no other; blocks without such a
        type are left out."""
        ranked: dict[int, Sequence[tuple[float, int, int]]] = {}
        wanted: dict[int, list[int]] = {}
        for index, classes in self._classes(untyped):
            size = self._heap.blocks.size(index)
            if all(one in _NUMBERS or one == WordClass.TEXT for one in classes):
                continue
            key = size, classes
            if key not in self._decided:
                self._decided[key] = self._ranked(size, classes)[:MOST_RANKED]
            ranked[index] = self._decided[key]
            for _, layout, _ in ranked[index]:
                wanted.setdefault(layout, []).append(index)
        fitting: set[tuple[int, int]] = set()
        for layout, blocks in wanted.items():
            found = self._content.match(self._layouts.specs[layout], blocks)
            fitting.update((index, layout) for index, match in zip(blocks, found) if match.fits)
        made = {}
        for index, rows in ranked.items():
            best = self._best([one for one in rows if (index, one[1]) in fitting], index)
            if best is not None:
                made[index] = best
        return made

    def _best(self, fitting: Sequence[tuple[float, int, int]], index: int) -> Optional[Likeness]:
        likely = [one for one in fitting if fitting[0][0] - one[0] < MARGIN]
        start = self._heap.blocks.address(index)
        best = self._by_tail(likely, start) if len(likely) > 1 else next(iter(likely), None)
        return Likeness(best[1], best[2]) if best is not None else None

    def _by_tail(self, likely: Sequence[tuple[float, int, int]], start: int) -> Optional[tuple[float, int, int]]:
        """Return the smallest of types that begin alike behind which there are only zeros; None if
        they do not begin alike."""
        specs, table = self._layouts.specs, self._layouts.table
        order = sorted(likely, key=lambda one: table.sizes[table.bare(specs[one[1]].type)])
        first, most = specs[order[0][1]], table.sizes[table.bare(specs[order[-1][1]].type)]
        if first.many or not all(self._layouts.embedding.has(specs[one[1]].type, 0, table.bare(first.type)) for one in order):
            return None
        for one in order:
            own = table.sizes[table.bare(specs[one[1]].type)]
            if not self._heap.bytes(start + own, most - own).strip(b"\0"):
                return one
        return None

    def _ranked(self, size: int, classes: Sequence[int]) -> Sequence[tuple[float, int, int]]:
        """Return likelihood, layout and witnesses of the types that may have such a block, the
        likeliest first."""
        best: dict[int, tuple[float, int, int]] = {}
        table = self._layouts.table
        for known in (size, 0):
            for layout in self._by_size.get(known, ()):
                model, own = self._models[layout, known], table.sizes[table.bare(self._layouts.specs[layout].type)]
                if model.blocks < LEAST_WITNESSES or own > size:
                    continue
                likely = model.likelihood(classes)
                if likely < ALIEN * len(classes):
                    continue
                if layout not in best or likely > best[layout][0]:
                    best[layout] = likely, layout, model.blocks
        return sorted(best.values(), key=lambda one: (-one[0], one[1]))

    def _classes(self, blocks: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield blocks with the classes of their words."""
        for first in range(0, len(blocks), CHUNK):
            some = array("I", blocks[first : first + CHUNK])
            found = self._spread.classes(some, WORDS)
            for number, index in enumerate(some):
                classes = tuple(found[number * WORDS : (number + 1) * WORDS])
                yield index, classes[: classes.index(WordClass.MISSING)] if WordClass.MISSING in classes else classes
