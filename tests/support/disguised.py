"""Heaps whose blocks refer to each other by disguised pointers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import graphs

from findleaks.engine.contract import Engine, Graph
from findleaks.engine.disguises import Disguise, Form
from findleaks.engine.terms import Heuristic, State
from findleaks.graph.disguises import Disguised, lost_totals, search_disguises, with_effect
from findleaks.target.arch import Arch
from findleaks.target.base import Piece, Range

LOW, MIDDLE, HIGH = 0x1234000, 0x555555559000, 0x7F12345F0000
ROOTS = 0x600000
MASK = (1 << 64) - 1
KEY = 0x9D3AF2B1C8E45677
MANGLED = Form(Disguise.MANGLED, KEY, 17)


def encode(form: Form, address: int, extra: int, arch: Arch, place: int = 0) -> bytes:
    """Return a disguised pointer of this form to `address`. `extra`: bits for tags; `place`: the address of the pointer itself."""
    word: int = {
        Disguise.TAGGED: address | (extra % 0xFFFF + 1) << 48 | extra % 4,
        Disguise.UNALIGNED: address,
        Disguise.SHIFTED_LEFT: address << form.shift | extra % (1 << form.shift),
        Disguise.SHIFTED_RIGHT: address >> form.shift,
        Disguise.COMPRESSED: (address - form.base) >> form.shift,
        Disguise.HALVES: address << 32 | address >> 32,
        Disguise.SIX_BYTES: address,
        Disguise.BYTE_SWAPPED: int.from_bytes(address.to_bytes(8, "little"), "big"),
        Disguise.RELATIVE: (address - place) & MASK,
        Disguise.RELATIVE_32: (address - place) & MASK,
        Disguise.SAFE_LINKED: address ^ place >> 12,
        Disguise.MANGLED: ((address ^ form.base) << form.shift | (address ^ form.base) >> 64 - form.shift) & MASK,
    }[form.kind]
    width = {Disguise.COMPRESSED: 4, Disguise.RELATIVE_32: 4, Disguise.SIX_BYTES: 6}.get(form.kind, arch.word)
    return (word & (1 << 8 * width) - 1).to_bytes(width, arch.byteorder)


def forms_of(arch: Arch, base: int) -> list[Form]:
    forms = [Form(Disguise.UNALIGNED)]
    if arch.word == 8:
        shifts = [*(Form(Disguise.SHIFTED_LEFT, shift=n) for n in (1, 8, 16)), *(Form(Disguise.SHIFTED_RIGHT, shift=n) for n in (1, 4))]
        forms += [Form(Disguise.TAGGED), *shifts]
        forms += [Form(Disguise.COMPRESSED, at, shift) for at in (base, base >> 32 << 32) for shift in (0, 3, 4)]
        forms += [Form(Disguise.SIX_BYTES), Form(Disguise.BYTE_SWAPPED), Form(Disguise.HALVES, base >> 32 << 32)]
        forms += [MANGLED, Form(Disguise.MANGLED, KEY, 0), Form(Disguise.MANGLED, KEY)]
        forms += [Form(Disguise.RELATIVE), Form(Disguise.RELATIVE_32), Form(Disguise.SAFE_LINKED)]
    return forms


@dataclass
class Heap:
    """One heap and some root memory."""

    arch: Arch
    start: int
    blocks: list[tuple[int, int, State]]
    heap: bytearray
    root_memory: bytearray

    def __init__(self, arch: Arch, start: int, sizes: Sequence[int], roots: int = 0) -> None:
        self.arch, self.start, self.blocks = arch, start, []
        at = start
        for size in sizes:
            self.blocks.append((at, size, State.IN_USE))
            at += (size + 23) // 16 * 16
        self.heap, self.root_memory = bytearray(at - start), bytearray(roots)

    def put(self, block: int, offset: int, data: bytes) -> None:
        at = self.blocks[block][0] - self.start + offset
        self.heap[at : at + len(data)] = data

    def word(self, value: int) -> bytes:
        return value.to_bytes(self.arch.word, self.arch.byteorder)

    # interface of graph.disguises.Memory

    @property
    def roots(self) -> Sequence[Range]:
        return [Range(ROOTS, ROOTS + len(self.root_memory))]

    def heap_ranges(self) -> Sequence[Range]:
        return [Range(self.start, self.start + len(self.heap))]

    def pieces(self, ranges: Sequence[Range], phase: str, dead: bool = False, whole: bool = False) -> Iterator[Piece]:
        for start, _ in ranges:
            yield graphs.piece(start, self.heap if start == self.start else self.root_memory)


def classify(engine: Engine, heap: Heap) -> Graph:
    blocks = engine.blocks(heap.arch, 16)
    blocks.append(*zip(*heap.blocks))
    graph = engine.graph(blocks, Heuristic.NONE)
    for piece in heap.pieces(heap.heap_ranges(), ""):
        graph.scan_blocks(piece)
    for piece in heap.pieces(heap.roots, ""):
        graph.scan_roots(piece)
    finish(graph)
    return graph


def finish(graph: Graph) -> None:
    while not graph.mark(5):
        pass
    while not graph.classify(5):
        pass


def random_heap(seed: int, arch: Arch) -> tuple[Heap, list[Form]]:
    """Make blocks that contain pointers, disguised pointers, text, numbers and random bytes."""
    rng = random.Random(seed)
    start = rng.choice((LOW, MIDDLE, HIGH) if arch.word == 8 else (LOW, 0xB7340000))
    heap = Heap(arch, start, [rng.choice((16, 24, 40, 40, 200, 1000)) for _ in range(rng.randrange(1, 40))], rng.randrange(20) * 8)
    heap.blocks = [(at, size, rng.choice((State.IN_USE,) * 5 + (State.FREE,))) for at, size, _ in heap.blocks]
    forms = forms_of(arch, start)
    for memory in (heap.heap, heap.root_memory):
        for _ in range(len(memory) // 16):
            at, way = rng.randrange(len(memory)), rng.random()
            at -= at % arch.word if rng.random() < 0.7 else 0
            target, size, _ = rng.choice(heap.blocks)
            target += rng.choice((0, 0, 0, 8, rng.randrange(size)))
            if way < 0.7:
                place = at + (start if memory is heap.heap else ROOTS)
                data = encode(rng.choice(forms), target, rng.getrandbits(20), arch, place)
            else:
                data = rng.choice((heap.word(target), rng.randbytes(8), b"some text", heap.word(rng.getrandbits(10))))
            memory[at : at + len(data)] = data[: len(memory) - at]
            if way < 0.1 and arch.word == 8:  # another upper half with a lower half close to the original
                near = min(max(at // 4 * 4 + rng.randrange(-9, 10) * 4, 0), len(memory) - 4)
                memory[near : near + 4] = (start >> 32).to_bytes(4, arch.byteorder)
    return heap, forms


def engines() -> list[Engine]:
    return [graphs.native(), graphs.pure()]


def find_disguised(engine: Engine, heap: Heap) -> tuple[Disguised, Graph]:
    graph = classify(engine, heap)
    before = lost_totals(graph)
    blocks = graph.blocks  # type: ignore[attr-defined]
    found, references = search_disguises(graph, engine, blocks, heap, heap.roots, [MANGLED])
    if references:
        graph.connect(references)
        finish(graph)
        found = with_effect(found, before, graph, blocks)
    return found, graph


def table_of(form: Form, place: Callable[[int], int], count: int = 100, start: int = MIDDLE, size: int = 72, low_tags: int = 1) -> Heap:
    """Make a block that a root refers to, with a pointer of this form to each other block. Relative pointers are in random order, others in
    the order of the addresses. The low bits contain numbers below `low_tags`."""
    heap = Heap(graphs.X86_64, start, [32 * count, *[size] * count], 64)
    heap.root_memory[8:16] = heap.word(start)
    targets = random.Random(count).sample(range(count), count) if form.kind in (Disguise.RELATIVE, Disguise.RELATIVE_32) else range(count)
    for number, target in enumerate(targets):
        at = start + place(number)
        block = heap.blocks[1 + target][0] + number % low_tags
        heap.put(0, place(number), encode(form, block, 7 * number + 1, heap.arch, at))
    return heap
