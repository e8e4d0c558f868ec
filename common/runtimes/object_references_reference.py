"""Find references of managed objects in the Python engine. The C engine must return the same."""

from __future__ import annotations

from array import array

from findleaks.engine.reference.engine import PureEngine
from findleaks.engine.reference.graph import PureGraph
from findleaks.engine.terms import State
from findleaks.runtimes.object_references import NO_OBJECT, TAGS, ObjectBlocks
from findleaks.target.base import Piece


def find_references(engine: PureEngine, graph: PureGraph, piece: Piece, objects: ObjectBlocks, with_object: bool) -> array[int]:
    """See object_references.py."""
    blocks, word, found = graph.blocks, engine.arch.word, array("Q")
    end = piece.address + len(piece.data)
    for address in range(piece.address + -piece.address % word, end - word + 1, word):
        source = blocks.find(address)
        if source < 0 or blocks.state(source) != State.IN_USE or (objects.found[source] != NO_OBJECT) != with_object:
            continue
        start = blocks.address(source)
        if start % word or address + word > start + blocks.size(source):
            continue
        at = address - piece.address
        value = int.from_bytes(piece.data[at : at + word], engine.arch.byteorder)
        target = blocks.find(value)
        if target >= 0 and blocks.state(target) == State.IN_USE and value - blocks.address(target) < blocks.size(target):
            offset, number = value - blocks.address(target), objects.found[target]
            is_start = number == NO_OBJECT or offset & ~TAGS == objects.offsets[number] - objects.shift
            if is_start and not (graph.excluded.patterns and graph.excluded.has(source, address, target, value)):
                found.extend((source << 32 | (address - start) // word, target, offset))
    return found
