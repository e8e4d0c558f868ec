"""Retention: free memory that stays with the process, why it is kept, and what can be tried.

Figures are measured. What another setting would change is not predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional, Protocol

from findleaks.formatting import size


class ArenaUse(NamedTuple):
    """Resident bytes of an arena by their use; `mapped`: its mapped bytes, resident or not. `spare`
    counts bytes that are kept without being cut into blocks, by the allocator's word for them."""

    arena: str
    in_use: int
    cached: int
    free: int
    spare: dict[str, int]
    own: int
    mapped: int

    @property
    def kept(self) -> int:
        """Free resident bytes."""
        return self.free + sum(self.spare.values())

    @property
    def resident(self) -> int:
        return self.in_use + self.cached + self.kept + self.own


class FreeMemory(NamedTuple):
    """An allocator's free memory. `returns`: bytes `release_call` would return, None if that cannot
    be counted (see Allocator.released). `shared`: free bytes in pages with blocks in use."""

    arenas: Sequence[ArenaUse]
    returns: Optional[int]
    shared: int

    @property
    def kept(self) -> int:
        return sum(arena.kept for arena in self.arenas)

    def spare(self) -> dict[str, int]:
        """Bytes kept without being cut into blocks, by the allocator's word for them."""
        sums: dict[str, int] = {}
        for arena in self.arenas:
            for sort, amount in arena.spare.items():
                sums[sort] = sums.get(sort, 0) + amount
        return sums


@dataclass(frozen=True)
class Retention:
    """Why free memory is kept. `returns`: bytes that `release_call` returns, None if unknown.
    `cause`: a sentence. `sorts`: the causes for programs: "arenas", "top", "between",
    "fragmentation", "decay", "page heap"."""

    returns: Optional[int]
    sorts: tuple[str, ...]
    cause: str
    tries: tuple[str, ...]
    evidence: dict[str, object] = field(default_factory=dict)


class Remedies(Protocol):
    """Ways to make an allocator keep less: attributes of Allocator, documented there."""

    release_call: str
    releases_free_pages: bool
    release_settings: Sequence[str]
    retention_note: str


def explain_retention(free: FreeMemory, remedies: Remedies) -> Retention:
    """The explanation for an allocator of which only blocks, spare pages and remedies are known."""
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
    """Names and sentences of the causes for bytes kept as free blocks; `pages` bytes have no block.
    Adds to `evidence`."""
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
