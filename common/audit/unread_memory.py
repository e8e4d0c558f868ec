"""Find memory that findleaks does not read: managed heaps whose objects it does not list,
unattributed anonymous memory, and shared memory. Leaks inside this memory are not detected.

The memory of an unknown allocator or runtime is unattributed anonymous memory."""

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
from findleaks.target.base import Range, Region, is_shared_memory
from findleaks.target.ranges import intersection, merge_ranges, nonzero_pieces, subtract
from findleaks.value_classes import NamedTuple

_KERNEL = "/[aio]"
"""The start of the name of the memory that io_setup(2) maps."""

MOST = 0.5
"""If at least this fraction of the writable memory is not read, `find` and `verdict` report it
first."""

LEAST = 1 << 20  # if fewer bytes are not read, the first line does not report them
STEP = 1 << 14
NAMED = 3  # maximum number of parts that a sentence names


class UnreadPart(NamedTuple):
    """A part of the unread memory.
    `what`: a phrase ("Go's heap", "shared memory"); "" for unattributed memory. `are_pools`: the
    part consists of pools that the runtime lists, and that are freed as a whole."""

    what: str
    bytes: int
    are_pools: bool = False


class UnreadMemory(NamedTuple):
    """Unread memory.

    `parts`: the largest first. `total`: bytes of writable memory. They are resident bytes if
    `resident` is True; otherwise they are the bytes that are not zero, the blocks in use, and the
    objects of managed heaps that are read.
    `owners`: runtimes that may own unattributed memory. `inside`: malloc's blocks in use, if they
    are the heap of a runtime that is known only by name."""

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
        """Bytes of writable memory that findleaks reads."""
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
        """Whether most of the memory is a runtime's heap that lies in malloc's blocks."""
        return self.inside is not None and self.inside.bytes >= max(LEAST, MOST * self.total)

    @property
    def are_pools(self) -> bool:
        """Whether most of the memory consists of pools that a runtime lists."""
        return self.is_worth_saying and sum(part.bytes for part in self.parts if part.are_pools) >= MOST * self.total

    @property
    def are_only_pools(self) -> bool:
        """Whether nearly all of the memory consists of such pools."""
        return self.are_pools and sum(part.bytes for part in self.parts if not part.are_pools) < LEAST

    def sentences(self) -> str:
        """Return "findleaks does not read 98 % of the writable memory (400 MiB of 408 MiB): …"."""
        if self.inside is not None and self.is_inside:
            owner, part = self.inside.what, f"{100 * self.inside.bytes // max(self.total, 1)} % of the writable memory"
            whole = f"{part} ({size(self.inside.bytes)} of {size(self.total)}) is in malloc's blocks, where {owner} stores its objects"
            return f"{whole}. findleaks does not read these objects: those that a program in {owner} leaks count as reachable."
        mapped = "" if self.resident else " without zeros"
        whole = f"{self.percent} % of the writable memory ({size(self.bytes)} of {size(self.total)}{mapped})"
        if self.are_pools:
            pools, others = self.parts[0], [part for part in self.parts if not part.are_pools]
            part = f"{100 * pools.bytes // max(self.total, 1)} % of the writable memory ({size(pools.bytes)} of {size(self.total)}{mapped})"
            part += f" is in {pools.what}, which are freed as a whole. Memory that a pool no longer needs is not reported as leaked."
            return part if self.are_only_pools else f"{part} findleaks also does not read {self._describe(others)}."
        return f"findleaks does not read {whole}: {self._describe(self.parts)}. Leaks inside it are not reported."

    def _describe(self, parts: Sequence[UnreadPart]) -> str:
        """Return the largest of these parts: "45 MiB in shared memory"."""
        large = (part for part in parts if part.bytes * 100 >= self.bytes)
        return some([f"{size(part.bytes)} in {part.what or self._describe_unowned()}" for part in large], NAMED)

    def _describe_unowned(self) -> str:
        owners = f" ({' or '.join(map(printable, self.owners))} may own them)" if self.owners else ""
        return f"unattributed anonymous mappings{owners}"

    def result(self) -> notes.UnreadMemory:
        """Return the figures, without the sentences, as a typed result."""
        parts = [notes.UnreadPart(part.what or None, part.bytes) for part in self.parts]
        inside = notes.UnreadPart(self.inside.what, self.inside.bytes) if self.inside is not None else None
        return notes.UnreadMemory(self.bytes, self.total, self.percent, self.resident, parts, inside)


def find_unread_memory(session: Session) -> UnreadMemory:
    """Return the unread memory. It is computed once for a session."""
    return session.once(find_unread_memory, lambda: _compute(session))


def is_shared(region: Region) -> bool:
    """Whether a mapping is shared memory, or memory of the kernel such as an io_uring."""
    if region.private:
        return _is_in_no_file(region.name) and not region.has_huge_pages
    return _is_in_no_file(region.name) or not region.name.startswith("/")


def _is_in_no_file(name: str) -> bool:
    """Whether a mapping of this name may be shared memory, or memory of the kernel."""
    return is_shared_memory(name) or name.startswith(_KERNEL)


def _compute(session: Session) -> UnreadMemory:
    # Pages of mapped files are left out: reading them would make them resident.
    regions = [region for region in session.target.regions() if region.readable and region.writable]
    writable = [region for region in regions if not region.name.startswith("/") or _is_in_no_file(region.name)]
    known = session.presence is not None or all(
        session.target.resident(region.start, region.end) is not None for region in writable if region.private
    )
    whole = merge_ranges(_ranges(writable))
    claimed: list[Range] = []
    parts: list[UnreadPart] = []
    for what, ranges, are_pools in _list_candidates(session, writable):
        own = subtract(intersection(whole, merge_ranges(ranges)), claimed)
        claimed = merge_ranges([*claimed, *own])
        parts.append(UnreadPart(what, _count_resident(session, own) if known else _count_nonzero(session, own), are_pools))
    parts.sort(key=lambda part: -part.bytes)
    used = session.directory.blocks.totals(State.IN_USE).bytes
    total = _count_resident(session, whole) if known else used + _listed_bytes(session) + sum(part.bytes for part in parts)
    unowned = sum(part.bytes for part in parts if not part.what)
    if unowned < LEAST:
        return UnreadMemory([part for part in parts if part.bytes], total, known, (), _find_inside(session, whole))
    names = [module.path.rsplit("/", 1)[-1] for module in session.target.modules()]
    owners = [
        *heap_owners(names, {allocator.name for allocator in session.directory.allocators}),
        *unread_heaps.owners(session.target, unread_heaps.ANONYMOUS),
    ]
    return UnreadMemory([part for part in parts if part.bytes], total, known, owners, _find_inside(session, whole))


def _listed_bytes(session: Session) -> int:
    """Return the bytes in use of managed heaps whose objects are listed."""
    listed = (runtime for runtime in session.runtimes if runtime.lists_objects)
    return sum(part.used or 0 for runtime in listed for part in runtime.parts() if not part.inside)


def _find_inside(session: Session, writable: Sequence[Range]) -> Optional[UnreadPart]:
    """Return malloc's blocks in use if a runtime that is known only by name stores its objects
    there."""
    read = {runtime.name for runtime in session.runtimes}
    owners = [owner for owner in unread_heaps.owners(session.target, unread_heaps.IN_BLOCKS) if owner not in read]
    if not owners:
        return None
    used = session.directory.blocks.totals(State.IN_USE).bytes
    return UnreadPart(owners[0], min(used, _count_resident(session, intersection(session.heap_ranges(), writable))))


def _list_candidates(session: Session, writable: Sequence[Region]) -> Iterator[tuple[str, Iterable[Range], bool]]:
    """Yield names and ranges of unread memory, and whether they are pools. If ranges overlap, the
    overlap belongs to the first."""
    managed: list[Range] = []
    for runtime in session.runtimes:
        ranges = [piece for part in runtime.parts() if not part.inside for piece in part.ranges]
        managed += ranges
        if not runtime.lists_objects:
            yield f"{runtime.name}'s pools" if runtime.is_pools else f"{runtime.name} memory", ranges, runtime.is_pools
    shared = [region for region in writable if is_shared(region)]
    yield "shared memory", subtract(_in_roots(session, shared), _list_known(session, managed)), False
    yield "", list_unattributed(session, writable, managed), False


def list_unattributed(session: Session, regions: Iterable[Region], managed: Iterable[Range] = ()) -> list[Range]:
    """Return the parts of anonymous regions that no allocator or runtime owns, and that are not
    stacks. `managed`: memory of runtimes."""
    private = [region for region in regions if region.anonymous and not region.name.startswith("[stack")]
    return subtract(_in_roots(session, private), _list_known(session, managed))


def _list_known(session: Session, managed: Iterable[Range]) -> list[Range]:
    modules = (Range(module.start, module.end) for module in session.target.modules())
    return merge_ranges([*modules, *thread_stacks(session.target).values(), *managed])


def _in_roots(session: Session, regions: Sequence[Region]) -> list[Range]:
    """Return the parts of the regions that are root memory: they belong to no allocator and are not
    reserved."""
    return intersection(merge_ranges(_ranges(regions)), session.root_memory)


def _ranges(regions: Iterable[Region]) -> list[Range]:
    return [Range(region.start, region.end) for region in regions]


def _count_resident(session: Session, ranges: Iterable[Range]) -> int:
    """Count resident bytes, from the residency that the command has read."""
    found, pages = 0, session.presence
    for start, end in ranges:
        held: Optional[int] = pages.resident.bytes(start, end) if pages is not None else session.target.resident(start, end)
        found += end - start if held is None else held
    return found


def _count_nonzero(session: Session, ranges: Iterable[Range]) -> int:
    """Divide the ranges into pieces of STEP bytes, and count the bytes of the pieces that are not
    all zeros.
    This is used if residency is unknown, as in a core by gcore: most of its mapped memory may never
    have been touched."""
    found, zeros = 0, bytes(STEP)
    for start, end in ranges:
        for piece in nonzero_pieces(session.target, start, end):
            session.report_progress("looking for unread memory", 0.0)
            for at in range(0, len(piece.data), STEP):
                part = bytes(piece.data[at : at + STEP])
                found += len(part) if part != zeros[: len(part)] else 0
    return found
