"""Build the graph of V8's objects, and determine which of them are live."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

from findleaks.engine.contract import Engine, Graph
from findleaks.errors import Interrupted
from findleaks.runtimes.garbage import mark_objects
from findleaks.runtimes.slices import run_in_slices
from findleaks.runtimes.v8.engine import REFERENCE_ROW, ReferenceSearch
from findleaks.runtimes.v8.heap_objects import HeapObjects
from findleaks.runtimes.v8.maps import Maps
from findleaks.runtimes.v8.references import ephemerons, reference_rows
from findleaks.runtimes.v8.roots import Roots
from findleaks.target.base import Piece, Range, Target


class Reachability:
    """The objects, their references (`search`), their roots, and a marked graph of them.

    `stack_roots` ("Q") are the objects that only stacks and registers keep alive."""

    def __init__(self, target: Target, engine: Engine, maps: Maps, objects: HeapObjects, roots: Roots) -> None:
        self.objects, self.roots, self._target, self._engine = objects, roots, target, engine
        extra = array("Q", sorted(ephemerons(target, engine, maps, objects)))
        self.search = ReferenceSearch(objects.numbers, reference_rows(maps, objects), extra)
        self.stack_roots = array("Q")
        self.graph = self._build()

    def _read(self, search: ReferenceSearch) -> Graph:
        """Return a graph with the references of `search` and the exact roots."""
        graph = self._engine.graph(self.objects.blocks)
        graph.set_labels(self.objects.numbers, array("I", [1]) * max(len(self.objects.table), 1))
        for piece in pieces_of(self._target, self.objects.areas):
            search.run(self._engine, graph, piece)
        graph.root_words(self.roots.exact_addresses())
        return graph

    def build_without(self, numbers: Iterable[int], with_stacks: bool = False) -> Graph:
        """Return a graph for paths, in which objects with these maps have no references.
        `with_stacks`: whether objects that only stacks and registers keep alive are roots, too."""
        rows = self.search.rows[:]
        for number in numbers:
            rows[REFERENCE_ROW * number + 1] = 0
        graph = self._read(self.search._replace(rows=rows))
        if with_stacks:
            graph.root_words(self.stack_roots)
        graph.settle()
        return graph

    def _build(self) -> Graph:
        graph = self._read(self.search)
        run_in_slices(graph.mark_starts, self._target)
        # Stale words of stacks must not be the roots of paths to objects that others keep alive.
        self.stack_roots.extend(address for address in sorted(set(self.roots.stack_addresses())) if not graph.holds([address]))
        graph.root_words(self.stack_roots)
        return mark_objects(graph, self._target)


def pieces_of(target: Target, areas: Sequence[Range]) -> Iterator[Piece]:
    """Yield the memory of these areas, which ascend. Raises Interrupted."""
    for start, end in areas:
        if target.is_interrupted():
            raise Interrupted
        yield from target.pieces(start, end)
