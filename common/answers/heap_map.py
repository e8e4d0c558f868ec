"""Answer the question "what is in each page of the heaps?"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Optional, cast

from findleaks.audit.block_rows import check_allocator_name
from findleaks.audit.diagnostics import list_reader_notes
from findleaks.audit.pages import Area, PageMap, predict_released_bytes, read_areas
from findleaks.audit.residency import read_residency
from findleaks.engine.pages import PageState
from findleaks.engine.terms import State
from findleaks.formatting import size
from findleaks.results.heap_map import (
    HeapMap,
    HeapRange,
    ManagedMemoryMap,
    MappedHeap,
    MapTotals,
    PageRun,
    PageWord,
    Residency,
    Trimmable,
)
from findleaks.runtimes.base import Part
from findleaks.session import Session
from findleaks.target.residency.presence import Presence

_RUNS_PER_REPORT = 1 << 15  # runs of pages that are listed between two progress reports


class ManagedPart(NamedTuple):
    """A part of a runtime's memory that is not in an allocator's heap. `resident`: bytes; None if
    unknown."""

    name: str
    resident: Optional[int]
    part: Part


@dataclass(frozen=True)
class FoundHeaps:
    """The analysis that the result is computed from. `trims`: by `id` of the allocator, the bytes
    that its release call returns to the kernel; None if unknown."""

    session: Session
    map: PageMap
    trims: Mapping[int, Optional[int]]

    def result(self) -> HeapMap:
        """Return the result. It lists every run of pages, which takes longer than the analysis."""
        session, known = self.session, self.map.residency
        instances = {id(one): number for number, one in enumerate(session.directory.allocators)}
        return HeapMap(
            self.map.page,
            Residency(known.source, known.rss, known.saved or None),
            MapTotals(self.map.mapped, self.map.resident, self.map.used, _by_state(self.map.areas)),
            trim=[
                Trimmable(one.name, instances[id(one)], returned)
                for one in session.directory.allocators
                if (returned := self.trims.get(id(one))) is not None
            ],
            heaps=[_heap(session, area, instances[id(area.allocator)]) for area in self.map.areas],
            managed=[ManagedMemoryMap(one.name, one.part.bytes, one.resident, one.part.ranges) for one in self.list_managed()],
            notes=list_reader_notes(session),
        )

    def list_managed(self) -> Iterator[ManagedPart]:
        """Yield the parts of runtimes' memory that are not in allocators' heaps."""
        known = self.map.residency
        for runtime in self.session.runtimes:
            for part in runtime.parts():
                if not part.inside:
                    held = sum(known.resident.bytes(start, end) for start, end in part.ranges) if known else None
                    yield ManagedPart(f"{runtime.name} {part.name}", held, part)

    @property
    def warnings(self) -> list[str]:
        """Sentences that explain why the residency of pages is uncertain."""
        return [*self.map.residency.warnings, *_unsure(self.map.residency)]


def map_heaps(session: Session, residency_file: str = "", allocator: Optional[str] = None) -> FoundHeaps:
    """Return every heap page by page; the heaps with the most resident memory come first.
    `allocator`: only heaps of the allocator with this name. `residency_file`: a file that `map
    --save-residency` wrote, with the pages that were resident."""
    known = read_residency(session, residency_file)
    check_allocator_name(session, allocator)
    mappings = session.directory.mappings
    found = read_areas(session, known, lambda one: one is not mappings and allocator in (None, one.name))
    found.sort(key=lambda area: (-(area.resident or 0), -area.size, area.parts[0].start))
    chosen = [one for one in session.directory.allocators if allocator in (None, one.name)]
    trims = {id(one): predict_released_bytes(session, one, known) for one in chosen}
    return FoundHeaps(session, PageMap(session.target.description, found, known, session.target.arch.page), trims)


def _unsure(known: Presence) -> Iterator[str]:
    if known.unsure:
        total = sum(end - start for start, end in known.unsure)
        yield f"the kernel's zero page counts as resident in mappings of {size(total)}: before Linux 6.7, only root can recognise this page"


def _heap(session: Session, area: Area, instance: int) -> MappedHeap:
    return MappedHeap(
        area.allocator.name,
        instance,
        area.allocator.version,
        area.arena or None,
        mapped=area.size,
        resident=area.resident,
        swapped=area.swapped,
        in_use=area.sum_state(State.IN_USE),
        cached=area.sum_state(State.CACHED),
        metadata=area.sum_state(State.METADATA),
        states=_by_state([area]),
        parts=[HeapRange(part.start, part.end) for part in area.parts],
        pages=list(_runs(session, area)),
    )


def _runs(session: Session, area: Area) -> Iterator[PageRun]:
    for at, run in enumerate(area.runs()):
        if at % _RUNS_PER_REPORT == 0:
            session.report_progress("listing pages", 0.0)
        yield PageRun(run.address, run.pages, _WORDS[run.state], run.used)


_WORDS = {state: cast(PageWord, state.name.lower()) for state in PageState}


def _by_state(found: Sequence[Area]) -> dict[PageWord, int]:
    return {word: sum(area.bytes(state) for area in found) for state, word in _WORDS.items()}
