"""Memory that findleaks does not read: heaps of managed runtimes whose objects it does not list,
anonymous unattributed memory, and shared memory. Leaks inside it are not seen.

An unknown allocator or runtime shows as anonymous unattributed memory, whatever it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Optional

from findleaks.engine.terms import State
from findleaks.formatting import printable, size, some
from findleaks.libc.stacks import thread_stacks
from findleaks.results import notes
from findleaks.runtimes import unread_heaps
from findleaks.runtimes.directory import heap_owners
from findleaks.session import Session
from findleaks.target.base import Range, Region
from findleaks.target.ranges import intersection, merge_ranges, nonzero_pieces, subtract
from findleaks.value_classes import NamedTuple

SHARED = ("/memfd:", "/dev/shm/", "/SYSV", "/dev/zero", "/anon_hugepage", "/[aio]")
"""How names of shared memory begin."""

MOST = 0.5
""" "Most" of the writable memory: from this fraction on it comes first in `find` and `verdict`."""

LEAST = 1 << 20  # fewer bytes are not worth the first line
STEP = 1 << 14
NAMED = 3  # parts that are named, at most


class UnreadPart(NamedTuple):
    """`what` is a phrase ("Go's heap", "shared memory"); "" for unattributed memory."""

    what: str
    bytes: int


class UnreadMemory(NamedTuple):
    """`parts`, the largest first, of `total` bytes of writable memory: resident bytes, or (if
    `resident` is not set) what is not zeros, and blocks in use. `owners`: runtimes that may own
    unattributed memory. `inside`: malloc's blocks in use, where those are the heap of a
    runtime that is known by name."""

    parts: Sequence[UnreadPart]
    total: int
    resident: bool
    owners: Sequence[str] = ()
    inside: Optional[UnreadPart] = None

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def read(self) -> int:
        """Bytes of the rest."""
        return self.total - self.bytes

    @property
    def percent(self) -> int:
        return 100 * self.bytes // max(self.total, 1)

    @property
    def is_worth_saying(self) -> bool:
        return self.bytes >= LEAST

    @property
    def is_most(self) -> bool:
        """Whether most of the memory is not read."""
        return (self.is_worth_saying and self.bytes >= MOST * self.total) or self.is_inside

    @property
    def is_inside(self) -> bool:
        """Whether most of the memory is a runtime's heap in malloc's blocks."""
        return self.inside is not None and self.inside.bytes >= max(LEAST, MOST * self.total)

    def sentences(self) -> str:
        """ "98 % of the writable memory (400 MiB of 408 MiB) is not read by findleaks: … ." """
        if self.inside is not None and self.is_inside:
            owner, part = self.inside.what, f"{100 * self.inside.bytes // max(self.total, 1)} % of the writable memory"
            whole = f"{part} ({size(self.inside.bytes)} of {size(self.total)}) is malloc's blocks in use, where {owner} keeps its objects"
            return f"{whole}. findleaks does not read these: objects that a program of {owner} leaks count as reachable."
        mapped = "" if self.resident else " without zeros"
        whole = f"{self.percent} % of the writable memory ({size(self.bytes)} of {size(self.total)}{mapped})"
        parts = some(
            [f"{size(part.bytes)} in {part.what or self._unowned()}" for part in self.parts if part.bytes * 100 >= self.bytes], NAMED
        )
        return f"{whole} is not read by findleaks: {parts}. Leaks inside it are not reported."

    def _unowned(self) -> str:
        owners = f" ({' or '.join(map(printable, self.owners))} may own them)" if self.owners else ""
        return f"anonymous mappings of no known allocator{owners}"

    def result(self) -> notes.UnreadMemory:
        """The figures without the sentences."""
        parts = [notes.UnreadPart(part.what or None, part.bytes) for part in self.parts]
        inside = notes.UnreadPart(self.inside.what, self.inside.bytes) if self.inside is not None else None
        return notes.UnreadMemory(self.bytes, self.total, self.percent, self.resident, parts, inside)


def unread_memory(session: Session) -> UnreadMemory:
    """Computed once for a session."""
    return session.once(unread_memory, lambda: _computed(session))


def _computed(session: Session) -> UnreadMemory:
    # Pages of mapped files are left out: whoever reads them makes them resident.
    regions = [region for region in session.target.regions() if region.readable and region.writable]
    writable = [region for region in regions if not region.name.startswith("/") or region.name.startswith(SHARED)]
    known = session.presence is not None or all(
        session.target.resident(region.start, region.end) is not None for region in writable if region.private
    )
    whole = merge_ranges(_ranges(writable))
    claimed: list[Range] = []
    parts: list[UnreadPart] = []
    for what, ranges in _candidates(session, writable):
        own = subtract(intersection(whole, merge_ranges(ranges)), claimed)
        claimed = merge_ranges([*claimed, *own])
        parts.append(UnreadPart(what, _count(session, own) if known else _nonzero(session, own)))
    parts.sort(key=lambda part: -part.bytes)
    used = session.directory.blocks.totals(State.IN_USE).bytes
    total = _count(session, whole) if known else used + sum(part.bytes for part in parts)
    unowned = sum(part.bytes for part in parts if not part.what)
    if unowned < LEAST:
        return UnreadMemory([part for part in parts if part.bytes], total, known, (), _inside(session, whole))
    names = [module.path.rsplit("/", 1)[-1] for module in session.target.modules()]
    owners = [
        *heap_owners(names, {allocator.name for allocator in session.directory.allocators}),
        *unread_heaps.owners(session.target, unread_heaps.ANONYMOUS),
    ]
    return UnreadMemory([part for part in parts if part.bytes], total, known, owners, _inside(session, whole))


def _inside(session: Session, writable: Sequence[Range]) -> Optional[UnreadPart]:
    """Bytes of malloc's blocks in use, if a runtime known by name keeps its objects there."""
    owners = unread_heaps.owners(session.target, unread_heaps.IN_BLOCKS)
    if not owners:
        return None
    used = session.directory.blocks.totals(State.IN_USE).bytes
    return UnreadPart(owners[0], min(used, _count(session, intersection(merge_ranges(session.heap_ranges()), writable))))


def _candidates(session: Session, writable: Sequence[Region]) -> Iterator[tuple[str, Iterable[Range]]]:
    """Phrases and ranges; the first has what several share."""
    target = session.target
    managed: list[Range] = []
    for runtime in session.runtimes:
        ranges = [piece for part in runtime.parts() if not part.inside for piece in part.ranges]
        managed += ranges
        if not runtime.lists_objects:
            yield f"{runtime.name} memory", ranges
    others = [Range(module.start, module.end) for module in target.modules()] + list(thread_stacks(target).values())
    others = merge_ranges([*others, *managed])
    named = [region for region in writable if not region.name.startswith("[stack")]
    shared = [region for region in named if region.name.startswith(SHARED) or not (region.private or region.name.startswith("/"))]
    yield "shared memory", subtract(_in_roots(session, shared), others)
    private = [region for region in named if region.private and not region.name.startswith("/")]
    yield "", subtract(_in_roots(session, private), others)


def _in_roots(session: Session, regions: Sequence[Region]) -> list[Range]:
    """The parts that are root memory: of no allocator, and not reserved."""
    return intersection(merge_ranges(_ranges(regions)), session.root_memory)


def _ranges(regions: Iterable[Region]) -> list[Range]:
    return [Range(region.start, region.end) for region in regions]


def _count(session: Session, ranges: Iterable[Range]) -> int:
    """Resident bytes, by what the command knows of residency."""
    found, pages = 0, session.presence
    for start, end in ranges:
        held: Optional[int] = pages.resident.bytes(start, end) if pages is not None else session.target.resident(start, end)
        found += end - start if held is None else held
    return found


def _nonzero(session: Session, ranges: Iterable[Range]) -> int:
    """Bytes of the pieces of STEP bytes that have other bytes than zeros. Where residency is
    unknown, as in a core by gcore, most mapped memory may never have been touched."""
    found, zeros = 0, bytes(STEP)
    for start, end in ranges:
        for piece in nonzero_pieces(session.target, start, end):
            session.report_progress("looking for memory that is not read", 0.0)
            for at in range(0, len(piece.data), STEP):
                part = bytes(piece.data[at : at + STEP])
                found += len(part) if part != zeros[: len(part)] else 0
    return found
