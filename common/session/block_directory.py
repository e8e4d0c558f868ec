"""Build a session's directory: all blocks of all allocators, and leaked mappings as blocks.

A mapping is a candidate if it has no known owner: no allocator, runtime, file or thread.
leaked_mappings.py finds out which candidates leaked. Most processes have no candidates."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.allocators.directory import Directory, build_directory, find_nested
from findleaks.allocators.in_flight import find_threads_inside
from findleaks.allocators.mapped import LEAST
from findleaks.engine.terms import Kind
from findleaks.libc.stacks import dead_stacks, thread_stacks, unjoined_threads
from findleaks.target.base import Range, Region, Target
from findleaks.target.ranges import find_overlaps, merge_ranges
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.allocators.described.file import PoolFile
    from findleaks.runtimes.base import Runtime
    from findleaks.session import Session

LARGEST = 1 << 44  # mappings with more bytes are ignored, because a damaged core may claim any size
# If more bytes beside a mapping are inaccessible, they are a reservation, not a guard
LARGEST_GUARD = 1 << 20
LIBC = 256 << 10  # bytes below the thread-local variables that may belong to ld.so


class Mapping(NamedTuple):
    """A candidate: the range [start, end), which the program can write to. `low`: the start of the
    guard below it, or `start` if it has no guard. An address in the guard belongs to the mapping,
    too. `is_part`: whether it is a part of a reservation to which no word refers. `is_owned`:
    it is not a candidate, but it and the candidates above it may be one reservation; see
    `_list_owned_ends`."""

    low: int
    start: int
    end: int
    is_part: bool = False
    is_owned: bool = False


def compute_directory(session: Session) -> Directory:
    """Return the directory of all blocks.

    The search for leaked mappings needs a session with all other blocks. The session may compute a
    graph with other roots, and mappings that are found change the indices of blocks. Therefore all
    computed data is dropped after the search. The runtimes are kept if the blocks remain the
    same."""
    made = _walk_heaps(session, ())
    # The session can then be used as if this function had returned
    session.__dict__["directory"] = made
    try:
        candidates = list_candidates(session)
        if sum(one.end - one.start for one in candidates) < LEAST:
            return made
        # Most processes have no candidates, so this is imported here.
        from findleaks.session.leaked_mappings import find_leaked_mappings

        found = find_leaked_mappings(session, candidates)
    except BaseException:
        session.drop_computed()
        raise
    if found.has_own_graph:
        # Runtimes depend on the blocks, not on the graph. Some take long to read.
        session.drop_computed(keep=() if found.ranges else ("runtimes",))
    if found.ranges:
        made = _walk_heaps(session, found.ranges)
        made.mappings.doubtful = found.doubtful
    return made


def find_runtimes(session: Session) -> Sequence[Runtime]:
    """Return the runtimes in the process. If the search for leaked mappings has found them, they
    are not read again."""
    from findleaks.runtimes.directory import find  # imported here: few commands need it

    directory = session.directory
    known: Optional[Sequence[Runtime]] = session.__dict__.get("runtimes")
    return find(session.target, session.engine, directory) if known is None else known


def use_pool_file(session: Session, file: Optional[PoolFile]) -> None:
    """Divide blocks into the chunks of the pools that this file describes. If the file changes,
    everything computed is dropped."""
    if file != session.pool_file:
        session.pool_file = file
        session.drop_computed()


def _walk_heaps(session: Session, mapped: Sequence[Range]) -> Directory:
    """Read the heaps. While a thread is changing them, let the process run for a while, and read
    them again."""
    with session.measure("walk"):
        while True:
            session.report_progress("finding the heaps", 0.0)
            made = build_directory(session.target, session.engine, mapped)
            with _Leaks(session, made) as leaks:
                pools = find_nested(session.target, session.engine, made.blocks, leaks.contain)
            if session.pool_file is not None:
                # Few commands have a pool file.
                from findleaks.allocators.described.instance import read_pools

                pools += read_pools(session.target, made.blocks, session.pool_file)
            if pools:
                made = build_directory(session.target, session.engine, mapped, pools)
            session.inside = find_threads_inside(session.target, made.allocators, made.blocks)
            made.remove_half_changed(session.inside)
            # Leaked mappings were found in the process as it is now, so it must not run again.
            if mapped or not made.problems or not session.read_again():
                return made


class _Leaks:
    """The leaked blocks of a directory without nested allocators. They are computed only if
    `contain` is called, and then everything computed is dropped at the end."""

    def __init__(self, session: Session, made: Directory) -> None:
        self._session, self._made = session, made
        self._kinds: Optional[Sequence[int]] = None

    def __enter__(self) -> _Leaks:
        return self

    def contain(self, address: int) -> bool:
        """Whether an address is inside a leaked block."""
        if self._kinds is None:
            session, made = self._session, self._made
            session.inside = find_threads_inside(session.target, made.allocators, made.blocks)
            session.__dict__["directory"] = made
            self._kinds = session.graph().kinds()
        index = self._made.blocks.find(address)
        return index >= 0 and self._kinds[index] in (Kind.DEFINITE, Kind.INDIRECT)

    def __exit__(self, *_: object) -> None:
        if "directory" in self._session.__dict__:
            self._session.drop_computed()


def list_candidates(session: Session) -> list[Mapping]:
    """Return the mappings of data that have no known owner, ascending."""
    regions = session.target.regions()
    data = [one for one in regions if _is_data(one)]
    runs = _split_at_libc(session.target, merge_ranges(Range(one.start, one.end) for one in data if not one.has_huge_pages))
    runs = sorted([*runs, *(Range(one.start, one.end) for one in data if one.has_huge_pages)])
    if sum(end - start for start, end in runs) < LEAST:
        return []
    every, owners = runs, [Range(module.start, module.end) for module in session.target.modules()]
    owners += [*session.directory.list_claimed(), *thread_stacks(session.target).values()]
    runs = _without(runs, owners)
    if sum(end - start for start, end in runs) < LEAST:
        return []
    # Stacks of ended threads are searched for only in the candidates.
    starts = [one.start for one in runs]
    places = [one for one in data if any(find_overlaps(runs, starts, one.start, one.end))]
    owners += [one.stack for one in unjoined_threads(session.target, session.engine, places)]
    owners += dead_stacks(session.target, session.engine, places)
    reserved = merge_ranges(part for one in session.reserved for part in one.ranges)
    owners += [piece for runtime in session.runtimes for part in runtime.parts() for piece in part.ranges]
    runs = _without(runs, [*owners, *reserved])
    below, above = {one.end: one for one in regions}, {one.start: one for one in regions}
    made: list[Mapping] = []
    edges: set[int] = set()  # ends of candidates beside reservations
    for start, end in runs:
        before, after = below.get(start), above.get(end)
        beside = [one for one in (before, after) if one is not None]
        if any(one.executable and not one.name for one in beside):
            continue  # generated code may refer to this memory by its distance from the code
        if any(is_reservation(one, reserved) for one in beside):
            edges.add(end)
        made.append(Mapping(before.start if before is not None and _is_inaccessible(before) else start, start, end))
    if edges:
        # Few processes have reservations without a known owner.
        from findleaks.session.reservations import leave_out_parts

        made = leave_out_parts(session, made, edges)
    return sorted([*made, *_list_owned_ends(made, every, owners)])


def _list_owned_ends(found: Sequence[Mapping], runs: Sequence[Range], owners: Sequence[Range]) -> Iterator[Mapping]:
    """Yield the upper end of each mapping of which an owner has only the lower part, if the guard
    of a candidate is directly above it. The kernel merges the first part of a reservation with
    memory below it, such as a large block of malloc. `runs`: all mappings of data."""
    lows = {one.low for one in found if one.low < one.start}
    below = [one for one in runs if one.end in lows]
    owned = merge_ranges(owners) if below else []
    starts = [one.start for one in owned]
    for run in below:
        end = max((part.end for part, _, _ in find_overlaps(owned, starts, run.start, run.end)), default=run.end)
        if end < run.end:
            yield Mapping(end, end, run.end, is_owned=True)


def _is_data(region: Region) -> bool:
    accessible = region.private and region.readable and region.writable and not region.executable
    return accessible and (not region.name or region.has_huge_pages) and region.size <= LARGEST


def _split_at_libc(target: Target, runs: Sequence[Range]) -> list[Range]:
    """Return these ranges. If the range with the main thread's thread-local variables has more than
    LIBC bytes, it is divided below these variables.

    ld.so maps these variables, and little other memory, before the program starts. The kernel
    merges this mapping with mappings that the program creates directly below it."""
    pointer = next((thread.thread_pointer for thread in target.threads()), 0)
    own = next((run for run in runs if pointer and run.end - run.start > LIBC and run.start <= pointer < run.end), None)
    if own is None:
        return list(runs)
    # This range is large in few processes, so this is imported here.
    from findleaks.libc.thread_local import control_block, static_tls

    below = static_tls(target)
    cut = (control_block(target, pointer).start - below - LIBC) // target.arch.page * target.arch.page if below is not None else 0
    return [part for run in runs for part in ([Range(run.start, cut), Range(cut, run.end)] if run is own and run.start < cut else [run])]


def _is_inaccessible(region: Region) -> bool:
    """Whether a region may be a guard or a reservation. Only the other access rights are tested,
    because gcore marks all memory as readable."""
    return region.private and not (region.writable or region.executable or region.name)


def _without(runs: Sequence[Range], known: Sequence[Range]) -> list[Range]:
    """Return the ranges that do not overlap a range in `known`. If a known owner has part of a
    mapping, the whole mapping belongs to it."""
    owned = merge_ranges(known)
    starts = [one.start for one in owned]
    return [one for one in runs if not any(find_overlaps(owned, starts, one.start, one.end))]


def is_reservation(region: Region, reserved: Sequence[Range]) -> bool:
    """Whether a region is a reservation. The program may refer to the memory next to a reservation
    by numbers. `reserved`: the reservations of known owners, which do not count; ascending and
    disjoint."""
    if not _is_inaccessible(region) or region.end - region.start <= LARGEST_GUARD:
        return False
    before = bisect_left(reserved, Range(region.end, 0)) - 1
    return before < 0 or reserved[before].end <= region.start
