"""Find large arrays of Go of which slices and strings use only a small part. An array stays in
memory as a whole while anything refers to a part of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Optional

from findleaks.allocators.bulk import MOST_RANGES, find_pointers_into
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine, Graph
from findleaks.formatting import number, shortened, size, some
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.go.engine import NONE, SLICE, TEXT
from findleaks.runtimes.go.objects import HeapObjects
from findleaks.runtimes.object_graph import LIVE
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges, merge_to_most

_LEAST_ARRAY = 16 << 10  # bytes of the smallest array that is examined
_LEAST, _SPARSE = 4 << 20, 16  # least bytes of a finding; at most 1 / _SPARSE of its arrays is used
_MOST_WORDS = 1 << 20  # references that are read
_MOST_TYPES = 3  # types that a sentence names


class _Search:
    """The references to some arrays. `uses`: for the index of each array, the ranges that slices
    and strings use. `holders`: for the index of an array, the type of an object that contains such
    a slice or string."""

    def __init__(self, memory: Memory, objects: HeapObjects, engine: Engine, graph: Graph, arrays: Sequence[int]) -> None:
        self._memory, self._objects, self._engine, self._graph = memory, objects, engine, graph
        self.uses: dict[int, list[Range]] = {index: [] for index in arrays}
        self.holders: dict[int, str] = {}
        self._sizes, _, self._first, self._offsets, self._kinds, self._targets = objects.names.columns()

    def run(self) -> bool:
        """Find all references. Returns False if there are too many. If anything other than
        a slice or string refers to an array, the array is removed: its used part is unknown."""
        objects, blocks, seen = self._objects, self._objects.blocks, 0
        ranges = merge_to_most(
            [Range(blocks.address(index), blocks.address(index) + blocks.size(index)) for index in self.uses], MOST_RANGES
        )
        for words in (*objects.root_words(), *objects.stacks.words(objects.stacks.threads())):
            for index in blocks.find_all(words)[0]:
                self.uses.pop(index, None)
        for piece in objects.pointers.pieces(objects.spans.ranges_with_pointers()):
            places, values = find_pointers_into(self._engine, piece, ranges)
            seen += len(places)
            if seen > _MOST_WORDS:
                return False
            for place, referrer, value, index in zip(places, blocks.find_all(places)[0], values, blocks.find_all(values)[0]):
                if index in self.uses and referrer < len(blocks) and self._graph.kind(referrer) in LIVE:
                    self._add(index, value, place, referrer)
        return True

    def _add(self, index: int, value: int, place: int, referrer: int) -> None:
        used = self._used_by(place, referrer)
        if used is None:
            del self.uses[index]
        else:
            self.uses[index].append(Range(value, value + used))
            self.holders[index] = self._objects.title_at(referrer)

    def _used_by(self, place: int, referrer: int) -> Optional[int]:
        """Return the number of bytes that the slice or string at `place` uses; None if there is
        neither. `referrer`: the index of the object that contains `place`."""
        kind = self._objects.types[referrer]
        stride = self._sizes[kind >> 1] if kind != NONE else 0
        if not stride:
            return None
        offset = place - self._objects.blocks.address(referrer) - self._objects.header_of(referrer)
        slots = range(self._first[kind >> 1], self._first[(kind >> 1) + 1])
        at = next((at for at in slots if self._offsets[at] == (offset % stride if kind & 1 else offset)), None)
        if at is None or self._kinds[at] not in (SLICE, TEXT):
            return None
        length = self._memory.word(place + 8)
        if length is None:
            return None
        return length * (self._sizes[self._targets[at] >> 1] if self._kinds[at] == SLICE and self._targets[at] != NONE else 1)


def find_sliced_arrays(
    memory: Memory, objects: HeapObjects, engine: Engine, graph: Graph, live: int, describe: Callable[[int], str]
) -> Iterator[Finding]:
    """Yield a finding if arrays of which little is used have at least half of the bytes of live
    objects (`live`). `describe` returns a phrase that says what retains a block."""
    arrays = list(_large_arrays(objects, graph))
    blocks = objects.blocks
    if 2 * sum(map(blocks.size, arrays)) < max(live, 2 * _LEAST):
        return
    search = _Search(memory, objects, engine, graph, arrays)
    if not search.run():
        return
    used = {index: sum(end - start for start, end in merge_ranges(parts)) for index, parts in search.uses.items() if parts}
    sparse = {index: part for index, part in used.items() if part * _SPARSE <= blocks.size(index)}
    total = sum(map(blocks.size, sparse))
    if 2 * total < max(live, 2 * _LEAST):
        return
    counts = Counter(search.holders[index] for index in sparse)
    largest = max(sparse, key=lambda index: (blocks.size(index), -index))
    root = describe(largest)
    title = f"In use, not leaked: slices and strings use {size(sum(sparse.values()))} of {number(len(sparse))} arrays of {size(total)}."
    holders = some([f"{number(count)} from {shortened(name)}" for name, count in counts.most_common(_MOST_TYPES)], _MOST_TYPES)
    cause = f"An array stays in memory while anything refers to a part of it. These are referred to by: {holders}. "
    cause += f"One of {size(blocks.size(largest))} is retained by {shortened(root, 120)}."
    facts: dict[str, object] = {
        "arrays": len(sparse),
        "array_bytes": total,
        "used_bytes": sum(sparse.values()),
        "holders": [{"type": name, "arrays": count} for name, count in counts.most_common(_MOST_TYPES)],
        "address": hex(blocks.address(largest)),
        "root": root,
    }
    remedies = (
        "copy the part that is needed (slices.Clone, strings.Clone)",
        "do not keep buffers that were large once, for example in a pool",
    )
    yield Finding("go-arrays", total, title, cause, remedies, (f"path {blocks.address(largest):#x}", "runtime --only go"), facts)


def _large_arrays(objects: HeapObjects, graph: Graph) -> Iterator[int]:
    """Yield the indices of large live objects without pointers."""
    spans = objects.spans
    for start, width, slots, scanned in zip(spans.starts, spans.sizes, spans.slots, spans.scanned):
        if not scanned and width >= _LEAST_ARRAY:
            first = objects.blocks.find(start)
            yield from (index for index in range(first, first + slots) if graph.kind(index) in LIVE)
