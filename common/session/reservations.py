"""Find accessible parts of reservations.

A program may reserve addresses with PROT_NONE, make some of them accessible, and refer to these
parts by numbers, such as the index of a slot. Then it has the address of the reservation. If no
word outside a reservation is an address in it, the whole reservation leaked.

An inaccessible range of more than 1 MiB is a reservation. Smaller ones may also be the guards of
mappings that the program created one by one. Stacks are such mappings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.allocators.bulk import find_pointers
from findleaks.allocators.mapped import LEAST
from findleaks.session.block_directory import Mapping
from findleaks.session.stack_search import find_stack_frames, supports_stack_search
from findleaks.target.base import Range
from findleaks.target.ranges import find_overlaps, merge_ranges, merge_to_most, range_at, subtract
from findleaks.unwind.frames import STACK_TOP, is_return_address

if TYPE_CHECKING:
    from findleaks.session import Session
    from findleaks.session.leaked_mappings import MappingSearch

CLUSTERS = 4  # ranges of addresses that are searched for references to reservations
# Words in these ranges that are examined; if there are more, all parts count as in use
MOST_WORDS = 1 << 16
PHASE = "looking for references to mappings"
# The program created the mappings of a run one by one if words refer to the starts of at least this
# fraction of them
STARTED = 1 / 4
# A run has fewer inaccessible bytes for each accessible byte if they are guards of its mappings
GUARDS = 1 / 4


def leave_out_parts(session: Session, found: Sequence[Mapping], edges: Collection[int]) -> list[Mapping]:
    """Return the candidates without the parts of reservations to which a word refers. `edges`: the
    ends of the candidates beside a reservation. All candidates of their runs are parts, except
    stacks."""
    runs = [run for run in _list_runs(found) if any(found[number].end in edges for number in run)]
    near = [Range(found[number].start, found[number].end) for run in runs for number in run]
    stacks = _find_stacks(session, [one for one in near if one.end not in edges])
    parts = [one for one in near if one not in stacks]
    is_enough = sum(end - start for start, end in parts) >= LEAST
    unreferenced = set(find_unreferenced(session, parts)) if is_enough else ()
    every = set(parts)
    rest = (one for one in found if Range(one.start, one.end) not in every)
    return sorted([*rest, *(Mapping(start, start, end, True) for start, end in unreferenced)])


def find_parts(session: Session, search: MappingSearch, is_live: Callable[[int], bool]) -> list[Range]:
    """Return the leaked candidates that are likely to be parts of a reservation to which a word
    refers, because the program can compute their addresses. `is_live`: whether the block with this
    index is live.

    Example: every second page of an arena is accessible, and only its base is in a variable. A run
    of mappings with guards looks the same, but the program has the address of each mapping in use.
    Stacks are left out."""
    kept, parts = search.list_kept(is_live), list[Range]()
    for run in _list_runs(search.found):
        base = _find_base(search, run, kept) if not search.left.isdisjoint(run) else None
        leaked = (search.found[number] for number in run if base is not None and number > base and number in search.left)
        parts += (Range(one.start, one.end) for one in leaked)
    stacks = _find_stacks(session, parts)
    return [one for one in parts if one not in stacks]


def _list_runs(found: Sequence[Mapping]) -> list[list[int]]:
    """Return the runs of candidates, as their numbers. Between the candidates of a run, there is
    only inaccessible memory."""
    runs: list[list[int]] = []
    for number, one in enumerate(found):
        if number and one.low == found[number - 1].end and one.low < one.start:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def _find_base(search: MappingSearch, run: Sequence[int], kept: set[int]) -> Optional[int]:
    """Return the lowest candidate of a run to which a word refers, if the run is likely to be one
    reservation; otherwise None. Programs compute addresses above the base.

    `kept`: see MappingSearch.list_kept. Words on stacks and in registers may be stale. If the
    inaccessible memory may be guards of mappings that the program created one by one, such words
    count only if they are the lowest address of the run, as the base of a reservation is."""
    lowest, *others = run
    accessible = sum(search.found[number].end - search.found[number].start for number in run)
    inaccessible = search.found[run[-1]].end - search.found[lowest].start - accessible
    is_at_base = lowest in search.lowest and lowest not in search.left
    if inaccessible >= accessible * GUARDS:
        sources: tuple[set[int], ...] = (search.lowest, search.inside)
    else:
        sources = (kept, {lowest} if is_at_base else set())
        is_at_base = is_at_base and lowest in kept
    live = set[int]().union(*(one.intersection(run) for one in sources)) - search.left
    started = live.intersection(others, search.started)
    return min(live) if live and (is_at_base or len(started) < len(others) * STARTED) else None


def _find_stacks(session: Session, parts: Sequence[Range]) -> set[Range]:
    """Return the parts that look like stacks. On other machines than x86, these are parts with a
    return address at their upper end."""
    if supports_stack_search(session.target):
        return {one for one in parts if find_stack_frames(session, one.start, one.end) is not None}
    code = merge_ranges(Range(one.start, one.end) for one in session.target.regions() if one.executable)
    clusters, found = merge_to_most(code, CLUSTERS), set[Range]()
    for piece in session.pieces([Range(max(end - STACK_TOP, start), end) for start, end in parts], PHASE):
        for low, high in clusters:
            for address, value in zip(*find_pointers(session.engine, piece, low, high)):
                part = range_at(parts, address)
                if part is not None and part not in found and range_at(code, value) and is_return_address(session.target, value):
                    found.add(part)
    return found


def find_unreferenced(session: Session, parts: Sequence[Range]) -> list[Range]:
    """Return the accessible parts to whose reservations no word refers. `parts`: ascending. Words
    in a part count only if a word outside its reservation refers to this reservation. The kernel
    merges adjacent reservations, so a word that refers to one of them counts for all."""
    regions = session.target.regions()
    anonymous = merge_ranges(Range(one.start, one.end) for one in regions if one.private and not one.executable and not one.name)
    starts = [one.start for one in parts]
    inside = {one: [part for part, _, _ in find_overlaps(parts, starts, one.start, one.end)] for one in anonymous}
    left = {one for one, found in inside.items() if found}
    clusters, count = merge_to_most(sorted(left), CLUSTERS), 0
    threads = [word for thread in session.target.threads() for word in (thread.sp, thread.thread_pointer)]
    words: Sequence[int] = [*threads, *session.register_words()]
    ranges = subtract(merge_ranges([*session.root_memory, *session.heap_ranges()]), parts)
    while left and (words or ranges):
        referenced = set(_find_reservations(anonymous, words)) & left
        words = ()
        for piece in session.pieces(ranges, PHASE):
            for low, high in clusters if left - referenced else []:
                _, values = find_pointers(session.engine, piece, low, high + 1)
                count += len(values)
                if count > MOST_WORDS:
                    return []
                referenced.update(left.intersection(_find_reservations(anonymous, values)))
        left -= referenced
        ranges = [part for one in sorted(referenced) for part in inside[one]]
    return [one for one in parts if range_at(anonymous, one.start) in left]


def _find_reservations(anonymous: Sequence[Range], words: Iterable[int]) -> Iterator[Range]:
    """Yield the range to which each word refers. Words that refer to no range are skipped. The end
    of a range counts as an address in the range."""
    for word in words:
        found = range_at(anonymous, word) or range_at(anonymous, word - 1)
        if found is not None:
            yield found
