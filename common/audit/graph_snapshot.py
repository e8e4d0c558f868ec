"""Write the live objects of a runtime's own heap as a heap snapshot, which Chrome DevTools opens.

Node 0 is the root of all others; one node for each root follows, then the objects by address."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import accumulate, chain
from typing import BinaryIO

from findleaks.audit.graph_dump import GraphDump, Reference, Report
from findleaks.runtimes import snapshot_format as form
from findleaks.runtimes.heap_dump import DumpableGraph

_STEP = 1 << 14  # objects that are written at once
_MOST_SIZE = (1 << 32) - 1  # of a node; DevTools reads numbers of 32 bits


def write_graph_snapshot(graph: DumpableGraph, out: BinaryIO, report: Report) -> list[str]:
    """Write the live objects. Returns sentences about the content. Raises OSError if `out` cannot
    be written."""
    dump = GraphDump(graph, report, False)
    snapshot = _Snapshot(dump, report)
    snapshot.write(out)
    return [f"{sum(dump.written):,} live objects and {len(snapshot.roots):,} roots; garbage is left out"]


class _Snapshot:
    """The nodes and edges of a snapshot. `roots`: see GraphDump.roots."""

    def __init__(self, dump: GraphDump, report: Report) -> None:
        self._dump, self._report, self.roots = dump, report, dump.roots()
        self._texts = {"": 0}
        self._nodes = array("I", accumulate(dump.written, initial=1 + len(self.roots)))
        self._count = self._nodes.pop()

    def write(self, out: BinaryIO) -> None:
        """Write the snapshot. The references are read twice, because a node has the number of its
        edges, and precedes them."""
        counts, edges = array("I", bytes(4 * len(self._nodes))), 0
        for part in self._dump.references():
            edges += len(part)
            for one in part:
                counts[one.source] += 1
        form.write_head(out, self._count, edges + len(self.roots) + sum(len(indices) for _, indices in self.roots))
        self._write_nodes(out, counts)
        form.write_edges_start(out)
        self._write_edges(out)
        form.write_end(out, self._texts)

    def _write_nodes(self, out: BinaryIO, counts: array[int]) -> None:
        out.write(form.join_numbers([form.SYNTHETIC, 0, 1, 0, len(self.roots), 0, 0]))
        for number, (name, indices) in enumerate(self.roots, 1):
            out.write(b",\n" + form.join_numbers([form.SYNTHETIC, self._text(name), 2 * number + 1, 0, len(indices), 0, 0]))
        dump, nodes = self._dump, self._nodes
        for start in range(0, len(nodes), _STEP):
            end = min(start + _STEP, len(nodes))
            sizes = zip(range(start, end), dump.blocks.columns(start, end).size)
            lines = [
                f",\n{form.OBJECT},{self._text(dump.type_of(index))},{2 * nodes[index] + 1},{min(size, _MOST_SIZE)},{counts[index]},0,0"
                for index, size in sizes
                if dump.written[index]
            ]
            out.write("".join(lines).encode())
            self._report(end / len(nodes))

    def _write_edges(self, out: BinaryIO) -> None:
        separator = b""
        for numbers in self._list_edges():
            if numbers:
                out.write(separator + numbers)
                separator = b","

    def _list_edges(self) -> Iterator[bytes]:
        yield form.join_elements(range(1, 1 + len(self.roots)))
        for _, indices in self.roots:
            yield form.join_elements([self._nodes[index] for index in indices])
        for part in self._dump.references():
            rows = ((*self._edge(one), form.NODE_FIELDS * self._nodes[one.target]) for one in part)
            yield form.join_numbers(list(chain.from_iterable(rows)))

    def _edge(self, one: Reference) -> tuple[int, int]:
        """Return the type, and the name or index, of the edge of a reference. An element of an
        array has its index. A field of an element has the name "[].field": with the index, a large
        array would need as many texts as it has elements. A word without a name has the number of
        the word."""
        name = self._dump.name(one)
        if not name:
            return form.ELEMENT, one.offset // 8
        index, bracket, field = name[1:].partition("]") if name.startswith("[") else ("", "", name)
        if bracket and not field:
            return form.ELEMENT, int(index)
        return form.PROPERTY, self._text(f"[]{field}" if bracket else field.removeprefix("."))

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))
