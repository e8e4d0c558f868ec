"""Retention: free memory that stays with the process, the reasons, and what the user can try.

All numbers are measured in the target. findleaks does not predict the effect of another setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional, Protocol

from findleaks.formatting import size
from findleaks.value_classes import NamedTuple, dataclass, field


class ArenaUse(NamedTuple):
    """Resident bytes of an arena by their use.

    `mapped` counts all its mapped bytes, resident or not. `spare` counts bytes that are not divided
    into blocks, by the allocator's word for them. `own` counts allocator metadata."""

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
    """The free memory of an allocator, in bytes.

    `returns` is what `release_call` would return to the kernel, or None if it cannot be computed
    (see Allocator.find_releasable). `shared` counts free bytes in pages that also contain blocks in
    use."""

    arenas: Sequence[ArenaUse]
    returns: Optional[int]
    shared: int

    @property
    def kept(self) -> int:
        return sum(arena.kept for arena in self.arenas)

    def spare(self) -> dict[str, int]:
        """Sum the bytes that are not divided into blocks, by the allocator's word for them."""
        sums: dict[str, int] = {}
        for arena in self.arenas:
            for sort, amount in arena.spare.items():
                sums[sort] = sums.get(sort, 0) + amount
        return sums


@dataclass(frozen=True)
class Retention:
    """The reasons why an allocator keeps free memory.

    `returns` counts the bytes that `release_call` returns, or is None if unknown. `cause` is a
    sentence for the user. `sorts` names the causes for programs: "arenas", "top", "between",
    "fragmentation", "decay", "page heap". `tries` are phrases about what the user can try."""

    returns: Optional[int]
    sorts: tuple[str, ...]
    cause: str
    tries: tuple[str, ...]
    evidence: dict[str, object] = field(default_factory=dict)


class Remedies(Protocol):
    """Ways to make an allocator keep less memory: attributes of Allocator, documented there."""

    release_call: str
    releases_free_pages: bool
    release_settings: Sequence[str]
    retention_note: str


def explain_retention(free: FreeMemory, remedies: Remedies) -> Retention:
    """Explain the free memory of an allocator, using only its blocks, its spare pages and its
    remedies."""
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
    """Return the names and the sentences of the causes for free blocks, and add numbers to
    `evidence`. `pages` is the number of free bytes that are not in blocks."""
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
