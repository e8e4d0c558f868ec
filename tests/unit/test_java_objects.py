"""The C engine and the reference engine find the same Java objects and references, also in damaged memory."""

from __future__ import annotations

import random
import struct
from array import array
from types import SimpleNamespace
from typing import Any, NamedTuple

import graphs
import pytest
from fake import FakeTarget

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.runtimes.jvm import objects as java_heap
from findleaks.runtimes.jvm.engine import (
    ARRAY,
    FIXED,
    MIRROR,
    MOVED,
    MOVED_BITS,
    NO_CLASS,
    OBJECTS,
    ClassTable,
    HeaderLayout,
    ObjectWalk,
    References,
    ReferenceSearch,
    Step,
)
from findleaks.runtimes.jvm.java_classes import JavaClass
from findleaks.runtimes.jvm.layout import ObjectLayout
from findleaks.runtimes.jvm.spaces import ObjectRange
from findleaks.target.arch import X86_64, Arch

BASE = 0xF0000000
NARROW, WIDE, COMPACT = HeaderLayout(8, 4, 0, 12, 8), HeaderLayout(8, 8, 0, 16, 16), HeaderLayout(0, 8, 42, 8, 8)
KINDS = [
    (FIXED, 24, 0, 0),
    (ARRAY, 24, 0, 0),
    (ARRAY, 28, 3, 0),
    (OBJECTS, 24, 2, 0),
    (MIRROR, 40, 44, 48),
    (FIXED, 104, 0, 0),
    (FIXED, 32, 24, 28),
]
MAPS: list[list[int]] = [[16, 1], [], [], [], [16, 2], [16, 2, 40, 0, 48, 14], [16, 1]]
STACK = 6  # the class number of stack chunks: their instances contain a part of a stack


class WalkResult(NamedTuple):
    """The result of the walks over all pieces: objects, totals by class, and the reason why each walk ended."""

    objects: list[tuple[int, int, int]]
    totals: list[int]
    ends: list[tuple[Step, int]]


def table(words: list[int]) -> ClassTable:
    made = ClassTable()
    for word, row, maps in zip(words, KINDS, MAPS):
        made.add(word, row, array("I", maps))
    return made


def make_objects(header: HeaderLayout, words: list[int], state: random.Random, count: int, arch: Arch) -> tuple[bytes, list[int]]:
    """Return the memory of random objects, and the address of each."""
    memory, starts = bytearray(), []
    order = "<" if arch.byteorder == "little" else ">"
    for _ in range(count):
        number = state.randrange(len(words))
        kind, size, shift, _ = KINDS[number]
        length = state.choice([0, 1, 5, 100])
        bytes_of = {FIXED: size, MIRROR: (48 + 8 * length) // arch.word * arch.word}.get(kind, size + (length << shift))
        if number == STACK:  # a bitmap follows, with one bit for each half of a word
            bytes_of += (length + -(-length * (arch.word // 4) // (8 * arch.word))) * arch.word
        one = bytearray(state.randbytes(bytes_of + -bytes_of % header.alignment))
        word = words[number] << header.klass_shift | (state.getrandbits(header.klass_shift) if header.klass_shift else 0)
        form = "I" if header.klass_bytes == 4 else "Q"
        struct.pack_into(order + form, one, header.klass_at, word)
        if kind in (ARRAY, OBJECTS):
            struct.pack_into(order + "I", one, header.length_at, length)
        if number == STACK:
            struct.pack_into(order + "2I", one, shift, length, state.choice([0, length // 3, length, 200]))
        if kind == MIRROR:
            struct.pack_into(order + "I", one, size, bytes_of // arch.word)
        starts.append(BASE + len(memory))
        memory += one
    return bytes(memory), starts


def walk_objects(engine: Engine, header: HeaderLayout, known: ClassTable, memory: bytes, cuts: list[int], wide: bool = False) -> WalkResult:
    """Return the objects in this memory. It is divided into pieces at `cuts`. `wide`: class numbers have 4 bytes."""
    walk, found, ends = ObjectWalk(header, References(4, 0, 0), known), [], []
    if wide:
        walk.widen()
    walk.set_range(BASE, BASE + len(memory), BASE + len(memory))
    for low, high in zip([0, *cuts], [*cuts, len(memory)]):
        if BASE + high <= walk.position or low == high:
            continue
        step = walk.run(engine, graphs.piece(BASE + low, memory[low:high]))
        found += list(zip(walk.starts[: walk.found], walk.sizes, walk.numbers))
        ends.append((step, walk.position))
        if step == Step.CUT:
            at = walk.position - BASE
            step = walk.run(engine, graphs.piece(BASE + at, memory[at:]))
            found += list(zip(walk.starts[: walk.found], walk.sizes, walk.numbers))
            ends.append((step, walk.position))
        if step in (Step.DAMAGED, Step.NEW_CLASS):
            ends.append((step, walk.state[4] if step == Step.NEW_CLASS else 0))
            break
    return WalkResult(found, known.totals.tolist(), ends)


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=lambda arch: str(arch.name))
@pytest.mark.parametrize("header", [NARROW, WIDE, COMPACT], ids=["narrow", "wide", "compact"])
def test_engines_agree(header: HeaderLayout, arch: Arch) -> None:
    for seed in range(3):
        state = random.Random(seed)
        words = state.sample(range(1, 1 << 22), len(KINDS))
        memory, starts = make_objects(header, words, state, 60, arch)
        cuts = sorted(state.randrange(len(memory)) for _ in range(3))
        expected = walk_objects(graphs.pure(arch), header, table(words), memory, cuts)
        assert [start for start, _, _ in expected.objects] == starts
        assert sum(expected.totals[::2]) == 60 and sum(expected.totals[1::2]) == len(memory)
        for wide in (False, True):
            assert walk_objects(graphs.native(arch), header, table(words), memory, cuts, wide) == expected
        for _ in range(10):  # damage
            broken = bytearray(memory)
            for _ in range(3):
                broken[state.randrange(len(memory))] = state.choice([0, 0x7F, 0xFF])
            expected = walk_objects(graphs.pure(arch), header, table(words), bytes(broken), cuts)
            assert walk_objects(graphs.native(arch), header, table(words), bytes(broken), cuts) == expected
            assert all(start + size <= BASE + len(memory) for start, size, _ in expected.objects)


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=lambda arch: str(arch.name))
@pytest.mark.parametrize("header", [NARROW, COMPACT], ids=["narrow", "compact"])
def test_objects_that_were_moved(header: HeaderLayout, arch: Arch) -> None:
    """A moved object is recorded and not counted. With compact headers, the walk stops at it, as its size is unknown."""
    order, moved = "<" if arch.byteorder == "little" else ">", {3: BASE + 0x5000, 7: BASE + 0x6008}
    memory = bytearray()
    for number in range(10):
        first = 5 << header.klass_shift if header is COMPACT else 1  # of an object that is not locked
        memory += struct.pack(order + "QII", first, 5, 0)
        if number in moved:
            struct.pack_into(order + "Q", memory, 16 * number, moved[number] | MOVED_BITS)
    for engine in (graphs.pure(arch), graphs.native(arch)):
        known, stops, pairs, starts = ClassTable(), [], [], []
        known.add(5, (FIXED, 16, 0, 0), array("I"))
        walk = ObjectWalk(header, References(4, 0, 0), known)
        walk.record_moved()
        walk.set_range(BASE, BASE + len(memory), BASE + len(memory))
        while walk.position < BASE + len(memory):
            stops.append(walk.run(engine, graphs.piece(BASE, bytes(memory))))
            starts += walk.starts[: walk.found]
            pairs += walk.moved[: 2 * walk.state[MOVED]]
            walk.skip_to(walk.position + (16 if stops[-1] == Step.MOVED_HEADER else 0))
        assert starts == [BASE + 16 * number for number in range(10) if number not in moved] and known.totals.tolist() == [8, 8 * 16]
        if header is COMPACT:
            assert stops == [Step.MOVED_HEADER] * 2 + [Step.DONE] and not pairs
        else:
            assert stops == [Step.DONE] and pairs == [BASE + 48, moved[3], BASE + 112, moved[7]]


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=lambda arch: str(arch.name))
@pytest.mark.parametrize("size", [4, 8])
def test_free_chunks_among_objects(size: int, arch: Arch) -> None:
    """Free chunks of CMS are skipped. The size of an object is at least that of the smallest chunk."""
    order = "<" if arch.byteorder == "little" else ">"
    for seed in range(4):
        state, memory, expected = random.Random(seed), bytearray(), []
        for _ in range(60):
            words = state.choice([24, 32, 400]) // arch.word
            if state.random() < 0.4:
                first, second = (words << 8 | 0x81 | state.choice([0, 0x78]), state.getrandbits(40)) if size == 4 else (words, 0x7001)
                memory += struct.pack(order + "2Q", first, second) + bytes(words * arch.word - 16)
            else:
                expected.append((BASE + len(memory), 16, 0))
                memory += struct.pack(order + "2Q", 1, 8 if size == 8 else 8 * 0x100000001) + bytes(8)
        for broken in (False, True):
            if broken:
                memory[8 * state.randrange(len(memory) // 8)] ^= 0xFF
            found = []
            for engine in (graphs.pure(arch), graphs.native(arch)):
                known = ClassTable()
                known.add(8, (FIXED, 16, 0, 0), array("I"))
                walk = ObjectWalk(NARROW if size == 4 else WIDE._replace(alignment=8), References(size, 0, 0), known)
                walk.set_range(BASE, BASE + len(memory), BASE + len(memory), 0, 24)
                step = walk.run(engine, graphs.piece(BASE, bytes(memory)))
                found.append((step, walk.position, list(zip(walk.starts[: walk.found], walk.sizes, walk.numbers))))
            assert found[0] == found[1]
            assert broken or found[0] == (Step.DONE, BASE + len(memory), expected)


class Edges(NamedTuple):
    """The references of each object, in order, and the kinds of all objects."""

    edges: list[list[tuple[int, bool]]]
    kinds: bytes


def find_edges(
    engine: Engine, header: HeaderLayout, references: References, memory: bytes, cuts: list[int], words: list[int], seed: int
) -> Edges:
    """Return the references in this memory, which is divided into pieces at `cuts`. Extra references and mirrors are random."""
    known, state = table(words), random.Random(seed)
    found = walk_objects(engine, header, known, memory, [])
    blocks = engine.blocks(engine.arch, 8)
    blocks.append([start for start, _, _ in found.objects], [size for _, size, _ in found.objects], bytes(len(found.objects)))
    blocks.seal()
    numbers, count = array("HI"[seed % 2], [number for _, _, number in found.objects]), len(found.objects)
    extra = array("Q", sorted(state.randrange(count) << 32 | state.randrange(count) for _ in range(20)))
    mirrors = array("I", [state.choice([NO_CLASS, state.randrange(count)]) for _ in words])
    search = ReferenceSearch(ObjectWalk(header, references, known), numbers, mirrors, extra)
    graph = engine.graph(blocks)
    for low, high in zip([0, *cuts], [*cuts, len(memory)]):
        search.run(engine, graph, graphs.piece(BASE + low, memory[low:high]))
    with pytest.raises(ValueError, match="lies below"):
        search.run(engine, graph, graphs.piece(BASE, memory))
    graph.root_words([blocks.address(0)])
    for step in (graph.mark, graph.classify):
        while not step(7):
            pass
    return Edges([graph.references(index) for index in range(count)], bytes(graph.kinds()))


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=lambda arch: str(arch.name))
@pytest.mark.parametrize(("header", "size"), [(NARROW, 4), (WIDE, 8), (COMPACT, 4)], ids=["narrow", "wide", "compact"])
def test_engines_agree_on_references(header: HeaderLayout, size: int, arch: Arch) -> None:
    for seed in range(3):
        state = random.Random(seed)
        words = state.sample(range(1, 1 << 22), len(KINDS))
        references = References(size, *state.choice([(0, 0), (BASE - 64, 0), (BASE - 64, 3)]))
        memory, starts = make_objects(header, words, state, 60, arch)
        changed, order = bytearray(memory), "<" if arch.byteorder == "little" else ">"
        found = walk_objects(graphs.pure(arch), header, table(words), memory, []).objects
        made = 0
        for start, bytes_of, number in found:  # words to which maps, static variables and elements may extend
            first = {OBJECTS: 24, MIRROR: 48}.get(KINDS[number][0], {0: 16, 5: 16, STACK: 32}.get(number, bytes_of))
            for at in range(first, bytes_of - size + 1, size):
                target = state.choice([0, state.choice(starts), state.choice(starts), state.choice(starts) + 8])
                value = max(target - references.base, 0) >> references.shift
                struct.pack_into(
                    order + ("I" if size == 4 else "Q"), changed, start - BASE + at, value if value < 1 << 32 or size == 8 else 0
                )
                made += 1
            if KINDS[number][0] == MIRROR:
                struct.pack_into(order + "I", changed, start - BASE + 44, state.choice([0, 2, 1000]))
        assert made > 100
        cuts = sorted(8 * state.randrange(len(memory) // 8) for _ in range(3))
        expected = find_edges(graphs.pure(arch), header, references, bytes(changed), cuts, words, seed)
        assert sum(map(len, expected.edges)) > 100
        assert find_edges(graphs.native(arch), header, references, bytes(changed), cuts, words, seed) == expected


def test_references_of_each_kind() -> None:
    """Only words in a map, in the elements of an array, and in static variables are references."""
    for engine in (graphs.native(), graphs.pure()):
        memory = bytearray(24 + 40 + 64)
        for at, word in ((8, 1), (32, 4), (72, 5)):
            struct.pack_into("<I", memory, at, word)
        struct.pack_into("<5I", memory, 36, 3, 0, 0, BASE, BASE + 24)  # length; first element at offset 24
        struct.pack_into("<I", memory, 56, BASE + 64)
        struct.pack_into("<I", memory, 60, BASE)  # beyond the length of the array
        struct.pack_into("<2I", memory, 64 + 40, 8, 2)  # the size of the class and its number of static references
        struct.pack_into("<3I", memory, 64 + 48, BASE, BASE + 24, BASE + 24)
        struct.pack_into("<I", memory, 16, BASE + 24)
        known = ClassTable()
        known.add(1, (FIXED, 24, 0, 0), array("I", [16, 1]))
        known.add(4, (OBJECTS, 24, 2, 0), array("I"))
        known.add(5, (MIRROR, 40, 44, 48), array("I"))
        found = walk_objects(engine, NARROW, known, bytes(memory), [])
        assert found.objects == [(BASE, 24, 0), (BASE + 24, 40, 1), (BASE + 64, 64, 2)]
        blocks = engine.blocks(X86_64, 8)
        blocks.append([BASE, BASE + 24, BASE + 64], [24, 40, 64], bytes(3))
        blocks.seal()
        graph, none = engine.graph(blocks), array("I", [NO_CLASS] * 3)
        search = ReferenceSearch(ObjectWalk(NARROW, References(4, 0, 0), known), array("I", [0, 1, 2]), none, array("Q"))
        search.run(engine, graph, graphs.piece(BASE, bytes(memory)))
        graph.settle()
        assert [[target for target, _ in graph.references(index)] for index in range(3)] == [[1], [0, 2], [0, 1]]


@pytest.mark.parametrize("engine", [graphs.native, graphs.pure])
def test_a_class_that_is_not_known_ends_the_walk(engine: object) -> None:
    words = [7, 8, 9, 10, 11, 12]
    memory, starts = make_objects(NARROW, words, random.Random(1), 30, X86_64)
    known = ClassTable()
    assert callable(engine)
    walk = ObjectWalk(NARROW, References(4, 0, 0), known)
    walk.set_range(BASE, BASE + len(memory), BASE + len(memory))
    seen, found = set(), []
    while (step := walk.run(engine(), graphs.piece(BASE, memory))) != Step.DONE:
        found += walk.starts[: walk.found].tolist()
        assert step == Step.NEW_CLASS and walk.state[4] not in seen
        seen.add(walk.state[4])
        known.add(walk.state[4], KINDS[walk.state[4] - 7], array("I"))
    assert [*found, *walk.starts[: walk.found]] == starts


def test_many_classes() -> None:
    """The hash table grows."""
    made = ClassTable()
    words = random.Random(3).sample(range(1, 1 << 32), 5000)
    assert [made.add(word, (FIXED, 16, 0, 0), array("I")) for word in words] == list(range(5000))
    assert [made.find(word) for word in words] == list(range(5000))
    assert made.find(0) == made.find(1 << 40) == 0xFFFFFFFF


@pytest.mark.parametrize("engine", [graphs.native, graphs.pure])
def test_numbers_of_classes_get_wider_when_there_are_more(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Class numbers have 2 bytes for up to MOST_NARROW classes, and 4 bytes for more. Here, there are 6 classes; the limit is 3 or 6."""
    words = [7, 8, 9, 10, 11, 12]
    memory, starts = make_objects(NARROW, words, random.Random(5), 80, X86_64)
    target = FakeTarget({BASE: memory})
    reader = SimpleNamespace(read=lambda word: JavaClass(word, str(word), KINDS[word - 7], array("I")))
    monkeypatch.setattr(java_heap, "ClassReader", lambda tables: reader)
    layout, end = ObjectLayout(NARROW, References(4, 0, 0), 0, 0), BASE + len(memory)
    found = {}
    for most in (3, 6):
        monkeypatch.setattr(java_heap, "MOST_NARROW", most)
        tables: Any = SimpleNamespace(target=target, memory=Memory(target), relocation=None)
        one = java_heap.JavaObjects(tables, engine(), layout, [ObjectRange(BASE, end, end)])
        assert [one.blocks.address(index) for index in range(len(one.blocks))] == starts
        found[one.numbers.typecode] = [(one.classes[number].name, one.table.totals[2 * number]) for number in one.numbers]
        of_class = one.of_classes([4])
        assert list(of_class) == [index for index, number in enumerate(one.numbers) if number == 4]
    assert sorted(found) == ["H", "I"] and found["H"] == found["I"] and len(found["H"]) == 80
