"""Find objects that Go never frees: they have a finalizer and can be reached from themselves.

Source: Go 1.18 to 1.26, src/runtime/mgcmark.go (markroot: what an object with a finalizer refers
to is a root; the object itself is not)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

from findleaks.formatting import number
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.go.object_graph import GoGraph
from findleaks.runtimes.go.objects import HeapObjects
from findleaks.runtimes.go.root_groups import RECORDS
from findleaks.runtimes.go.verdict_findings import retained_by

_SAMPLE = 16  # objects that are checked
_MOST_VISITED = 256  # objects that the search from each of them visits
_MOST_REFERENCES = 1 << 12  # references of one object that are followed
_MOST_SEARCHED = 1 << 22  # retained objects among which objects with finalizers are looked for


def find_finalizer_cycles(graph: GoGraph, objects: HeapObjects, live: int) -> Iterator[Finding]:
    """Yield a finding if finalizers retain at least half of the bytes of live objects (`live`), and
    a sample of the objects with finalizers are in cycles."""
    for held in retained_by(graph, RECORDS, live):
        finalized = frozenset(graph.blocks.find(one.start) for one in objects.finalized_objects)
        found = [index for index in held.members(_MOST_SEARCHED) if index in finalized]
        sample = found[:: max(len(found) // _SAMPLE, 1)][:_SAMPLE]
        if not sample or not all(_is_in_cycle(graph, index) for index in sample):
            return
        title = f"Probably leaked: finalizers of objects that refer to themselves retain {held.amount}."
        cause = "Go never frees an object with a finalizer that can be reached from itself, for example in a cycle of two objects. "
        cause += f"{number(len(sample))} objects were checked, and all are in such cycles. Most by type: {held.types}."
        remedies = ("break the cycle before the last reference to it is dropped, or use runtime.AddCleanup instead of SetFinalizer",)
        address = graph.blocks.address(sample[0])
        commands = (f"path {address:#x}", "runtime --only go")
        yield Finding("go-finalizer-cycles", held.totals.bytes, title, cause, remedies, commands, held.facts)


def _is_in_cycle(graph: GoGraph, index: int) -> bool:
    """Whether an object can be reached from itself, by a short path."""
    seen, waiting = set[int](), deque([index])
    while waiting and len(seen) < _MOST_VISITED:
        after = dict.fromkeys(_references(graph, waiting.popleft()))
        if index in after:
            return True
        waiting += [one for one in after if one not in seen]
        seen.update(after)
    return False


def _references(graph: GoGraph, index: int) -> Sequence[int]:
    """Return the objects to which the first references of an object refer."""
    words = islice(graph.references_of(index, 1, graph.target.arch.mask), _MOST_REFERENCES)
    values = [word.value for word in words]
    return [one for one in graph.blocks.find_all(values)[0] if 0 <= one < len(graph.blocks)] if values else []
