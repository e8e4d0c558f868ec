"""Read the objects of a runtime's own heap with their references and roots, and write them as lines
of JSON, one object a line. docs/exports.md describes the keys."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import BinaryIO, NamedTuple

from findleaks.audit.retained_blocks import sum_subtrees
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import NO_BLOCK, Kind
from findleaks.runtimes.heap_dump import DumpableGraph
from findleaks.runtimes.object_graph import GARBAGE, LIVE

_MOST_NAMES = 1 << 16  # of references that are remembered
_STEP = 1 << 14  # objects that are written at once
_KINDS = {int(kind): kind.name.lower() for kind in Kind}

Report = Callable[[float], None]


class Reference(NamedTuple):
    """A reference from an object to another one. `source` and `target`: indices of their blocks.
    `offset`: bytes from the start of the object to the word. A header of the block is not a part of
    the object."""

    source: int
    target: int
    offset: int


class GraphDump:
    """Reads the objects of one graph, which is marked. `report` is called with the part that is
    read, from 0 to 1. `with_garbage`: whether objects that no root reaches are written."""

    def __init__(self, graph: DumpableGraph, report: Report, with_garbage: bool) -> None:
        self._graph, self._report = graph, report
        self.kinds = bytes(graph.graph.kinds()) if graph.graph is not None else b""
        wanted = (*LIVE, *GARBAGE) if with_garbage else LIVE
        self.written = self.kinds.translate(bytes(kind in wanted for kind in range(256)))
        """By block: 1 if its object is written, else 0."""
        self._numbers, _ = graph.labels()
        self._names: dict[tuple[int, int], str] = {}

    @property
    def blocks(self) -> Blocks:
        """The blocks of the objects."""
        return self._graph.blocks

    def type_of(self, index: int) -> str:
        """Return the name of an object's type."""
        return self._graph.type_of(index)

    def name(self, one: Reference) -> str:
        """Return the name of a reference: ".Next", "[3]", or "" if it is unknown."""
        key = self._numbers[one.source], one.offset
        if key not in self._names:
            if len(self._names) >= _MOST_NAMES:
                self._names.clear()
            self._names[key] = self._graph.name_member(one.source, one.offset)
        return self._names[key]

    def references(self) -> Iterator[list[Reference]]:
        """Yield the references among the objects that are written, in parts. The sources
        ascend."""
        blocks, written = self.blocks, self.written
        start, end = (blocks.address(0), blocks.address(len(blocks) - 1)) if len(blocks) else (0, 0)
        for addresses, values in self._graph.reference_words():
            sources, targets = (blocks.find_all(array("Q", words))[0] for words in (addresses, values))
            rows = zip(sources, targets, addresses, self._list_starts(sources))
            yield [
                Reference(source, target, address - first)
                for source, target, address, first in rows
                if source != NO_BLOCK and target != NO_BLOCK and written[source] and written[target]
            ]
            self._report((addresses[-1] - start) / (end - start or 1) if addresses else 0.0)

    def objects(self) -> Iterator[tuple[int, Iterable[Reference]]]:
        """Yield the index of each object that is written, ascending, and its references."""
        at = 0
        for index, references in groupby(chain.from_iterable(self.references()), lambda one: one.source):
            yield from ((other, ()) for other in range(at, index) if self.written[other])
            yield index, references
            at = index + 1
        yield from ((other, ()) for other in range(at, len(self.written)) if self.written[other])

    def _list_starts(self, indices: Sequence[int]) -> Iterator[int]:
        """Yield the address at which the object in each of these blocks begins."""
        last, start = NO_BLOCK, 0
        for index in indices:
            if index != last:
                last, start = index, self._graph.extent(index)[0] if index != NO_BLOCK else 0
            yield start

    def roots(self) -> list[tuple[str, list[int]]]:
        """Return the name of each root, and the indices of the objects to which it refers, each
        once, ascending."""
        found = []
        for group in self._graph.root_groups() or ():
            indices = set(self.blocks.find_all(array("Q", group.words))[0]) - {NO_BLOCK}
            live = sorted(index for index in indices if self.written[index])
            if live:
                found.append((group.name, live))
        return found


def write_graph_lines(graph: DumpableGraph, out: BinaryIO, report: Report) -> list[str]:
    """Write all objects, garbage included, one JSON object a line. Returns sentences about the
    content. Raises OSError if `out` cannot be written."""
    dump = GraphDump(graph, report, True)
    retained = sum_subtrees(graph.dominators, len(dump.written))[1] if graph.dominators is not None else array("Q")
    roots: dict[int, list[str]] = {}
    for name, indices in dump.roots():
        for index in indices:
            roots.setdefault(index, []).append(name)
    lines = list[str]()
    for index, references in dump.objects():
        lines.append(_line(dump, index, references, retained, roots))
        if len(lines) >= _STEP:
            out.write("".join(lines).encode())
            lines.clear()
            report(index / len(dump.written))
    out.write("".join(lines).encode())
    return [f"{sum(dump.written):,} objects, garbage included"]


def _line(dump: GraphDump, index: int, references: Iterable[Reference], retained: Sequence[int], roots: Mapping[int, list[str]]) -> str:
    blocks, parts = dump.blocks, []
    for one in references:
        name = dump.name(one)
        parts.append(f'{{"to":"{blocks.address(one.target):#x}"' + (f',"name":{json.dumps(name)}}}' if name else "}"))
    named = f',"roots":{json.dumps(roots[index])}' if index in roots else ""
    return (
        f'{{"address":"{blocks.address(index):#x}","type":{json.dumps(dump.type_of(index))},"size":{blocks.size(index)},'
        f'"retained":{retained[index]},"kind":"{_KINDS[dump.kinds[index]]}","references":[{",".join(parts)}]{named}}}\n'
    )
