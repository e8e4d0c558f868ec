"""Groups of lost blocks as users see them, and their merging."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Optional

from findleaks.engine.terms import Kind
from findleaks.formatting import number

EXAMPLES = 3


@dataclass(frozen=True)
class Leak:
    """A group of lost blocks alike. `smallest` and `largest`: usable sizes, which differ only where
    groups of several sizes were merged.

    `cycle`: blocks in the leader's cycle, 1 where there is none, 0 where merged groups differ.
    """

    kind: Kind
    type: str
    hint: str
    smallest: int
    largest: int
    cycle: int
    blocks: int
    bytes: int
    indirect_blocks: int
    indirect_bytes: int
    least_indirect: int
    most_indirect: int
    examples: tuple[int, ...]

    @property
    def size(self) -> int:
        return self.smallest

    @property
    def weight(self) -> tuple[int, int]:
        """Sort key: the largest first; the first example decides between equals."""
        return -(self.bytes + self.indirect_bytes), self.examples[0] if self.examples else 0

    def json(self) -> dict[str, object]:
        return {
            "kind": self.kind.name.lower(),
            "type": self.type or None,
            "hint": self.hint or None,
            "site": None,
            "size": self.smallest if self.smallest == self.largest else None,
            "sizes": [self.smallest, self.largest],
            "cycle": self.cycle,
            "blocks": self.blocks,
            "bytes": self.bytes,
            "indirect_blocks": self.indirect_blocks,
            "indirect_bytes": self.indirect_bytes,
            "indirect_range": [self.least_indirect, self.most_indirect],
            "examples": [hex(address) for address in self.examples],
        }


def merge(leaks: Iterable[Leak], by: Optional[str] = None) -> list[Leak]:
    """Merge groups; the largest first.

    `by` None keeps groups of different kind, type, size or cycle apart, and those with indirect
    blocks from those without. "type" merges sizes, "size" merges types, "kind" merges all groups of
    a kind.
    """
    merged: dict[tuple[object, ...], Leak] = {}
    for leak in leaks:
        key: tuple[object, ...]
        if by == "kind":
            key = (leak.kind,)
        elif by == "size":
            key = (leak.kind, leak.smallest)
        elif by == "type":
            key = (leak.kind, leak.type)
        else:
            key = (leak.kind, leak.type, leak.smallest, leak.cycle, leak.most_indirect > 0)
        merged[key] = add(merged[key], leak) if key in merged else leak
    return sorted(merged.values(), key=lambda leak: leak.weight)


def add(a: Leak, b: Leak) -> Leak:
    """The union of two groups."""
    return Leak(
        kind=a.kind,
        type=a.type if a.type == b.type else "",
        hint=_merged_hint(a, b),
        smallest=min(a.smallest, b.smallest),
        largest=max(a.largest, b.largest),
        cycle=a.cycle if a.cycle == b.cycle else 0,
        blocks=a.blocks + b.blocks,
        bytes=a.bytes + b.bytes,
        indirect_blocks=a.indirect_blocks + b.indirect_blocks,
        indirect_bytes=a.indirect_bytes + b.indirect_bytes,
        least_indirect=min(a.least_indirect, b.least_indirect),
        most_indirect=max(a.most_indirect, b.most_indirect),
        examples=tuple(sorted({*a.examples, *b.examples})[:EXAMPLES]),
    )


def _merged_hint(a: Leak, b: Leak) -> str:
    """The hint of a merged group: that of the lowest example where type and size are the same, else
    the one that both have."""
    if (a.type, a.smallest, a.largest) == (b.type, b.smallest, b.largest):
        return min(a, b, key=lambda leak: leak.examples).hint
    return a.hint if a.hint == b.hint else ""


def what(leak: Leak) -> str:
    """ "osgeo::Ellipsoid (48 B) → 3–7 blocks", "cycle of 4 (64 B)", "16–528 B, "GET /…"" """
    sizes = f"{number(leak.smallest)} B" if leak.smallest == leak.largest else f"{number(leak.smallest)}–{number(leak.largest)} B"
    words = f"{leak.type} ({sizes})" if leak.type else sizes
    if leak.hint:
        words += f", {leak.hint}" if leak.blocks == 1 else f", e.g. {leak.hint}"
    if leak.cycle > 1:
        words = f"cycle of {leak.cycle}: {words}"
    hanging = (leak.least_indirect, leak.most_indirect)
    if (leak.cycle <= 1 and leak.most_indirect) or leak.most_indirect > leak.cycle - 1:
        few = number(hanging[0]) if hanging[0] == hanging[1] else f"{number(hanging[0])}–{number(hanging[1])}"
        words += f" → {few} more"
    return words
