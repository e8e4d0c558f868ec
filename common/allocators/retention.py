"""Free memory that stays with the process: how much of it an allocator would give back when asked, why it keeps it, what to try.

Figures are measured; what would become of the process under another setting is not promised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional, Protocol

from findleaks.formatting import size


class ArenaUse(NamedTuple):
    """Resident bytes of an arena, by what they are used for; `mapped` bytes in all, resident or not. `spare` are kept but cut up into no
    blocks, by the allocator's own word for them."""

    arena: str
    in_use: int
    cached: int
    free: int
    spare: dict[str, int]
    own: int
    mapped: int

    @property
    def kept(self) -> int:
        """Bytes that are free, and resident."""
        return self.free + sum(self.spare.values())

    @property
    def resident(self) -> int:
        return self.in_use + self.cached + self.kept + self.own


class FreeMemory(NamedTuple):
    """What is measured of an allocator's free memory: its arenas; `returns`: bytes that its `release_call` would give back, None where
    that cannot be counted (see Allocator.trimmable); `shared`: free bytes in pages that also hold blocks in use."""

    arenas: Sequence[ArenaUse]
    returns: Optional[int]
    shared: int

    @property
    def kept(self) -> int:
        return sum(arena.kept for arena in self.arenas)

    def spare(self) -> dict[str, int]:
        """Bytes that are cut up into no blocks, by the allocator's word for them."""
        sums: dict[str, int] = {}
        for arena in self.arenas:
            for sort, amount in arena.spare.items():
                sums[sort] = sums.get(sort, 0) + amount
        return sums


@dataclass(frozen=True)
class Retention:
    """`returns`: bytes that the allocator's `release_call` gives back to the system, None where that is not known. `cause` is a sentence;
    `sorts` names the causes for programs: "arenas", "top", "between", "fragmentation", "decay", "page heap"."""

    returns: Optional[int]
    sorts: tuple[str, ...]
    cause: str
    tries: tuple[str, ...]
    evidence: dict[str, object] = field(default_factory=dict)


class Remedies(Protocol):
    """How an allocator can be made to keep less: the attributes of Allocator, which see."""

    release_call: str
    releases_free_pages: bool
    release_settings: Sequence[str]
    retention_note: str


def explain_retention(free: FreeMemory, remedies: Remedies) -> Retention:
    """Of an allocator of which no more is known than its blocks, its spare pages and its remedies."""
    spare = {sort: amount for sort, amount in free.spare().items() if amount}
    pages = sum(spare.values())
    evidence: dict[str, object] = {"in_blocks": free.kept - pages, **{sort.replace(" ", "_"): amount for sort, amount in spare.items()}}
    sorts: list[str] = []
    causes: list[str] = []
    tries: list[str] = []
    if 10 * pages >= free.kept:
        sorts.append("page heap")
        causes.append(f"{size(pages)} of free pages {'of the page heap' if 'page heap' in spare else 'without a block in them'}")
        tries += remedies.release_settings
        tries += [f"{remedies.release_call} when the process is idle"] if remedies.release_call else []
    others, more = explain_free_blocks(free, pages, evidence)
    sorts += others
    causes += more
    if remedies.retention_note:
        causes.append(remedies.retention_note)
    returns = pages if remedies.releases_free_pages else None
    return Retention(returns, tuple(sorts), "; ".join(causes), tuple(tries), evidence)


def explain_free_blocks(free: FreeMemory, pages: int, evidence: dict[str, object]) -> tuple[list[str], list[str]]:
    """Sorts and causes of what is kept as free blocks, beside `pages` bytes without a block; adds to `evidence`."""
    shared = min(free.shared, free.kept - pages)
    whole = free.kept - pages - shared
    evidence["shared"] = shared
    sorts, causes = [], []
    if 10 * whole >= free.kept:
        sorts.append("between")
        causes.append(f"{size(whole)} are whole pages of free blocks, with blocks in use around them")
    if 10 * shared >= free.kept:
        sorts.append("fragmentation")
        causes.append(f"{size(shared)} are free blocks in pages that also hold blocks in use (fragmentation)")
    return sorts, causes
