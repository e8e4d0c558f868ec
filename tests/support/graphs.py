"""Random heaps for the two engines, and an oracle: a slow reference implementation that follows the definitions, with sets and loops."""

from __future__ import annotations

import functools
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sanitizers import SANITIZED as SANITIZED
from sanitizers import share as share

from findleaks.engine.contract import Engine, Graph
from findleaks.engine.native.engine import NativeEngine
from findleaks.engine.native.library import library
from findleaks.engine.native.sources import library_name
from findleaks.engine.reference.engine import PureEngine
from findleaks.engine.terms import Group, Heuristic, Kind, State
from findleaks.target.arch import X86_64, Arch
from findleaks.target.base import Piece, Range

BASES = (0x1000, 0x555555559000, 0x7F0000000000, 0x7F0003FF0000, 0x7FFFFFFF0000, 0x1FFFFF000000000, 0xFFFFFFFFFFF00000)
BASES_32 = (0x1000, 0x56559000, 0xB7000000, 0xB73FF000, 0xF7FF0000, 0xFFF00000)

ARCHES = tuple(
    X86_64._replace(name=f"{8 * word} {order}", word=word, byteorder=order)
    for word, order in ((4, "little"), (4, "big"), (8, "little"), (8, "big"))
    if not SANITIZED or Path(library_name(word, order, SANITIZED)).exists()
)
"""Each word size and byte order for which the C engine is built."""

MOSTLY_64 = (X86_64, *ARCHES)
"""Architectures for random examples: two of five are the most common one."""

TYPES = tuple(range(0x400001, 0x400110, 3))
"""Words that Heuristic.OBJECTS accepts as types: some of the words in random heaps."""

VTABLES = (Range(0x400000, 0x400100), Range(0x7E0000001000, 0x7E0000001040))


def native(arch: Arch = X86_64) -> NativeEngine:
    """Return the C engine with a sanitizer's build, or with the library that was built in the checkout."""
    return NativeEngine(loaded(SANITIZED, arch.word, arch.byteorder), arch)


def pure(arch: Arch = X86_64) -> Engine:
    """Return the Python engine. If a sanitizer's build of the C engine is tested, return the C engine with the ordinary build instead: the
    tests without a sanitizer compare it with the Python engine on the same examples, and Python would take five times as long."""
    return NativeEngine(loaded("", arch.word, arch.byteorder), arch) if SANITIZED else PureEngine(arch)


loaded = functools.cache(library)
"""The library. Its hundred signatures are set once, not for each example."""


def piece(address: int, data: bytes) -> Piece:
    """Copy the bytes into an allocation of exactly their size, so that a sanitizer detects accesses beyond it. Some are
    read-only: then the C engine gets a temporary copy, and a sanitizer detects accesses after it was freed."""
    view = memoryview(bytearray(data))
    return Piece(address, view.toreadonly() if SANITIZED else view)


def cut(address: int, data: bytes, rng: random.Random, step: int = 8, cuts: int = 4) -> list[Piece]:
    """Cut `data` into pieces at random multiples of `step`."""
    places = sorted({rng.randrange(0, len(data) + 1) // step * step for _ in range(rng.randrange(cuts + 1))} | {0})
    return [piece(address + low, data[low:high]) for low, high in zip(places, [*places[1:], len(data)]) if high > low]


@dataclass(frozen=True)
class Block:
    start: int
    size: int
    state: int

    @property
    def end(self) -> int:
        return self.start + self.size


@dataclass
class Heap:
    """Blocks in memory, the memory itself, and roots."""

    granule: int
    blocks: list[Block]
    memory: list[tuple[int, bytes]]
    root_memory: list[tuple[int, bytes]]
    root_words: list[int]
    pieces: list[Piece] = field(default_factory=list)
    root_pieces: list[Piece] = field(default_factory=list)
    arch: Arch = X86_64


def word_for(rng: random.Random, blocks: Sequence[Block], arch: Arch = X86_64) -> int:
    """Return a random word of memory. It is usually a pointer of some kind."""
    way = rng.random()
    if way < 0.45 or not blocks:
        some, last = rng.getrandbits(16), 8 * arch.word - 5 if arch.byteorder == "little" else 3  # its last byte contains a multiple of 8
        return rng.choice((0, 1, 2, 24, some, rng.getrandbits(8 * arch.word), rng.randrange(0x400000, 0x400110), rng.randrange(6) << last))
    block = rng.choice(blocks)
    if way < 0.75:
        return block.start
    if way < 0.85:
        return (block.start + rng.choice((8, 16, 24, 1, 16, 32, 48, 17, 7, 15 if arch.word == 8 else 12))) & arch.mask
    return (block.start + rng.choice((-1, -8, block.size, block.size - 1, rng.randrange(block.size + 1)))) & arch.mask


def random_heap(
    seed: int, count: int, granule: int, heaps: int, density: float = 0.4, whole_words: bool = True, arch: Arch = X86_64
) -> Heap:
    """Make about `count` blocks in up to `heaps` heaps, some of which are adjacent."""
    rng = random.Random(seed)
    blocks, spans = random_blocks(rng, count, granule, heaps, arch)
    memory = [(start, _contents(rng, length, blocks, density, arch)) for start, length in spans]
    sizes = (rng.randrange(12) * arch.word for _ in range(rng.randrange(3)))
    roots = [(0x600000 + 0x10000 * i, _contents(rng, size, blocks, 0.3, arch)) for i, size in enumerate(sizes)]
    words = [word_for(rng, blocks, arch) for _ in range(rng.randrange(4))]
    heap = Heap(granule, blocks, memory, roots, words, arch=arch)
    step = arch.word if whole_words else 1
    heap.pieces = [p for start, data in memory for p in cut(start, data, rng, step)]
    heap.root_pieces = [p for start, data in roots for p in cut(start, data, rng, step)]
    return heap


def random_blocks(
    rng: random.Random, count: int, granule: int, heaps: int, arch: Arch = X86_64
) -> tuple[list[Block], list[tuple[int, int]]]:
    """Return the blocks of random_heap, and (address, length) of the memory that contains them."""
    blocks: list[Block] = []
    spans: list[tuple[int, int]] = []
    at = 0
    bases = BASES if arch.word == 8 else BASES_32
    for base in sorted(rng.sample(bases, min(heaps, len(bases)))):
        at = max(base, (at + granule - 1) // granule * granule if rng.random() < 0.5 else base)
        begin = at
        for _ in range(rng.randrange(count // heaps + 1)):
            at += granule * rng.choice((0, 0, 1, 1, 1, 2, rng.randrange(100)))
            size = rng.choice((0, 1, granule, 24, 24, 40, 56, 120, rng.randrange(600), rng.randrange(600)))
            if rng.random() < 0.01:
                size = rng.randrange(100 * 64 * granule)
            if at + size >= arch.mask + 1 - 2 * granule:
                break
            blocks.append(Block(at, size, rng.choice((0, 0, 0, 0, 0, 1, 2, 3))))
            at = (at + max(size, 1) + granule - 1) // granule * granule
        spans.append((begin, at - begin))
    return blocks, [span for span in spans if span[1]]


def _contents(rng: random.Random, size: int, blocks: Sequence[Block], density: float, arch: Arch) -> bytes:
    words = [word_for(rng, blocks, arch) if rng.random() < density else rng.getrandbits(8) for _ in range(size // arch.word)]
    return arch.pack(words) + bytes(size % arch.word)


def graph_of(engine: Engine, heap: Heap, heuristics: Heuristic = Heuristic.NONE, budget: int = 1 << 30) -> Graph:
    """Return the heap's graph, marked and classified in slices of `budget`."""
    graph = scan_graph(engine, heap, heuristics)
    mark(graph, budget)
    return graph


def scan_graph(engine: Engine, heap: Heap, heuristics: Heuristic = Heuristic.NONE) -> Graph:
    """Return the heap's graph before it is marked."""
    blocks = engine.blocks(heap.arch, heap.granule)
    half = len(heap.blocks) // 2
    for part in (heap.blocks[:half], heap.blocks[half:]):
        blocks.append([b.start for b in part], [b.size for b in part], [b.state for b in part])
    blocks.seal()
    graph = engine.graph(blocks, heuristics, VTABLES, TYPES)
    for p in heap.pieces:
        graph.scan_blocks(p)
    for p in heap.root_pieces:
        graph.scan_roots(p)
    graph.root_words(heap.root_words)
    return graph


def mark(graph: Graph, budget: int) -> None:
    """Mark and classify a graph in slices of `budget`."""
    while not graph.mark(budget):
        pass
    while not graph.classify(budget):
        pass


def everything(engine: Engine, heap: Heap, heuristics: Heuristic = Heuristic.NONE, budget: int = 1 << 30) -> dict[str, Any]:
    """Return all results of an engine for a heap, for comparison with another engine's."""
    return said_of(graph_of(engine, heap, heuristics, budget), heap)


def said_of(graph: Graph, heap: Heap) -> dict[str, Any]:
    """Return all results that a classified graph of the heap has."""
    number = range(len(heap.blocks))
    return {
        "kinds": bytes(graph.kinds()),
        "kind": [graph.kind(i) for i in number],
        "totals": [graph.totals(kind) for kind in Kind],
        "leaders": [graph.leak_head(i) for i in number],
        "cycle": [graph.cycle(i) for i in number],
        "hanging": [graph.indirect_totals(i) for i in number],
        "referrers": [graph.referrers(i) for i in number],
        "limited": [(graph.referrers(i, 1 + i % 2), graph.path(i, number[: i % 3])) for i in number],
        "references": [graph.references(i) for i in number],
        "paths": [graph.path(i) for i in number],
        "rooted": [graph.is_rooted(i) for i in number],
        "groups": graph.groups(iter(heap.pieces), VTABLES),
        "untyped": graph.groups((), ()),
        "typed": graph.group_typed(iter(heap.pieces), VTABLES),
    }


class Oracle:
    """The expected results, by definition."""

    def __init__(self, heap: Heap, heuristics: Heuristic = Heuristic.NONE) -> None:
        self.heap = heap
        self.size = heap.arch.word
        self.blocks = heap.blocks
        self.starts = [block.start for block in heap.blocks]
        self.heuristics = heuristics

    def word(self, address: int) -> int:
        """Return the word at `address`; 0 if there is no memory."""
        return self.number(address, self.size)

    def number(self, address: int, size: int) -> int:
        """Return the number of `size` bytes at `address`; 0 if there is no memory."""
        for start, data in self.heap.memory:
            if start <= address and address + size <= start + len(data):
                return int.from_bytes(data[address - start : address - start + size], self.heap.arch.byteorder)
        return 0

    def target(self, value: int) -> tuple[int, bool] | None:
        """Return the block in use that `value` refers to, and whether it is an interior reference."""
        index = bisect_right(self.starts, value) - 1  # the last block that begins at or below the value
        if index < 0:
            return None
        block = self.blocks[index]
        if block.state == State.IN_USE and (value == block.start or value < block.end):
            return index, value != block.start and not self.counts(block, value)
        return None

    def counts(self, block: Block, value: int) -> bool:
        """Return whether a heuristic accepts an interior reference: memcheck's, with a slack of 24 bytes between requested and usable size,
        and CPython's."""
        first, size, offset, own = self.word(block.start), block.size, value - block.start, self.size
        wanted = self.heuristics
        if wanted & Heuristic.EVERY or block.start % own or size < own:
            return bool(wanted & Heuristic.EVERY)
        asked = range(max(0, size - 3 * own + 1), size + 1)  # possible requested sizes
        if wanted & Heuristic.LENGTH64 and offset == 8 <= size and any(n - 8 == self.number(block.start, 8) for n in asked):
            return True
        if wanted & Heuristic.NEWARRAY and offset == own and first and any(n - own >= first and (n - own) % first == 0 for n in asked):
            return True
        if wanted & Heuristic.MULTIPLE_INHERITANCE and value % own == 0 and value + own <= block.end:
            if is_vtable(first) and is_vtable(self.word(value)):
                return True
        if wanted & Heuristic.STDSTRING and offset == 3 * own and size >= 2 * own:
            capacity = self.word(block.start + own)
            if first <= capacity and any(n - 3 * own - 1 == capacity for n in asked):
                return True
        if wanted & Heuristic.OBJECTS:
            ends = [k + 2 * own for k in (0, 16, 32, 48)]  # in the first eight words
            objects = [end - 2 * own for end in ends if end <= min(size, 8 * own) and self.word(block.start + end - own) in TYPES]
            if any(offset - mark == before for k in objects for before in range(0, k + 1, 16) for mark in range(4)):
                return True
        if wanted & Heuristic.DICT_VALUES:
            return any(offset in (n, n - 1) and n <= size and self.number(block.start + n - 1, 1) == n for n in (8, 16, 24, 32))
        return False

    @functools.cached_property
    def references(self) -> list[list[tuple[int, bool]]]:
        found: list[list[tuple[int, bool]]] = []
        for index, block in enumerate(self.blocks):
            mine = []
            if block.state == State.IN_USE:
                for address in range(-(-block.start // self.size) * self.size, block.end - self.size + 1, self.size):
                    target = self.target(self.word(address))
                    if target and target[0] != index:
                        mine.append(target)
            found.append(mine)
        return found

    @functools.cached_property
    def roots(self) -> set[tuple[int, bool]]:
        values = [*self.heap.root_words]
        for _, data in self.heap.root_memory:
            values += self.heap.arch.unpack(data)
        return {target for target in map(self.target, values) if target}

    def closure(self, first: set[int], starts_only: bool = False) -> set[int]:
        """Return everything that can be reached from `first`, including `first`."""
        reached, more = set(first), set(first)
        while more:
            more = {t for i in more for t, interior in self.references[i] if not (interior and starts_only)} - reached
            reached |= more
        return reached

    @functools.cached_property
    def kinds(self) -> list[Kind]:
        reachable = self.closure({i for i, interior in self.roots if not interior}, starts_only=True)
        possible = self.closure(reachable | {i for i, _ in self.roots}) - reachable
        kinds = []
        for index, block in enumerate(self.blocks):
            if block.state != State.IN_USE:
                kinds.append(Kind.UNKNOWN)
            elif index in reachable:
                kinds.append(Kind.REACHABLE)
            elif index in possible:
                kinds.append(Kind.POSSIBLE)
            else:
                kinds.append(Kind.DEFINITE if index in self.cycles else Kind.INDIRECT)
        return kinds

    @functools.cached_property
    def lost(self) -> list[int]:
        held = self.closure({i for i, _ in self.roots})
        return [i for i, block in enumerate(self.blocks) if block.state == State.IN_USE and i not in held]

    @functools.cached_property
    def cycles(self) -> dict[int, set[int]]:
        """Return each leak head, and the blocks of its cycle (only itself if it is in none)."""
        reach = {i: self.closure({i}) & set(self.lost) for i in self.lost}
        found = {}
        for i in self.lost:
            component = {j for j in reach[i] if i in reach[j]}
            if i == min(component) and not any(i in reach[j] for j in self.lost if j not in component):
                found[i] = component
        return found

    @functools.cached_property
    def leaders(self) -> list[int]:
        leaders = [-1] * len(self.blocks)
        for leader in sorted(self.cycles, reverse=True):
            for i in self.closure({leader}) & set(self.lost):
                leaders[i] = leader
        return leaders

    def hanging(self, leader: int) -> tuple[int, int]:
        below = self.heads.get(leader, {i for i, of in enumerate(self.leaders) if of == leader != i and leader in self.cycles})
        return len(below), sum(self.blocks[i].size for i in below)

    @functools.cached_property
    def heads(self) -> dict[int, set[int]]:
        """Return the expected Graph.heads: each head with the blocks that are counted under it."""
        possible = {i for i, kind in enumerate(self.kinds) if kind == Kind.POSSIBLE}
        led = {t for t, _ in self.roots} | {t for i, of in enumerate(self.references) if self.kinds[i] == Kind.REACHABLE for t, _ in of}
        rest, found = possible - led, {head: set[int]() for head in sorted(possible & led)}
        for head, below in found.items():
            level = {head}
            while level := {t for i in level for t, _ in self.references[i] if t in rest} - below:
                below |= level
            rest -= below
        return found

    @functools.cached_property
    def distances(self) -> dict[int, int]:
        """Return the number of blocks on the shortest chain to each reachable block. Interior references count only if it has no other."""
        found: dict[int, int] = {}
        for allowed in ((False, True), (False,)):
            distances, level = {}, {i for i, interior in self.roots if interior in allowed}
            while level:
                distances.update(dict.fromkeys(level, 1 + max(distances.values(), default=0)))
                level = {t for i in level for t, interior in self.references[i] if interior in allowed} - set(distances)
            found |= distances
        return found

    def type_word(self, block: Block) -> int:
        word = self.word(block.start) if block.start % self.size == 0 and block.size >= self.size else 0
        return word if is_vtable(word) else 0

    def groups(self) -> dict[tuple[Kind, int, int, int, bool], list[int]]:
        """Return the expected members of each group (kind, type word, size, cycle, whether further blocks are reachable from them)."""
        found: dict[tuple[Kind, int, int, int, bool], list[int]] = {}
        for i, kind in enumerate(self.kinds):
            if kind == Kind.DEFINITE or i in self.heads:
                block = self.blocks[i]
                word = self.type_word(block)
                key = (kind, word, block.size, len(self.cycles.get(i, {i})), self.hanging(i)[0] > 0)
                found.setdefault(key, []).append(i)
        return found


def is_vtable(value: int) -> bool:
    return any(r.start <= value < r.end for r in VTABLES)


def check_groups(oracle: Oracle, groups: Sequence[Group]) -> None:
    """Check that the groups are those of the oracle, with their sums, sorted by bytes in descending order."""
    members = oracle.groups()
    assert {(g.kind, g.type_word, g.size, g.cycle, g.indirect_blocks > 0) for g in groups} == set(members)
    assert len(groups) == len(members)
    for g in groups:
        mine = members[g.kind, g.type_word, g.size, g.cycle, g.indirect_blocks > 0]
        hanging = [oracle.hanging(i) for i in mine]
        assert (g.blocks, g.bytes) == (len(mine), g.size * len(mine))
        assert (g.indirect_blocks, g.indirect_bytes) == (sum(n for n, _ in hanging), sum(b for _, b in hanging))
        assert (g.least_indirect, g.most_indirect) == (min(n for n, _ in hanging), max(n for n, _ in hanging))
        assert g.examples == tuple(oracle.blocks[i].start for i in sorted(mine)[:3])
    weights = [g.bytes + g.indirect_bytes for g in groups]
    assert weights == sorted(weights, reverse=True)


def check_typed(oracle: Oracle, groups: Sequence[Group]) -> None:
    """Check that every block of a type is listed once, under its kind and size."""
    found: dict[tuple[Kind, int, int], list[int]] = {}
    for block, kind in zip(oracle.blocks, oracle.kinds):
        word = oracle.type_word(block)
        if kind != Kind.UNKNOWN and word:
            found.setdefault((kind, word, block.size), []).append(block.start)
    assert {(g.kind, g.type_word, g.size): (g.blocks, g.bytes, g.examples) for g in groups} == {
        key: (len(starts), key[2] * len(starts), tuple(sorted(starts)[:3])) for key, starts in found.items()
    }


def slices() -> Iterator[int]:
    """Yield budgets for marking and classifying: one step at a time, and all at once."""
    yield from (1, 3, 1 << 30)
