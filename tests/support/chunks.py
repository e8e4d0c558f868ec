"""A heap of glibc chunks that is large enough for the C engine to use several threads, and all results of an engine for it."""

from __future__ import annotations

import random
from array import array
from typing import Any, NamedTuple

from findleaks.allocators.glibc.engine import ChunkWalk, walk_chunks
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import Heuristic, Kind
from findleaks.target.arch import X86_64
from findleaks.target.base import Piece, Range

BASE = 0x555555559000
PIECE = 5 << 20
SIZES = (*range(32, 256, 16), 1024, 4096, 70_000 // 16 * 16, 300_000 // 16 * 16)
VTABLES = (Range(0x400000, 0x400100),)
TYPES = (0x500000, 0x500008)


class ChunkHeap(NamedTuple):
    words: array[int]
    end: int  # address of the header that ends the heap
    roots: list[int]


def chunk_heap(seed: int, size: int, damage: int = 0) -> ChunkHeap:
    """Make about `size` bytes of chunks that refer to each other, and some roots. Overwrite `damage` headers."""
    rng = random.Random(seed)
    words = array("Q", bytes(size + (1 << 20)))
    sizes, at = [], 0
    while at < size:
        sizes.append(rng.choices(SIZES, weights=[2000] * (len(SIZES) - 4) + [10, 5, 2, 1])[0])
        at += sizes[-1]
    starts, at = [], 0
    for length in sizes:
        starts.append(at)
        at += length
    free = [False] * len(sizes)
    for number in rng.sample(range(len(sizes)), len(sizes) // 10):
        free[number] = not (number and free[number - 1])
    for number, (start, length) in enumerate(zip(starts, sizes)):
        before_free = number > 0 and free[number - 1]
        words[start // 8 + 1] = length | (not before_free)
        if before_free:
            words[start // 8] = sizes[number - 1]
    words[at // 8 + 1] = 0x20 | (not free[-1])
    if free[-1]:
        words[at // 8] = sizes[-1]
    for number, (start, length) in enumerate(zip(starts, sizes)):
        if free[number]:
            continue
        words[start // 8 + 2] = rng.choice((1, 2, 0x400008, 0x500000, length - 16))
        for _ in range(min(rng.choice((0, 1, 1, 2, 2, 40)), (length - 24) // 8)):
            target = BASE + rng.choice(starts) + 16
            words[start // 8 + rng.randrange(3, length // 8)] = target + rng.choice((0, 0, 0, 0, 8, 16, 24))
    for number in rng.sample(range(len(sizes)), damage):
        words[starts[number] // 8 + 1] = rng.choice((0, 17, 1 << 40, 32))
    roots = [BASE + start + 16 + rng.choice((0, 0, 0, 8)) for start in rng.sample(starts, 40)]
    return ChunkHeap(words, BASE + at, roots)


def pieces(heap: ChunkHeap, end: int) -> list[Piece]:
    data = memoryview(heap.words).cast("B")[: end - BASE]
    return [Piece(BASE + at, data[at : at + PIECE]) for at in range(0, len(data), PIECE)]


def walk_all(blocks: Blocks, heap: ChunkHeap) -> list[ChunkWalk]:
    """Walk the heap as `allocators.glibc.walk` does: after damage, continue in the next megabyte. Return all results."""
    data, chunk, found = memoryview(heap.words).cast("B"), BASE, []
    while chunk < heap.end:
        end = min(chunk - BASE + PIECE, heap.end + 16 - BASE)
        found.append(walk_chunks(blocks, Piece(chunk, data[chunk - BASE : end]), chunk, heap.end))
        if found[-1].done:
            break
        chunk = found[-1].chunk
        if found[-1].problem and not found[-1].unsure:
            chunk += 1 << 20
    return found


def everything(engine: Engine, heap: ChunkHeap, heuristics: Heuristic = Heuristic.NONE, budget: int = 1 << 14) -> dict[str, Any]:
    """Return all results of an engine for the heap."""
    blocks = engine.blocks(X86_64, 16)
    walks = walk_all(blocks, heap)
    blocks.seal()
    graph = engine.graph(blocks, heuristics, VTABLES, TYPES)
    memory = pieces(heap, heap.end)
    for piece in memory:
        graph.scan_blocks(piece)
    graph.scan_roots(Piece(0x600000, memoryview(bytearray(array("Q", heap.roots).tobytes() + bytes(1 << 20)))))
    while not graph.mark_starts(budget):
        pass
    graph.root_words(heap.roots[:3])
    while not graph.mark(budget):
        pass
    keys = graph.interiors().keys(1 << 20) if heuristics & Heuristic.AUTO else None
    while not graph.classify(budget):
        pass
    number = range(len(blocks))
    return {
        "walks": walks,
        "blocks": [(blocks.address(index), blocks.size(index), blocks.state(index)) for index in number],
        "found": [blocks.find(address) for address in range(BASE, heap.end, 4096 + 8)],
        "from": [blocks.at_or_after(address) for address in range(BASE - 64, heap.end, 8192 + 8)],
        "kinds": bytes(graph.kinds()),
        "keys": keys,
        "references": [graph.references(index) for index in number],
        "rooted": [graph.is_rooted(index) for index in number],
        "totals": [graph.totals(kind) for kind in Kind],
        "groups": graph.groups(iter(memory), VTABLES),
    }
