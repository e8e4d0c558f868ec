"""Find accessible parts of reservations to which no word refers.

A program may reserve addresses with PROT_NONE, make some of them accessible, and refer to these
parts by numbers, such as the index of a slot. Then it has the address of the reservation. If no
word outside a reservation is an address in it, the whole reservation leaked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from findleaks.allocators.bulk import find_pointers
from findleaks.target.base import Range
from findleaks.target.ranges import find_overlaps, merge_ranges, merge_to_most, range_at, subtract

if TYPE_CHECKING:
    from findleaks.session import Session

CLUSTERS = 4  # ranges of addresses that are searched for references to reservations
# Words in these ranges that are examined; if there are more, all parts count as in use
MOST_WORDS = 1 << 16
PHASE = "looking for references to mappings"


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
