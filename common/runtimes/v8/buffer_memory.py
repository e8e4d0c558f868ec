"""Find memory of ArrayBuffers to which only garbage refers, and examples of ArrayBuffers."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.bulk import read_records
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import NO_BLOCK
from findleaks.runtimes.v8.object_graph import V8Graph
from findleaks.target.interruptible import interruptible

_BUFFER = "js_array_buffer"
_WORDS = 9  # words of an ArrayBuffer that may have the address of its memory
_SOME = 1 << 14  # ArrayBuffers that are read together


def list_maps(graph: V8Graph, kinds: Sequence[str]) -> list[int]:
    """Return the numbers of the maps whose objects are of one of these kinds."""
    return [n for n, first in enumerate(graph.first_objects) if first != NO_BLOCK and any(one in graph.kinds_of(first) for one in kinds)]


def find_garbage_memory(graph: V8Graph, addresses: Sequence[int]) -> set[int]:
    """Return the elements of `addresses` to which only garbage refers. `addresses`: the starts of
    ArrayBuffers' memory.

    Memory to which no ArrayBuffer refers, such as the memory of a message, is left out."""
    wanted, live, garbage = set(addresses), set[int](), set[int]()
    for index, words in _buffers(graph):
        kinds = live if graph.is_live(index) else garbage
        kinds.update(wanted.intersection(words))
    return garbage - live


def find_buffer(graph: V8Graph, addresses: Sequence[int]) -> Optional[int]:
    """Return the address of a live ArrayBuffer whose memory is at one of `addresses`; None if there
    is none. If several are found, the middle one is returned."""
    wanted = set(addresses)
    found = [index for index, words in _buffers(graph) if not wanted.isdisjoint(words) and graph.is_live(index)]
    return graph.blocks.address(found[len(found) // 2]) if found else None


def list_main_size(blocks: Blocks, indices: array[int]) -> list[int]:
    """Return the addresses of the blocks of one size: the size of which the blocks have the most
    bytes in total. `indices` ("I"): blocks with memory of ArrayBuffers."""
    columns = blocks.columns_of(indices)
    counts = Counter(columns.size)
    wanted = max(counts, key=lambda size: size * counts[size], default=0)
    return [address for address, size in zip(columns.address, columns.size) if size == wanted]


def _buffers(graph: V8Graph) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield the index and the first words of each ArrayBuffer. Raises Interrupted."""
    for number in list_maps(graph, [_BUFFER]) if graph.graph is not None else ():
        indices = graph.of_map(number)
        count = min(_WORDS, graph.blocks.size(indices[0]) // 8) if indices else 0
        for first in interruptible(graph.target, range(0, len(indices) if count else 0, _SOME)):
            some = indices[first : first + _SOME]
            data, _ = read_records(graph.target, graph.engine, graph.blocks.columns_of(some).address, 8 * count)
            words = graph.target.arch.unpack(bytes(data))
            yield from ((index, words[count * at : count * (at + 1)]) for at, index in enumerate(some))
