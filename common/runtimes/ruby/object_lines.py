"""Write Ruby's objects as lines of JSON, in the format of ObjectSpace.dump_all.

The references of an object are the references in its slot and in the native memory that belongs to
it, except the references to its class. Buffers, such as the elements of an Array, belong to their
object. Any other block of native memory belongs to its dominator: the nearest object without which
the block would be unreachable. There are two exceptions. If objects refer directly to the block, it
belongs to these objects, and to the objects whose native memory refers to its start. If the
dominator has no native memory except buffers, such as an Array of the objects that reach the block,
the block belongs to the objects whose native memory refers to its start. Sources:
ext/objspace/objspace_dump.c of 2.7.4, 3.1.2, 3.3.8 and 3.4.1."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO

from findleaks.engine.contract import Engine
from findleaks.engine.dominators import NO_ROOT
from findleaks.runtimes.base import NO_OBJECT
from findleaks.runtimes.heap_dump import HeapReferences
from findleaks.runtimes.object_references import COLUMNS, ObjectBlocks, find_references
from findleaks.runtimes.ruby.object_descriptions import ObjectDescriptions
from findleaks.runtimes.ruby.traces import Trace

_STEP = 1 << 13  # objects that are written at once
_ROUNDS = 4  # levels of native memory that are followed
_MOST_HOLDERS = 8  # native memory that belongs to more objects passes none of them on
_SHARED = "native memory that no object retains"  # the name of a root


class ObjectLines:
    """Writes the objects of one interpreter. `traces`: where objects were allocated, by address."""

    def __init__(self, engine: Engine, about: ObjectDescriptions, traces: Mapping[int, Trace], references: HeapReferences) -> None:
        self._engine, self._about, self._traces, self._references = engine, about, traces, references
        self._addresses, self._sizes, _ = references.blocks.columns()
        self._native = array("Q", bytes(8 * len(references.found)))
        self._edges = array("Q")  # source << 32 | target, both are objects; sorted

    def write(self, out: BinaryIO, report: Callable[[float], None]) -> None:
        """Write all roots and objects. Raises OSError if `out` cannot be written."""
        shared = self._find_edges()
        roots = {**self._references.roots, **({_SHARED: shared} if shared else {})}
        for name, targets in roots.items():
            line = {"type": "ROOT", "root": name, "references": [hex(self._addresses[index]) for index in targets]}
            # Without a space after a colon, as Ruby writes: sheap searches the line for this text.
            out.write(f"{json.dumps(line, separators=(', ', ':'))}\n".encode())
        places = self._references.places
        for first in range(0, len(places), _STEP):
            out.write("".join(self._lines(places[first : first + _STEP])).encode("utf-8", "replace"))
            report(first / len(places))

    def notes(self) -> list[str]:
        """Return sentences about the content of the file."""
        return [f"{len(self._references.places):,} objects"]

    def _lines(self, places: array[int]) -> Iterator[str]:
        edges, addresses, retained, native = self._edges, self._addresses, self._references.retained, self._native
        traces = self._traces
        low = bisect_left(edges, places[0] << 32) if places else 0
        count = len(edges)
        mine = array("Q", map(addresses.__getitem__, places))
        for place, address, about in zip(places, mine, self._about.describe(mine, map(self._sizes.__getitem__, places))):
            limit, found = (place + 1) << 32, dict[int, None]()
            while low < count and edges[low] < limit:
                found[edges[low] & NO_ROOT] = None
                low += 1
            targets = ", ".join([f'"{one:#x}"' for target in found if (one := addresses[target]) != about.klass])
            text = f', "references":[{targets}]' if targets else ""
            trace = traces.get(address)
            if trace is not None:
                method = f', "method":{json.dumps(trace.method)}' if trace.method else ""
                text += f', "file":{json.dumps(trace.file)}, "line":{trace.line}{method}, "generation":{trace.generation}'
            size = about.memory if about.memory is not None else self._sizes[place] + native[place]
            yield f'{{"address":"{address:#x}"{about.text}{text}, "memsize":{size}, "retained":{retained[place]}}}\n'

    # -- references

    def _find_edges(self) -> list[int]:
        """Find the references among objects, and the native memory of objects. Some native memory
        belongs to no object. Returns the objects to which such native memory refers."""
        direct, links, inner = self._read_references()
        holders = self._find_holders(direct, links)
        found = self._references.found
        for index, sources in holders.items():
            if len(sources) == 1 and found[index] == NO_OBJECT:
                self._native[sources[0]] += self._sizes[index]
        shared = dict[int, None]()
        for key in inner:
            source, target = key >> 32, key & NO_ROOT
            sources = holders.get(source, ())
            self._edges.extend(one << 32 | target for one in sources if one != target)
            if not sources:
                shared[target] = None
        self._edges = array("Q", sorted(self._edges))
        return list(shared)

    def _read_references(self) -> tuple[array[int], array[int], array[int]]:
        """Read all references. References from objects to objects are added to the edges. Returns
        three arrays ("Q") of the other references:

        - from objects to native memory: target << 32 | source
        - from native memory to the start of native memory: target << 32 | source
        - from native memory to objects: source << 32 | target"""
        found, graph, engine = self._references.found, self._references.graph, self._engine
        objects = ObjectBlocks(found, bytes(1 + max((number for number in set(found) if number != NO_OBJECT), default=0)))
        direct, links, inner = array("Q"), array("Q"), array("Q")
        for piece in self._references.pieces():
            rows = find_references(engine, graph, piece, objects, True)
            for key, target in zip(rows[0::COLUMNS], rows[1::COLUMNS]):
                if found[target] == NO_OBJECT:
                    direct.append(target << 32 | key >> 32)
                else:
                    self._edges.append(key >> 32 << 32 | target)
            rows = find_references(engine, graph, piece, objects, False)
            for key, target, offset in zip(rows[0::COLUMNS], rows[1::COLUMNS], rows[2::COLUMNS]):
                if found[target] != NO_OBJECT:
                    inner.append(key >> 32 << 32 | target)
                elif not offset:
                    links.append(target << 32 | key >> 32)
        return direct, links, inner

    def _find_holders(self, direct: array[int], links: array[int]) -> dict[int, Sequence[int]]:
        """Return the objects to which each native block belongs."""
        owners, buffers = self._references.owners, self._references.buffers
        holders: dict[int, Sequence[int]] = {block: (owner,) for block, owner in buffers.items()}
        found: dict[int, dict[int, None]] = {}
        for key in direct:
            found.setdefault(key >> 32, {})[key & NO_ROOT] = None
        carriers = self._find_carriers(direct, links)
        waiting = dict[int, list[int]]()
        for key in links:
            index = key >> 32
            if index in found or owners[index] not in carriers:
                waiting.setdefault(index, []).append(key & NO_ROOT)
        for index, owner in enumerate(owners):
            if owner in carriers and index not in found and index not in holders:
                holders[index] = (owner,)
        for _ in range(_ROUNDS):
            for index, sources in waiting.items():
                mine = found.setdefault(index, {})
                for source in sources:
                    theirs = found.get(source) if source in found else dict.fromkeys(holders.get(source, ()))
                    if theirs and len(theirs) <= _MOST_HOLDERS:
                        mine.update(theirs)
        for index, some in found.items():
            holders.setdefault(index, tuple(some))
        return holders

    def _find_carriers(self, direct: array[int], links: array[int]) -> set[int]:
        """Return the objects that refer to native memory, other than buffers without such
        references of their own."""
        buffers = self._references.buffers
        plain = buffers.keys() - {key & NO_ROOT for key in links}
        return {key & NO_ROOT for key in direct if key >> 32 not in plain}
