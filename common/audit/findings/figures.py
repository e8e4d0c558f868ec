"""Count bytes and resident bytes of the blocks in use, by memcheck's kinds.

All findings about blocks in use get their figures here, so each block counts in one finding:
REACHABLE blocks are in use, DEFINITE and INDIRECT blocks leaked, and POSSIBLE blocks possibly
leaked."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Optional

from findleaks.audit.accounting import PURE_STEP, STEP, clip_runs
from findleaks.audit.leak_groups import group_leaked_blocks
from findleaks.audit.reference_evidence import list_mapping_blocks
from findleaks.engine.terms import Kind, Totals
from findleaks.formatting import format_amount
from findleaks.session import Session
from findleaks.target.runs import Runs
from findleaks.value_classes import NamedTuple

LEAKED = (Kind.DEFINITE, Kind.INDIRECT)
MEMBERS = 1 << 20  # blocks that are passed to the engine in one call


class Figures(NamedTuple):
    """Number of blocks, their bytes, and their resident bytes (None if residency is unknown)."""

    blocks: int
    bytes: int
    resident: Optional[int]

    @property
    def amount(self) -> str:
        """Both sizes as text: "449 MiB (66 MiB of it resident)". If both have the same text, it is
        shown once."""
        return format_amount(self.bytes, self.resident)


def exclude_figures(whole: Figures, parts: Sequence[Figures]) -> Figures:
    """Return the figures of the blocks that are in none of the parts."""
    resident = whole.resident
    for part in parts:
        resident = None if resident is None or part.resident is None else max(resident - part.resident, 0)
    return Figures(whole.blocks - sum(part.blocks for part in parts), whole.bytes - sum(part.bytes for part in parts), resident)


class BlockFigures:
    """Computes figures of the blocks in the session's latest graph. `known`: residency is known."""

    def __init__(self, session: Session, known: bool) -> None:
        self._session, self._graph = session, session.graph()
        self._known = known and session.presence is not None

    def of(self, *kinds: Kind) -> Figures:
        """Return the figures of all blocks of these kinds."""
        totals = Totals.sum_of(map(self._graph.totals, kinds))
        resident = sum(self._resident[kind] for kind in kinds) if self._known else None
        return Figures(totals.blocks, totals.bytes, resident)

    def bytes_of(self, kind: Kind) -> int:
        """Return the bytes of all blocks of a kind, resident or not, which takes little time."""
        return self._graph.totals(kind).bytes

    def of_blocks(self, members: Iterable[array[int]], *kinds: Kind) -> Figures:
        """Return the figures of the blocks in `members` that have one of these kinds.

        `members`: arrays ("I") of indices of blocks."""
        count, held, resident = 0, 0, 0
        for part in members:
            self._session.report_progress("counting what is resident", 0.0)
            figures = self._graph.figures_by_kind(part, self._partly_present)
            chosen = [figures[kind] for kind in kinds]
            count += sum(one.blocks for one in chosen)
            held += sum(one.bytes for one in chosen)
            resident += sum(one.inside if self._partly_present else one.bytes for one in chosen)
        return Figures(count, held, resident if self._known else None)

    def of_mappings(self, *kinds: Kind) -> tuple[Figures, Figures]:
        """Return the figures of leaked mappings of these kinds, and of the other leaked blocks to
        which only these mappings refer. The resident bytes of these blocks are an upper bound."""
        blocks, graph, mappings = self._session.directory.blocks, self._graph, self._session.directory.mappings.ranges
        if mappings:  # This call chooses the blocks that represent cycles.
            group_leaked_blocks(self._session, graph)
        chosen = set(list_mapping_blocks(self._session, *kinds))
        # The leak head of a cycle is its block with the lowest address, which need not be the
        # mapping.
        heads = {graph.leak_head(index) if graph.kind(index) in LEAKED else index for index in chosen}
        heads = {head for head in heads if head in chosen or graph.representative(head) in chosen}
        every = Totals.sum_of([Totals(len(heads), sum(map(blocks.size, heads))), *map(graph.indirect_totals, heads)])
        own = [index for index in chosen if index in heads or (graph.kind(index) == Kind.INDIRECT and graph.leak_head(index) in heads)]
        below = Totals(every.blocks - len(own), every.bytes - sum(map(blocks.size, own)))
        return self.of_blocks([array("I", sorted(chosen))], *kinds), Figures(*below, below.bytes if self._known else None)

    def mappings_below_blocks(self) -> list[int]:
        """Return the indices of the indirectly lost mappings whose leak head is a block, not a
        mapping."""
        blocks, graph, mappings = self._session.directory.blocks, self._graph, self._session.directory.mappings.ranges
        starts = {blocks.find(start) for start, _ in mappings}
        below = list_mapping_blocks(self._session, Kind.INDIRECT)
        return sorted(index for index in below if graph.leak_head(index) not in starts)

    def most_common_size(self, kind: Kind, excluded: Iterable[array[int]] = ()) -> tuple[int, int]:
        """Return a usable size and the number of blocks with this size: the size whose blocks of
        this kind have the most bytes together. `excluded`: indices ("I") of blocks that do not
        count."""
        left, kinds = Counter(dict(self._graph.sizes(kind))), self._graph.kinds()
        for part in excluded:
            of_kind = array("I", (index for index in part if kinds[index] == kind))
            left.subtract(self._session.directory.blocks.columns_of(of_kind).size)
        return _most_bytes(list(left.items()))

    @cached_property
    def _resident(self) -> list[int]:
        """Resident bytes of the blocks, one number for each Kind. Usually few bytes are not
        resident, so these bytes are counted and subtracted."""
        sums, step = [self._graph.totals(kind).bytes for kind in Kind], PURE_STEP if self._session.engine.name == "pure" else STEP
        for start, end in self._session.heap_ranges():
            for low in range(start, end, step):
                self._session.report_progress("counting what is resident", 0.0)
                high = min(end, low + step)
                # A gap is memory that is not resident. It begins at the end of a resident run, and
                # ends at the start of the next one.
                gaps = array("Q", [low]) + clip_runs(self._runs, low, high) + array("Q", [high])
                sums = [held - absent for held, absent in zip(sums, self._graph.bytes_by_kind(gaps))]
        return sums

    @cached_property
    def _partly_present(self) -> array[int]:
        """Starts and ends of the resident parts of heaps, ascending ("Q"). Empty if residency is
        unknown. Also empty if all blocks in use are resident: then the addresses of blocks need not
        be looked up."""
        found: array[int] = array("Q")
        if not self._known or all(self._graph.totals(kind).bytes == self._resident[kind] for kind in Kind):
            return found
        for start, end in self._session.heap_ranges():
            found += clip_runs(self._runs, start, end)
        return found

    @property
    def _runs(self) -> Runs:
        """Resident ranges; none if residency is unknown."""
        pages = self._session.presence
        return pages.resident if pages is not None else Runs.of(())


def _most_bytes(sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return max(sizes, key=lambda one: one[0] * one[1], default=(0, 0))
