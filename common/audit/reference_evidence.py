"""Find evidence in the reference counts of leaked managed objects. The evidence shows either that a
decrement is missing, or that the collector has not freed the garbage yet."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Optional

from findleaks.engine.terms import NO_BLOCK, Kind, Totals
from findleaks.formatting import blocks, format_count, number, shorten, size, some
from findleaks.results.amounts import Amount
from findleaks.runtimes.count_verdict import CountVerdict

if TYPE_CHECKING:
    from findleaks.audit.leak_groups import Leak
    from findleaks.results.note_parts import ReferenceCounts
    from findleaks.runtimes import base
    from findleaks.runtimes.base import Runtime
    from findleaks.session import Session

NAMED = 3  # maximum number of types that a sentence names


def list_uncollected_blocks(counts: base.ReferenceCounts) -> array[int]:
    """Return the indices ("I") of leaked blocks that are garbage which a collector has not freed
    yet."""
    return array("I", (match.start() for match in re.finditer(bytes([CountVerdict.UNCOLLECTED]), counts.verdicts)))


def list_mapping_blocks(session: Session, *kinds: Kind) -> list[int]:
    """Return the indices of the leaked mappings whose block has one of these kinds, in the order of
    the mappings. Mappings to which garbage refers are left out: if a collector frees the garbage,
    the runtime unmaps them."""
    counts, graph, find = session.reference_counts, session.graph(), session.directory.blocks.find
    found = [find(start) for start, _ in session.directory.mappings.ranges]
    garbage = CountVerdict.UNCOLLECTED
    return [index for index in found if graph.kind(index) in kinds and (counts is None or counts.verdicts[index] != garbage)]


def count_garbage(session: Session) -> tuple[Totals, int]:
    """Return number and bytes of all blocks of `session.graph()` that are garbage of a collector,
    and the number of leak heads among them."""
    counts = session.reference_counts
    if counts is None or not counts.totals[CountVerdict.UNCOLLECTED].blocks:
        return Totals(0, 0), 0
    kinds = session.graph().kinds()
    return counts.totals[CountVerdict.UNCOLLECTED], sum(kinds[index] == Kind.DEFINITE for index in list_uncollected_blocks(counts))


def find_counting_runtime(session: Session) -> Optional[Runtime]:
    """Return the runtime whose objects have reference counts; None if there is none."""
    known = session.object_types
    return next((one for one in session.runtimes if known is not None and one.name == known.runtime), None)


def describe_missing_decrement(counts: base.ReferenceCounts) -> str:
    """Return "50,000 objects each count one reference more than exists: a Py_DECREF is missing
    (…)"; "" if no decrement is missing."""
    wrong = [one for one in counts.types if one.objects]
    objects, excess = sum(one.objects for one in wrong), sum(one.excess for one in wrong)
    if not objects:
        return ""
    several = objects > 1
    more = "one reference more than exists" if excess == objects else f"{number(excess)} references more than exist"
    names = some([f"{number(one.objects)} of {shorten(one.name)}" for one in wrong[:NAMED]])
    subject = f"{number(objects)} objects {'each count' if excess == objects else 'count'}" if several else "1 object counts"
    return f"{subject} {more}: a {counts.decrement} is missing ({names})"


def describe_uncollected_garbage(session: Session, counts: base.ReferenceCounts) -> str:
    """Return "24 MiB in 99,815 blocks is garbage that CPython's collector has not freed, not a
    leak: …"; "" if there is no such garbage."""
    found = counts.totals[CountVerdict.UNCOLLECTED]
    runtime = find_counting_runtime(session)
    if not found.blocks or runtime is None:
        return ""
    of = some([f"{format_count(one.uncollected, 'object')} of {shorten(one.name)}" for one in list_largest_uncollected(counts)])
    held = f"{size(found.bytes)} in {blocks(found.blocks)}"
    why = explain_uncollected_garbage(runtime.automatic_collection)
    return f"{held} is garbage that {runtime.name}'s collector has not freed, not a leak: {why} ({of})"


def explain_uncollected_garbage(automatic_collection: Optional[bool]) -> str:
    """Return a clause that explains why the garbage was not collected; see
    Runtime.automatic_collection."""
    return "automatic collection is disabled" if automatic_collection is False else "no collection has reached it"


def describe_uncollectable_cycles(session: Session, counts: base.ReferenceCounts) -> str:
    """Return "6.2 MiB in 200,585 blocks is in cycles, or only cycles refer to it: …"; "" if there
    are no such blocks."""
    cycles, runtime = counts.totals[CountVerdict.UNTRACKED_CYCLE], find_counting_runtime(session)
    if not cycles.blocks or runtime is None:
        return ""
    held = f"{size(cycles.bytes)} in {blocks(cycles.blocks)}"
    if runtime.cycle_remedy:
        return f"{held} is in reference cycles, or retained by them: {runtime.name} never frees cycles, {runtime.cycle_remedy}"
    return f"{held} is in cycles with objects that the collector does not know: no collection frees them"


def is_garbage(session: Session, leak: Leak) -> bool:
    """Whether a group consists of objects that a collector has not freed yet.
    That is the case if all examples are such garbage, and no object of their type lacks a
    decrement."""
    counts = session.reference_counts
    if counts is None or not leak.runtime or not leak.examples:
        return False
    indices = session.directory.blocks.find_all(leak.examples)[0]
    if any(index == NO_BLOCK or counts.verdicts[index] != CountVerdict.UNCOLLECTED for index in indices):
        return False
    miscounted = session.once((is_garbage, session.graph()), lambda: frozenset(one.name for one in counts.types if one.objects))
    return leak.type not in miscounted


def list_largest_uncollected(counts: base.ReferenceCounts) -> list[base.MiscountedType]:
    """Return the types with the most garbage objects that the collector has not freed yet."""
    return sorted((one for one in counts.types if one.uncollected), key=lambda one: (-one.uncollected, one.name))[:NAMED]


def describe_evidence(session: Session) -> Iterator[str]:
    """Yield sentences about what reference counts show about the leaked objects of
    `session.graph()`."""
    counts = session.reference_counts
    if counts is None:
        return
    yield from filter(None, (describe_missing_decrement(counts), describe_uncollected_garbage(session, counts)))
    words = describe_uncollectable_cycles(session, counts)
    if words:
        yield words


def summarise_reference_evidence(session: Session) -> Optional[ReferenceCounts]:
    """Return the evidence as a typed result; None if no runtime counts references, or if nothing
    leaked."""
    counts, runtime = session.reference_counts, find_counting_runtime(session)
    if counts is None or runtime is None:
        return None
    # Few commands need this, so it is imported here.
    from findleaks.results.note_parts import MiscountedType, ReferenceCounts

    return ReferenceCounts(
        runtime.name,
        runtime.automatic_collection,
        missing_decrement=Amount.of(counts.totals[CountVerdict.MISSING_DECREF]),
        uncollected=Amount.of(counts.totals[CountVerdict.UNCOLLECTED]),
        untracked_cycles=Amount.of(counts.totals[CountVerdict.UNTRACKED_CYCLE]),
        types=tuple(MiscountedType(*one) for one in counts.types),
    )
