"""The C engine and the reference engine find the same objects of V8, also in damaged memory. Layouts are derived from memory."""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Iterator
from itertools import zip_longest

import graphs
import pytest

from findleaks.engine.contract import Blocks, Engine
from findleaks.runtimes.v8.engine import (
    ASKED,
    COUNTED,
    GIVEN,
    NO_MAP,
    SHARED_END,
    SHARED_START,
    UP_TO_MAP,
    EdgeList,
    MapTable,
    ObjectWalk,
    ReferenceSearch,
    Size,
    Step,
    constant_size,
    size_by_count,
)
from findleaks.target.arch import Arch

BASE = 0x3F00_0000_0000
SIZES = [
    constant_size(24),
    Size(COUNTED, 16, at=12, unit=8),
    Size(COUNTED, 16, at=12, unit=1),
    Size(COUNTED, 16, at=10, width=1, unit=35),
    Size(COUNTED, 24, at=8, width=2, unit=24),
    Size(COUNTED, 16, at=8, shift=1, mask=0x3FF, unit=8),
    Size(COUNTED, 16, at=8, per=6, unit=4, second=12, second_unit=2),
    Size(COUNTED, 64, align=64, at=16, unit=1),
    Size(UP_TO_MAP),
    Size(ASKED),
]
FREE = 4
"""The number of the map of free memory."""
FIELDS = [(8, 16), (8,), (), (), (8, 16, 24)]
"""Offsets of references in objects of the first maps."""
SHARED = (1, 2)
"""Words that are left out: 1 refers to shared memory."""
LIMIT = 40  # the largest number in an object


def table(words: list[int]) -> MapTable:
    made = MapTable()
    for word, size, fields in zip_longest(words, SIZES[: len(words)], FIELDS[: len(words)], fillvalue=()):
        made.add(word, size, fields, len(made) == FREE)
    return made


def heap(words: list[int], state: random.Random, count: int, arch: Arch) -> tuple[bytes, list[int]]:
    """Return the memory of random objects, and the number of the map of each."""
    order = "<" if arch.byteorder == "little" else ">"
    memory, numbers = bytearray(), [state.randrange(len(words)) for _ in range(count)]
    for number in numbers:
        size, chosen, second = SIZES[number], state.randrange(LIMIT), state.randrange(LIMIT)
        row = [*size]
        length = {COUNTED: size_by_count(row, chosen << size.shift, second), UP_TO_MAP: 8 * state.randrange(1, 9), ASKED: 48}.get(
            size.kind, size.base
        )
        # The bytes of an object are small numbers, so that no word of an object is a map.
        one = bytearray(state.randrange(4) for _ in range(length))
        struct.pack_into(order + "Q", one, 0, words[number])
        if size.kind == COUNTED:
            form = order + {1: "B", 2: "H", 4: "I"}[size.width]
            struct.pack_into(form, one, size.at, chosen << size.shift)
            if size.second_unit:
                struct.pack_into(order + "I", one, size.second, second)
        memory += one
    return bytes(memory), numbers


def references(memory: bytes, numbers: list[int], words: list[int], arch: Arch) -> Iterator[tuple[int, int]]:
    """Yield the references in the fields of the objects in this memory, as tagged addresses, with the number of each object's map."""
    order = "<" if arch.byteorder == "little" else ">"
    at = 0
    for number in numbers:
        end = at + 8
        while end < len(memory) and struct.unpack_from(order + "Q", memory, end)[0] not in words:
            end += 8
        for offset in FIELDS[number] if number < len(FIELDS) else ():
            if at + offset + 8 <= end:
                (word,) = struct.unpack_from(order + "Q", memory, at + offset)
                if word & 3 == 1 and not SHARED[0] <= word < SHARED[1]:
                    yield word, number
        at = end


WalkResult = tuple[list[list[int]], list[tuple[int, int]], list[tuple[Step, int]], list[tuple[int, int, int]]]


def walk_objects(engine: Engine, known: MapTable, memory: bytes, room: int = 7) -> WalkResult:
    """Return the totals and first objects of all maps, the references, how the walks ended, and the objects."""
    walk, ends, references, objects = ObjectWalk(known), [], [], []
    walk.targets, walk.owners = array("Q", bytes(8 * room)), array("I", bytes(4 * room))
    walk.starts, walk.sizes, walk.maps = array("Q", bytes(8 * room)), array("Q", bytes(8 * room)), array("I", bytes(4 * room))
    walk.set_range(BASE, BASE + len(memory))
    walk.state[SHARED_START], walk.state[SHARED_END] = SHARED
    for _ in range(1000):
        step = walk.run(engine, graphs.piece(BASE, memory))
        ends.append((step, walk.position))
        references += list(zip(walk.targets[: walk.found], walk.owners))
        objects += list(zip(walk.starts[: walk.listed], walk.sizes, walk.maps))
        if step == Step.ASK:
            walk.state[GIVEN] = 48
        elif step != Step.FULL:
            break
    return [known.totals.tolist(), known.firsts.tolist()], references, ends, objects


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=lambda arch: str(arch.name))
def test_engines_agree(arch: Arch) -> None:
    for seed in range(3):
        state = random.Random(seed)
        words = [BASE + 0x1000_0001 + 80 * at for at in state.sample(range(1 << 20), len(SIZES))]
        memory, numbers = heap(words, state, 80, arch)
        expected = walk_objects(graphs.pure(arch), table(words), memory)
        assert expected[0][0][::2] == [numbers.count(number) for number in range(len(SIZES))]
        assert sum(expected[0][0][1::2]) == len(memory)
        assert expected[2][-1] == (Step.DONE, BASE + len(memory))
        assert expected[1] == list(references(memory, numbers, words, arch))
        assert [number for _, _, number in expected[3]] == [number for number in numbers if number != FREE]
        assert walk_objects(graphs.native(arch), table(words), memory) == expected
        for _ in range(12):  # damage, or an end inside an object
            broken = bytearray(memory)
            for _ in range(3):
                broken[state.randrange(len(memory))] = state.choice([0, 0x7F, 0xFF])
            cut = bytes(broken[: state.randrange(len(memory))])
            for damaged in (bytes(broken), cut):
                expected = walk_objects(graphs.pure(arch), table(words), damaged)
                assert walk_objects(graphs.native(arch), table(words), damaged) == expected


@pytest.mark.parametrize("engine", [graphs.pure, graphs.native])
def test_an_unknown_map_stops_the_walk(engine: object) -> None:
    """The walk stops at the object, and continues when its map is known. No object is counted twice."""
    arch = graphs.ARCHES[0]
    known = table([])
    words = [BASE + 0x2001, BASE + 0x3001]
    memory = array("Q", [words[0], 1, 2, words[1], 5 << 32, *range(5), words[0], 1, 2]).tobytes()
    walk = ObjectWalk(known)
    walk.set_range(BASE, BASE + len(memory))
    made = engine(arch)  # type: ignore[operator]
    assert walk.run(made, graphs.piece(BASE, memory)) == Step.NEW_MAP
    known.add(words[0], constant_size(24))
    assert (walk.run(made, graphs.piece(BASE, memory)), walk.position, walk.state[2]) == (Step.NEW_MAP, BASE + 24, words[1])
    known.add(words[1], Size(COUNTED, 16, at=12, unit=8))
    assert walk.run(made, graphs.piece(BASE, memory)) == Step.DONE
    assert (known.totals.tolist(), known.firsts.tolist()) == ([2, 48, 1, 56], [BASE, BASE + 24])


def strong_words(memory: bytes, start: int, size: int, row: list[int], arch: Arch) -> Iterator[int]:
    """Yield the words of an object that are strong references."""
    order = "<" if arch.byteorder == "little" else ">"
    first, end, low, high = row
    for at in range(0, min(end, size) - 7, 8):
        if at == 0 or (at >= first and not (at < 512 and (low | high << 32) >> at // 8 & 1)):
            (word,) = struct.unpack_from(order + "Q", memory, start + at)
            if word & 3 == 1:
                yield word - 1


NAMES = [[0, 3 << 28 | 5, 2 << 28 | 9], [], [1 << 28 | 1], []]
ELEMENTS = [False, True, False, True]
"""Types and names of the edges of the first words, and whether others are elements, by shape."""


def make_nodes(count: int) -> array[int]:
    """Return the node of each object. Every seventh object has none."""
    return array("I", (NO_MAP if at % 7 == 6 else at + 3 for at in range(count)))


def listed_edges(
    engine: Engine, blocks: Blocks, maps: array[int], rows: array[int], room: int, pieces: list[tuple[int, bytes]]
) -> list[list[int]]:
    """Return all edges, three numbers each, and the number of edges of each object."""
    edges = EdgeList(blocks, maps, make_nodes(len(maps)), rows, room)
    for names, are_elements in zip(NAMES, ELEMENTS):
        edges.add_shape(names, are_elements)
    found: list[int] = []
    for start, data in pieces:
        more = True
        while more:
            more = edges.run(engine, graphs.piece(start, data))
            found += edges.found
    return [found, edges.counts.tolist()]


def expected_edges(blocks: Blocks, memory: bytes, base: int, maps: array[int], rows: list[list[int]], arch: Arch) -> list[list[int]]:
    found, counts, nodes = [], [0] * len(maps), make_nodes(len(maps))
    order = "<" if arch.byteorder == "little" else ">"
    for index, shape in enumerate(maps):
        start = blocks.address(index)
        if shape >= len(rows) or nodes[index] == NO_MAP:
            continue
        first, end, low, high = rows[shape]
        for at in range(0, blocks.size(index) - 7, 8):
            (word,) = struct.unpack_from(order + "Q", memory, start - base + at)
            is_read = at == 0 or (first <= at <= end - 8 and not (at < 512 and (low | high << 32) >> at // 8 & 1))
            target = blocks.find(word - 1) if is_read and word & 3 == 1 else -1
            if target < 0 or target == index or blocks.address(target) != word - 1 or nodes[target] == NO_MAP:
                continue
            entry = NAMES[shape][at // 8] if at // 8 < len(NAMES[shape]) else 0
            is_element = ELEMENTS[shape] and at >= 16
            found += [entry >> 28, entry & 0xFFFFFFF] if entry else [1, at // 8 - 2] if is_element else [4, at // 8]
            found.append(7 * nodes[target])
            counts[index] += 1
    return [found, counts]


@pytest.mark.parametrize("arch", graphs.ARCHES, ids=lambda arch: str(arch.name))
def test_references_of_objects(arch: Arch) -> None:
    """Both engines find the words with tag 1 that refer to the start of another object, also if an object is divided between pieces."""
    order = "<" if arch.byteorder == "little" else ">"
    rows = [[8, 1 << 31, 0, 0], [16, 40, 0, 0], [8, 1 << 31, 1 << 2 | 1 << 4, 1 << 30], [8, 8, 0, 0]]
    base = 0x3F00_0000 if arch.word == 4 else BASE
    for seed in range(4):
        state = random.Random(seed)
        sizes = [8 * state.choice([1, 2, 3, 7, 40, 90]) for _ in range(60)]
        starts = [base + sum(sizes[:at]) + 64 * (at > 30) for at in range(len(sizes))]
        maps = array("I", (state.randrange(len(rows) + 1) for _ in sizes))  # the last number has no row
        length = starts[-1] + sizes[-1] - base
        words = (
            state.choice(starts) + state.choice([0, 1, 1, 1, 3, 9]) if state.random() < 0.6 else state.getrandbits(20)
            for _ in range(length // 8)
        )
        memory = struct.pack(f"{order}{length // 8}Q", *words)
        extra = sorted(state.randrange(60) << 32 | state.randrange(60) for _ in range(12))
        expected: list[set[int]] = [set() for _ in sizes]
        for at, (start, size) in enumerate(zip(starts, sizes)):
            if maps[at] < len(rows):
                found = strong_words(memory, start - base, size, rows[maps[at]], arch)
                expected[at].update(starts.index(word) for word in found if word in starts)
            expected[at].update(one & 0xFFFFFFFF for one in extra if one >> 32 == at)
            expected[at].discard(at)
        cuts = sorted({0, length, *(8 * state.randrange(length // 8) for _ in range(5))})
        for engine in (graphs.pure(arch), graphs.native(arch)):
            blocks = engine.blocks(arch, 8)
            blocks.append(starts, sizes, bytes(len(sizes)))
            blocks.seal()
            graph = engine.graph(blocks)
            search = ReferenceSearch(maps, array("I", (number for row in rows for number in row)), array("Q", extra))
            for first, last in zip(cuts, cuts[1:]):
                search.run(engine, graph, graphs.piece(base + first, memory[first:last]))
            graph.settle()
            assert [{index for index, _ in graph.references(at)} for at in range(len(sizes))] == expected
            for room in (1, 7, 4096):
                found = listed_edges(
                    engine, blocks, maps, search.rows, room, [(base + first, memory[first:last]) for first, last in zip(cuts, cuts[1:])]
                )
                assert found == expected_edges(blocks, memory, base, maps, rows, arch)
