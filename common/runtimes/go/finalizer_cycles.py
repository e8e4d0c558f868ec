"""Find objects that Go never frees. Such an object has a finalizer or a cleanup, and can be reached
from itself or from the function of the finalizer or cleanup.

Source: Go 1.18 to 1.26, src/runtime: mgcmark.go (markroot: the function is a root, and what an
object with a finalizer refers to; the object itself is not), mheap.go (specialfinalizer,
specialCleanup)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
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
        records = _list_records(graph, objects, finalized)
        found = [index for index in held.members(_MOST_SEARCHED) if index in records]
        sample = found[:: max(len(found) // _SAMPLE, 1)][:_SAMPLE]
        starts = (records[index] + ([index] if index in finalized else []) for index in sample)
        if not sample or not all(map(partial(_can_reach, graph), starts, sample)):
            return
        what = "finalizers" if any(index in finalized for index in sample) else "cleanups"
        title = f"Probably leaked: {what} of objects that refer to themselves retain {held.amount}."
        if what == "finalizers":
            cause = "Go never frees an object with a finalizer that can be reached from itself, for example in a cycle of two objects, "
            cause += "or from the function of its finalizer or cleanup, for example a closure that uses the object."
            remedies: tuple[str, ...] = (
                "let the function use only its argument, and break cycles before the last reference to them is dropped",
                "use runtime.AddCleanup instead of SetFinalizer",
            )
        else:
            cause = "Go never frees an object that can be reached from the function of its cleanup, or from the argument of this function, "
            cause += "for example if one of these is a closure that uses the object."
            remedies = ("let neither the function nor the argument of runtime.AddCleanup refer to the object",)
        cause += f" {number(len(sample))} objects were checked, and all can be reached like this. Most by type: {held.types}."
        address = graph.blocks.address(sample[0])
        commands = (f"path {address:#x}", "runtime --only go")
        yield Finding("go-finalizer-cycles", held.totals.bytes, title, cause, remedies, commands, held.facts)


def _list_records(graph: GoGraph, objects: HeapObjects, finalized: Iterable[int]) -> dict[int, list[int]]:
    """Return the objects to which the finalizers and cleanups of an object refer, by the object. An
    object may have several cleanups. Samples of the heap profile refer to no object, and neither
    does a finalizer whose function is not a closure. `finalized`: all objects with finalizers."""
    found: dict[int, list[int]] = {index: [] for index in finalized}
    for address, _, words in objects.records:
        referred = _find_blocks(graph, words)
        if referred:
            found.setdefault(graph.blocks.find(address), []).extend(referred)
    return found


def _can_reach(graph: GoGraph, starts: Sequence[int], index: int) -> bool:
    """Whether a short path of at least one reference leads from one of the objects `starts` to the
    object `index`. `index` may be in `starts`."""
    seen, waiting = set[int](), deque(starts)
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
    return _find_blocks(graph, [word.value for word in words])


def _find_blocks(graph: GoGraph, values: Sequence[int]) -> list[int]:
    """Return the objects to which these words refer."""
    return [one for one in graph.blocks.find_all(values)[0] if 0 <= one < len(graph.blocks)] if values else []
