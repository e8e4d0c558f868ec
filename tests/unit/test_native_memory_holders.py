"""In a dump of Ruby's objects, native memory belongs to no Array that only has a buffer."""

from __future__ import annotations

import io
import json
from array import array
from collections.abc import Iterable, Iterator
from typing import cast

import graphs
from word_heaps import HEAP, Memory

from findleaks.runtimes.base import NO_OBJECT
from findleaks.runtimes.heap_dump import HeapReferences
from findleaks.runtimes.ruby.object_descriptions import Description, ObjectDescriptions
from findleaks.runtimes.ruby.object_lines import ObjectLines
from findleaks.target.arch import X86_64


class Descriptions:
    """A stand-in for object descriptions that gives every object the same empty description."""

    def describe(self, addresses: array[int], sizes: Iterable[int]) -> Iterator[Description]:
        return (Description(0, ', "type":"DATA"', None) for _ in addresses)


def test_an_array_owns_nothing_but_its_buffer() -> None:
    """Two patterns in an Array have memory of their own. A stale word in the memory of one refers into the memory of the other, so
    that only the Array dominates this memory."""
    engine, memory = graphs.native(X86_64), Memory(X86_64, 80)
    places = {"list": 0, "buffer": 8, "one": 16, "other": 24, "text": 32, "first": 40, "second": 48, "third": 56}
    at = {name: memory.block(place, 4) for name, place in places.items()}
    numbers = {name: number for number, name in enumerate(places)}
    memory.put(places["buffer"], at["one"], at["other"])
    links = (("list", "buffer"), ("one", "first"), ("other", "second"), ("first", "third"), ("third", "text"))
    for source, target in links:
        memory.put(places[source] + 1, at[target])
    memory.put(places["second"] + 1, at["third"] + memory.word)  # stale
    objects = array("I", map(numbers.__getitem__, ("list", "one", "other", "text")))
    found = array("I", [0 if number in objects else NO_OBJECT for number in range(len(places))])
    owners = array("I", map(numbers.__getitem__, ("list", "list", "one", "other", "list", "one", "other", "list")))
    owners[numbers["text"]] = numbers["text"]
    blocks, piece = memory.built(engine), graphs.piece(HEAP, bytes(memory.data))
    graph, retained = engine.graph(blocks), array("Q", bytes(8 * len(places)))
    buffers = {numbers["buffer"]: numbers["list"]}
    references = HeapReferences(blocks, graph, objects, found, retained, owners, buffers, {}, lambda: [piece])
    out = io.BytesIO()
    ObjectLines(engine, cast(ObjectDescriptions, Descriptions()), {}, references).write(out, lambda fraction: None)
    made = {int(line["address"], 16): line for line in map(json.loads, out.getvalue().splitlines())}
    assert made[at["list"]]["references"] == [f"{at[name]:#x}" for name in ("one", "other")]
    assert made[at["one"]]["references"] == [f"{at['text']:#x}"]
    assert "references" not in made[at["other"]]
