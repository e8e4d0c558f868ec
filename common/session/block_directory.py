"""Builds a session's directory: every block of every allocator, and leaked mappings as blocks.

A mapping may be leaked if nothing that findleaks knows owns it: no allocator, runtime, file or
thread. leaked_mappings.py examines these candidates, which most processes do not have."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from findleaks.allocators.directory import Directory, build_directory
from findleaks.allocators.in_flight import find_threads_inside
from findleaks.allocators.mapped import LEAST
from findleaks.libc.stacks import dead_stacks, thread_stacks, unjoined_threads
from findleaks.target.base import Range, Region, Target
from findleaks.target.ranges import intersection, merge_ranges
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.session import Session

LARGEST = 1 << 44  # bytes of a mapping; a damaged core may claim more
LARGEST_GUARD = 1 << 20  # bytes; more inaccessible memory beside a mapping is a reservation
LIBC = 256 << 10  # bytes below thread-local variables that may belong to ld.so


class Mapping(NamedTuple):
    """A candidate: the range [start, end) that the program can write to. `low`: where a guard below
    it starts, or `start`. An address in the guard belongs to the mapping, too."""

    low: int
    start: int
    end: int


def compute_directory(session: Session) -> Directory:
    """Return the directory, and set what the session stores with it.

    The search for leaked mappings needs a session with all other blocks. If it finds some, the
    indices of blocks change, so that everything computed so far is dropped."""
    made = _walk_heaps(session, ())
    session.__dict__["directory"] = made  # As if this function had returned.
    try:
        candidates = list_candidates(session)
        if sum(one.end - one.start for one in candidates) < LEAST:
            return made
        # Imported here, as most processes have no candidates.
        from findleaks.session.leaked_mappings import find_leaked_mappings

        found = find_leaked_mappings(session, candidates)
    except BaseException:
        session.drop_computed()
        raise
    if found.ranges or found.is_graph_partial:
        session.drop_computed()
        session.doubtful_mappings = found.doubtful
        made = _walk_heaps(session, found.ranges) if found.ranges else made
    return made


def _walk_heaps(session: Session, mapped: Sequence[Range]) -> Directory:
    """Read the heaps; again, after the process has run on, while a thread is changing them."""
    with session.timed("walk"):
        while True:
            session.report_progress("finding the heaps", 0.0)
            made = build_directory(session.target, session.engine, mapped)
            session.inside = find_threads_inside(session.target, made.allocators, made.blocks)
            made.remove_half_changed(session.inside)
            # Leaked mappings were found in the process as it is now.
            if mapped or not made.problems or not session.read_again():
                return made


def list_candidates(session: Session) -> list[Mapping]:
    """Return the mappings of data that nothing explains, ascending."""
    regions = session.target.regions()
    runs = _split_at_libc(session.target, merge_ranges(Range(one.start, one.end) for one in regions if _is_data(one)))
    if sum(end - start for start, end in runs) < LEAST:
        return []
    known = [Range(module.start, module.end) for module in session.target.modules()]
    runs = _without(runs, [*known, *session.directory.claimed(), *thread_stacks(session.target).values()])
    if sum(end - start for start, end in runs) < LEAST:
        return []
    # To find stacks of threads that ended, the memory that may contain them is searched.
    starts = [one.start for one in runs]
    places = [one for one in regions if _is_data(one) and _overlaps(runs, starts, Range(one.start, one.end))]
    known = [*dead_stacks(session.target, session.engine, places)]
    runs = _without(runs, [*known, *(one.stack for one in unjoined_threads(session.target, session.engine, places))])
    known = [piece for runtime in session.runtimes for part in runtime.parts() for piece in part.ranges]
    runs = _without(runs, [*known, *(part for one in session.reserved for part in one.ranges)])
    below, above = {one.end: one for one in regions}, {one.start: one for one in regions}
    owned = merge_ranges(part for one in session.reserved for part in one.ranges)
    made = []
    for start, end in runs:
        before, after = below.get(start), above.get(end)
        if not any(_excludes(one, owned) for one in (before, after) if one is not None):
            made.append(Mapping(before.start if before is not None and _is_inaccessible(before) else start, start, end))
    return made


def _is_data(region: Region) -> bool:
    accessible = region.private and region.readable and region.writable and not region.executable
    return accessible and not region.name and region.size <= LARGEST


def _split_at_libc(target: Target, runs: Sequence[Range]) -> list[Range]:
    """Divide the run with the main thread's thread-local variables, if it is much larger.

    ld.so maps them, and little other memory, before the program starts. The kernel merges them with
    mappings that the program makes right below."""
    pointer = next((thread.thread_pointer for thread in target.threads()), 0)
    own = next((run for run in runs if pointer and run.end - run.start > LIBC and run.start <= pointer < run.end), None)
    if own is None:
        return list(runs)
    # In few processes is this run large.
    from findleaks.libc.thread_local import control_block, static_tls

    below = static_tls(target)
    cut = (control_block(target, pointer).start - below - LIBC) // target.arch.page * target.arch.page if below is not None else 0
    return [part for run in runs for part in ([Range(run.start, cut), Range(cut, run.end)] if run is own and run.start < cut else [run])]


def _is_inaccessible(region: Region) -> bool:
    """Whether a region may be a guard or a reservation. gcore marks all memory as readable."""
    return region.private and not (region.writable or region.executable or region.name)


def _without(runs: Sequence[Range], known: Sequence[Range]) -> list[Range]:
    """Return the runs that no known range overlaps: a mapping with a known part has one owner."""
    explained = merge_ranges(known)
    starts = [one.start for one in explained]
    return [one for one in runs if not _overlaps(explained, starts, one)]


def _overlaps(ranges: Sequence[Range], starts: Sequence[int], one: Range) -> bool:
    at = bisect_left(starts, one.end) - 1
    return at >= 0 and ranges[at].end > one.start


def _excludes(neighbour: Region, owned: Sequence[Range]) -> bool:
    """Whether memory right beside this region is not examined. A program that generates code
    refers to data beside it by the distance, and to parts of a reservation by their number."""
    if neighbour.executable and not neighbour.name:
        return True
    reserves = _is_inaccessible(neighbour) and neighbour.end - neighbour.start > LARGEST_GUARD
    return reserves and not intersection([Range(neighbour.start, neighbour.end)], owned)
