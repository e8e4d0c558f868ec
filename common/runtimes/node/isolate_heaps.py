"""Divide the objects of V8's heaps by isolate: the main thread has one, and each worker has its
own.

Source: Node 12 to 24, lib/internal/modules/cjs/loader.js (Module._load): the module of the script
that a thread was started with has the id "."."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from findleaks.formatting import format_count, number, size
from findleaks.runtimes.node.spaces import Spaces
from findleaks.runtimes.object_graph import LIVE
from findleaks.runtimes.v8.isolates import Isolate
from findleaks.target.base import Range
from findleaks.target.ranges import merge_ranges, range_at
from findleaks.target.thread_labels import number_threads
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.runtimes.v8.object_graph import V8Graph

_MODULE, _ID, _MAIN, _FILE = "Module", "id", ".", "filename"
_SHOWN = 3  # scripts that are named


class IsolateHeap(NamedTuple):
    """The objects of an isolate. `thread`: "main thread" or "thread 5", "" if unknown. `script`:
    the file that the thread was started with, "" if unknown. `objects` and `bytes`: of live
    objects."""

    chunks: Sequence[Range]
    thread: str
    is_worker: bool
    script: str
    objects: int
    bytes: int

    def contains(self, address: int) -> bool:
        """Whether an address is in a chunk of this heap."""
        return range_at(self.chunks, address) is not None

    def label(self) -> str:
        """Return "thread 5, a worker (/app/hash.js)" or "the main thread"."""
        if not self.is_worker:
            return f"the {self.thread}" if self.thread else "an unknown thread"
        return f"{self.thread}, a worker{f' ({self.script})' if self.script else ''}"

    def to_json(self) -> dict[str, object]:
        """Return the facts about this heap."""
        return {"thread": self.thread, "worker": self.is_worker, "script": self.script, "objects": self.objects, "bytes": self.bytes}


def list_isolate_heaps(graph: V8Graph, isolates: Sequence[Isolate], spaces: Spaces) -> Sequence[IsolateHeap]:
    """Return the heaps of all isolates, largest first; () if there is only one isolate."""
    if len(isolates) < 2 or graph.graph is None:
        return ()
    label, scripts = number_threads(graph.target), list(_scripts(graph))
    found = []
    for one in isolates:
        chunks = merge_ranges(Range(*chunk) for space in spaces.spaces if space.isolate == one.address for chunk in space.chunks)
        indices = array("I")
        for start, end in chunks:
            indices.extend(range(graph.blocks.at_or_after(start), graph.blocks.at_or_after(end)))
        figures = graph.graph.figures_by_kind(indices, array("Q"))
        thread = next((label(thread.tid) for thread in one.threads), "")
        script = next((name for address, name in scripts if range_at(chunks, address) is not None), "")
        live = [figures[kind] for kind in LIVE]
        is_worker = thread not in ("", "main thread")
        found.append(IsolateHeap(chunks, thread, is_worker, script, sum(kind.blocks for kind in live), sum(kind.bytes for kind in live)))
    return sorted(found, key=lambda one: (-one.bytes, one.thread))


def _scripts(graph: V8Graph) -> Iterator[tuple[int, str]]:
    """Yield the address of each thread's first module, and the file of this module."""
    for index in graph.of_type(_MODULE):
        if graph.text_of_property(index, _ID) == _MAIN:
            yield graph.blocks.address(index), graph.text_of_property(index, _FILE)


def describe_heaps(heaps: Sequence[IsolateHeap]) -> str:
    """Return sentences on the largest heap, and on all workers by script; "" for one heap."""
    if len(heaps) < 2:
        return ""
    workers: dict[str, list[IsolateHeap]] = {}
    for one in heaps:
        if one.is_worker:
            workers.setdefault(one.script, []).append(one)
    groups = sorted(workers.items(), key=lambda pair: -_sum(pair[1]))
    shares = [f"{format_count(len(its), 'worker')}{f' of {script}' if script else ''}: {size(_sum(its))}" for script, its in groups]
    shares += [f"{one.label().removeprefix('the ')}: {size(one.bytes)}" for one in heaps if not one.is_worker]
    others = f" and {number(len(shares) - _SHOWN)} more" if len(shares) > _SHOWN else ""
    largest = f"The largest heap, {size(heaps[0].bytes)}, is that of {heaps[0].label()}."
    return f"{largest} Live objects by thread: {'; '.join(shares[:_SHOWN])}{others}."


def count_heaps(heaps: Sequence[IsolateHeap]) -> str:
    """Return the subject of a sentence on all heaps, with its verb: "V8's heap has" or "V8's 5
    heaps, 4 of them of workers, have"."""
    if len(heaps) < 2:
        return "V8's heap has"
    workers = sum(one.is_worker for one in heaps)
    return f"V8's {number(len(heaps))} heaps{f' ({number(workers)} of them of workers)' if workers else ''} have"


def _sum(heaps: Sequence[IsolateHeap]) -> int:
    return sum(one.bytes for one in heaps)
