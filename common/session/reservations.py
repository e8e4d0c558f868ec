"""Find accessible parts of reservations to which no word refers.

A program may reserve addresses with PROT_NONE, make some of them accessible, and refer to these
parts by numbers, such as the index of a slot. Then it has the address of the reservation. If no
word outside a reservation is an address in it, the whole reservation leaked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from findleaks.target.base import Range
from findleaks.target.ranges import find_overlaps, merge_ranges, merge_to_most, range_at, subtract

if TYPE_CHECKING:
    from findleaks.session import Session

CLUSTERS = 4  # ranges of addresses that are searched for references to reservations
# Words in these ranges that are examined; if there are more, all parts count as in use
MOST_WORDS = 1 << 16
PHASE = "looking for references to mappings"


def find_unreferenced(session: Session, parts: Sequence[Range]) -> list[Range]:
    """Return those of the accessible parts, ascending, to whose reservations no word refers. The
    kernel merges adjacent reservations, so a word that refers to one of them counts for all."""
    regions = session.target.regions()
    anonymous = merge_ranges(Range(one.start, one.end) for one in regions if one.private and not one.executable and not one.name)
    starts = [one.start for one in parts]
    left = {one for one in anonymous if any(find_overlaps(parts, starts, one.start, one.end))}
    clusters, count = merge_to_most(sorted(left), CLUSTERS), 0
    words = [word for thread in session.target.threads() for word in (thread.sp, thread.thread_pointer)]
    left -= {range_at(anonymous, word) for word in [*words, *session.register_words()]}
    for piece in session.pieces(subtract([*session.root_memory, *session.heap_ranges()], sorted(left)), PHASE):
        for low, high in clusters:
            for address in session.engine.search(piece, low, high) if left else ():
                count += 1
                if count > MOST_WORDS:
                    return []
                at = address - piece.address
                left.discard(range_at(anonymous, session.target.arch.words(piece.data[at : at + session.target.arch.word])[0]))
    return [one for one in parts if range_at(anonymous, one.start) in left]
