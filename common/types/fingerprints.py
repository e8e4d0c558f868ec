"""Fingerprints: types of blocks that no typed pointer refers to, by their likeness to typed blocks
of the same process.

A word of a block has a class: zero, small number, number, text, code, other static memory, the
start of a block of some size, or the middle of a block. Each type has, for each word, how often its
blocks have each class. A block is of the type for which its classes are most likely, if every other
type is much less likely, and if its pointers do not contradict the type."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Optional

from findleaks.types.content import Content
from findleaks.types.heap import HeapView
from findleaks.types.layouts import Layouts
from findleaks.value_classes import NamedTuple

WORDS = 24  # Words at the start of a block that are compared.
WITNESSES = 256  # Blocks of a type and size from which its fingerprint is learned.
LEAST_WITNESSES = 2
SMALL = 1 << 20  # Numbers below this are small.
MARGIN = math.log(30)  # By this the second most likely type must be less likely.
ALIEN = math.log(1e-3)  # Least likelihood of a word, on average.
SMOOTH = 0.02
SAME_SIZE = 0.7  # Part of a pointer's likelihood that depends on the size of its target.

Class = tuple[Hashable, ...]
_NUMBERS = frozenset((("zero",), ("small",), ("number",)))


class Likeness(NamedTuple):
    """The type that a block resembles: its layout, and the number of blocks it was learned from."""

    layout: int
    witnesses: int


class _Model:
    """The classes of the words of one type's blocks. `fold` maps a word to the word of the type that it
    is like: the elements of arrays are alike."""

    def __init__(self, fold: Sequence[int]) -> None:
        self.blocks = 0
        self.fold = fold
        self.classes: list[Counter[Class]] = [Counter() for _ in range(WORDS)]
        self.sorts: list[Counter[Hashable]] = [Counter() for _ in range(WORDS)]

    def learn(self, classes: Sequence[Class]) -> None:
        self.blocks += 1
        for at, one in zip(self.fold, classes):
            self.classes[at][one] += 1
            self.sorts[at][one[0]] += 1

    def likelihood(self, classes: Sequence[Class]) -> float:
        """Return the logarithm of the likelihood of a block with these classes."""
        total = 0.0
        for at, one in zip(self.fold, classes):
            seen = sum(self.sorts[at].values())
            part = float(self.sorts[at][one[0]])
            if len(one) > 1:
                part = (1 - SAME_SIZE) * part + SAME_SIZE * self.classes[at][one]
            elif one in _NUMBERS:
                part = 0.5 * part + 0.5 * sum(self.sorts[at][other[0]] for other in _NUMBERS)
            total += math.log((part + SMOOTH) / (seen + 1))
        return total


class Fingerprints:
    """The fingerprints of the typed blocks of a process."""

    def __init__(self, heap: HeapView, layouts: Layouts, content: Content) -> None:
        self._heap, self._layouts, self._content = heap, layouts, content
        self._models: dict[tuple[int, int], _Model] = {}  # By layout and size; size 0: of any size.
        self._by_size: dict[int, list[int]] = {}
        self._decided: dict[tuple[int, tuple[Class, ...]], Sequence[tuple[float, int, int]]] = {}

    def learn(self, typed: Iterable[int]) -> None:
        """Learn from these typed blocks."""
        for index in typed:
            layout, size = self._heap.layout(index), self._heap.blocks.size(index)
            keys = [(layout, size)] if not self._varies(layout) else [(layout, size), (layout, 0)]
            for key in keys:
                if key not in self._models:
                    self._models[key] = _Model(self._fold(layout, key[1]))
                    self._by_size.setdefault(key[1], []).append(layout)
                if self._models[key].blocks < WITNESSES:
                    self._models[key].learn(self._classes(self._heap.blocks.address(index), size))

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

    def find(self, index: int) -> Optional[Likeness]:
        """Return the type that an untyped block resembles, and no other; None if there is none."""
        start, size = self._heap.blocks.address(index), self._heap.blocks.size(index)
        classes = self._classes(start, size)
        if all(one in _NUMBERS or one == ("text",) for one in classes):
            return None
        key = size, tuple(classes)
        if key not in self._decided:
            self._decided[key] = self._ranked(size, classes)
        fitting = [one for one in self._decided[key] if self._content.match(self._layouts.specs[one[1]], start, size).fits]
        likely = [one for one in fitting if fitting[0][0] - one[0] < MARGIN]
        best = self._by_tail(likely, start) if len(likely) > 1 else next(iter(likely), None)
        return Likeness(best[1], best[2]) if best is not None else None

    def _by_tail(self, likely: Sequence[tuple[float, int, int]], start: int) -> Optional[tuple[float, int, int]]:
        """Return the smallest of types that begin alike behind which there are only zeros; None if they
        do not begin alike."""
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

    def _ranked(self, size: int, classes: Sequence[Class]) -> Sequence[tuple[float, int, int]]:
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

    def _classes(self, start: int, size: int) -> list[Class]:
        heap, word = self._heap, self._heap.arch.word
        data = heap.bytes(start, min(size // word, WORDS) * word)
        found: list[Class] = []
        for at in range(0, len(data) - word + 1, word):
            part = data[at : at + word]
            value = int.from_bytes(part, heap.arch.byteorder)
            found.append(self._class(value, part))
        return found

    def _class(self, value: int, part: bytes) -> Class:
        heap = self._heap
        if not value:
            return ("zero",)
        if value < SMALL:
            return ("small",)
        place = heap.place(value)
        if place is not None:
            return ("start", place.size) if place.offset == 0 else ("middle", place.offset, place.size)
        if heap.is_mapped(value):
            return ("code",) if heap.is_code(value) else ("static",)
        printed = part.rstrip(b"\0")
        return ("text",) if len(printed) >= 3 and all(0x20 <= byte < 0x7F for byte in printed) else ("number",)
