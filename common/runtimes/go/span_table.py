"""The spans of Go's heap in columns.

A heap of 10 million objects has 60,000 spans, and each command goes through them several times:
columns take a fraction of the time and memory of tuples."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import NamedTuple, Optional

from findleaks.runtimes.go.engine import NOSCAN
from findleaks.target.base import Range


class Span(NamedTuple):
    """A span [start, end), its state, and the address of its mspan."""

    start: int
    end: int
    state: int
    address: int = 0


class ObjectSpan(NamedTuple):
    """A span of objects. `kind` is its spanclass; `bits` the address of allocBits; `large` the type
    of its one object (since 1.22; 0: none); `specials` the first of its special records, or 0."""

    start: int
    end: int
    size: int
    slots: int
    free: int  # freeindex
    kind: int
    bits: int
    large: int
    specials: int

    @property
    def has_pointers(self) -> bool:
        return not self.kind & NOSCAN


class SpanTable:
    """All spans in use, ascending and disjoint: a column for each field of Span."""

    def __init__(self, starts: array[int], ends: array[int], states: bytes, addresses: array[int]) -> None:
        self.starts, self.ends, self.states, self.addresses = starts, ends, states, addresses

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[Span]:
        return map(Span, self.starts, self.ends, self.states, self.addresses)

    def at(self, address: int) -> Optional[Span]:
        """Return the span that contains an address, or None."""
        at = bisect_right(self.starts, address) - 1
        if at < 0 or address >= self.ends[at]:
            return None
        return Span(self.starts[at], self.ends[at], self.states[at], self.addresses[at])

    def in_state(self, state: int) -> tuple[array[int], array[int], array[int]]:
        """Return starts, ends and addresses of the spans in a state."""
        chosen = self.states.translate(bytes(number == state for number in range(256)))
        starts, ends, addresses = (array("Q", compress(one, chosen)) for one in (self.starts, self.ends, self.addresses))
        return starts, ends, addresses

    def ranges(self, state: int) -> list[Range]:
        """Return the memory of the spans in a state; adjacent spans are joined."""
        return join_spans(*self.in_state(state)[:2])


class ObjectSpans:
    """Spans of objects, ascending and disjoint: a column for each field of ObjectSpan. `scanned`
    has a 1 for each span whose objects have pointers."""

    def __init__(
        self,
        starts: array[int],
        ends: array[int],
        sizes: array[int],
        slots: array[int],
        free: array[int],
        kinds: bytes,
        bits: array[int],
        large: array[int],
        specials: array[int],
    ) -> None:
        self.starts, self.ends, self.sizes, self.slots, self.free = starts, ends, sizes, slots, free
        self.kinds, self.bits, self.large, self.specials = kinds, bits, large, specials
        self.scanned = kinds.translate(bytes(not kind & NOSCAN for kind in range(256)))

    @classmethod
    def of(cls, spans: Iterable[ObjectSpan]) -> ObjectSpans:
        """Return a table of these spans, which are ascending."""
        columns = list(zip(*spans)) or [()] * len(ObjectSpan._fields)
        starts, ends, sizes, slots, free, kinds, bits, large, specials = columns
        rest = (array("Q", one) for one in (bits, large, specials))
        return cls(array("Q", starts), array("Q", ends), array("Q", sizes), array("Q", slots), array("Q", free), bytes(kinds), *rest)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, at: int) -> ObjectSpan:
        return ObjectSpan(*(column[at] for column in self._columns()))

    def __iter__(self) -> Iterator[ObjectSpan]:
        return map(ObjectSpan, *self._columns())

    def _columns(self) -> tuple[Sequence[int], ...]:
        first = (self.starts, self.ends, self.sizes, self.slots, self.free)
        return (*first, self.kinds, self.bits, self.large, self.specials)

    def at(self, address: int) -> Optional[ObjectSpan]:
        """Return the span that contains an address, or None."""
        at = bisect_right(self.starts, address) - 1
        return self[at] if at >= 0 and address < self.ends[at] else None

    def with_pointers(self, least: int) -> tuple[int, list[range]]:
        """Return the smallest size of slots with pointers that is at least `least` bytes (0: none),
        and the addresses of all slots of this size, by span."""
        size = min((one for one, scanned in zip(self.sizes, self.scanned) if scanned and one >= least), default=0)
        chosen = (scanned and one == size for one, scanned in zip(self.sizes, self.scanned))
        return size, [range(start, start + slots * size, size) for start, slots in compress(zip(self.starts, self.slots), chosen)]


def join_spans(starts: Iterable[int], ends: Iterable[int], gap: int = 0) -> list[Range]:
    """Return the memory of ascending, disjoint spans; spans that are at most `gap` bytes apart are
    joined."""
    made: list[Range] = []
    low = high = 0
    for start, end in zip(starts, ends):
        if start > high + gap:
            if high > low:
                made.append(Range(low, high))
            low = start
        high = end
    if high > low:
        made.append(Range(low, high))
    return made
