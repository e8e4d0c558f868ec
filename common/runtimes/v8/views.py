"""Measure how much of ArrayBuffers' memory their views cover, such as Node's Buffers.

A view keeps the whole memory of its ArrayBuffer. For example, Node takes small Buffers from pools
of 8 KiB, and `subarray` and `slice` make views.

Sources: V8 7.8 to 13.6 (Node 12 to 24), src/objects/js-array-buffer.tq: a JSArrayBufferView has its
buffer, since V8 12 a word of flags, and then an offset and a length in bytes. The constants v8dbg_…
give the places of these two numbers."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING

from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.engine.terms import NO_BLOCK
from findleaks.runtimes.v8.buffer_memory import list_maps
from findleaks.runtimes.v8.metadata import TAG
from findleaks.target.interruptible import interruptible
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.runtimes.v8.object_graph import V8Graph

_VIEWS = ("js_typed_array", "js_data_view")
_BUFFER = "js_array_buffer"
_DISTANCES = (8, 16)  # from the buffer to the offset in bytes, in a view
_SOME = 1 << 14  # views that are read together
_MOST_LENGTH = 1 << 53


class Coverage(NamedTuple):
    """Live ArrayBuffers that have views: the bytes of their memory, and at most how many of these
    bytes the views cover."""

    buffers: int
    bytes: int
    covered: int


def measure_views(graph: V8Graph) -> Coverage:
    """Return how much of the memory of live ArrayBuffers their live views cover. ArrayBuffers with
    a view of length 0 are left out, because such a view may follow the length of its buffer.
    Raises Interrupted."""
    covered: dict[int, int] = {}
    empty: set[int] = set()
    for buffer, length in _views(graph):
        if 0 < length < _MOST_LENGTH:
            covered[buffer] = covered.get(buffer, 0) + length
        else:
            empty.add(buffer)
    place = graph.offset_of("JSArrayBuffer", "byte_length")
    buffers = sorted(covered.keys() - empty) if place else []
    data, missing = read_records(graph.target, graph.engine, array("Q", (one - TAG + place for one in buffers)), 8)
    lengths = {one: length for at, (one, length) in enumerate(zip(buffers, graph.target.arch.unpack(bytes(data)))) if at not in missing}
    known = {one: length for one, length in lengths.items() if length < _MOST_LENGTH}
    return Coverage(len(known), sum(known.values()), sum(min(covered[one], length) for one, length in known.items()))


def _views(graph: V8Graph) -> Iterator[tuple[int, int]]:
    """Yield the tagged address of the buffer of each live view, and the view's length in bytes."""
    place = graph.offset_of("JSArrayBufferView", "byte_offset")
    for number in list_maps(graph, _VIEWS) if place and graph.graph is not None else ():
        indices = array("I", filter(graph.is_live, graph.of_map(number)))
        distance = next((one for one in _DISTANCES if indices and _refers_to_buffer(graph, indices[0], place - one)), 0)
        for first in interruptible(graph.target, range(0, len(indices) if distance else 0, _SOME)):
            starts = graph.blocks.columns_of(indices[first : first + _SOME]).address
            size = distance + 16
            data, missing = read_records(graph.target, graph.engine, array("Q", (start + place - distance for start in starts)), size)
            words = graph.target.arch.unpack(bytes(data))
            records = (words[at : at + size // 8] for at in range(0, len(words), size // 8))
            yield from ((record[0], record[-1]) for at, record in enumerate(records) if at not in missing)


def _refers_to_buffer(graph: V8Graph, index: int, offset: int) -> bool:
    """Whether the word at an offset of an object refers to an ArrayBuffer."""
    word = Memory(graph.target).word(graph.blocks.address(index) + offset) or 0
    (found,) = graph.indices_of([word - TAG if word > TAG else 0])
    return found != NO_BLOCK and _BUFFER in graph.kinds_of(found)
