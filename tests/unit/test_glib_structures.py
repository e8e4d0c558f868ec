"""Structures of GLib, recognised by their contents: both engines find the same intact and damaged structures."""

from __future__ import annotations

import random
import struct
from typing import cast

import graphs
import pytest
from fake import FakeTarget
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.allocators.gtypes import GTypeNames
from findleaks.allocators.heap_parts import HeapParts
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.runtimes.glib import engine as kinds
from findleaks.runtimes.glib import structures
from findleaks.runtimes.glib.engine import Structure, find_structures
from findleaks.runtimes.glib.structures import Structures
from findleaks.target.base import Range

HEAP, CODE, STRIDE = 0x10000000, 0x9D0000, 0x400
ROOM = 20  # number of the first block with 200 bytes, to which the structures refer
NODE = 24  # number of the first node of the queue


def room(number: int) -> int:
    return HEAP + STRIDE * (ROOM + number)


def here(number: int) -> int:
    return HEAP + STRIDE * number


STRUCTURES = (
    (kinds.TABLE, 96, struct.pack("<QIIIIQQQQQQQ", 8, 7, 7, 3, 4, 3, room(0), room(1), room(0), CODE, CODE, 1)),
    (kinds.TABLE, 88, struct.pack("<IIIIIIQQQQQQ", 8, 7, 7, 3, 4, 3, room(0), room(1), room(2), CODE, 0, 1)),
    (kinds.TREE, 56, struct.pack("<QQQQQII", room(0), CODE, CODE, 0, 5, 2, 1)),
    (kinds.POINTERS, 40, struct.pack("<QIIIIQ", room(0), 3, 16, 1, 9, CODE)),
    (kinds.PLAIN_POINTERS, 32, struct.pack("<QIIIIQ", room(0), 3, 16, 1, 9, 0)),
    (kinds.ARRAY, 40, struct.pack("<QIIIIIIQ", room(0), 3, 10, 12, 1, 1, 0, 0)),  # 10 elements of 12 bytes in 128 bytes
    (kinds.BYTE_ARRAY, 48, struct.pack("<QIIIIIIQ", room(0), 100, 128, 1, 0, 1, 0, 0)),
    (kinds.SEQUENCE, 32, struct.pack("<QQQQ", room(0), CODE, 0, here(7))),
    (kinds.DATE, 32, struct.pack("<QQiIII", 5, room(0), 1, 738000, 1, 0)),
    (kinds.BYTES, 40, struct.pack("<QQQQQ", room(0), 150, 1, CODE, room(0))),
    (kinds.BYTES, 72, struct.pack("<QQQQQ", here(10) + 40, 20, 1, 0, 0)),
    (kinds.SOURCE, 120, struct.pack("<QQQQQQQQQQQQ", 1, 0, CODE - 64, 1, 0, 0, 0, 0, 0, 0, 0, room(0))),
    (kinds.STRING, 32, struct.pack("<QQQ", room(0), 30, 128)),
    (kinds.QUEUE, 24, struct.pack("<QQQ", here(NODE), here(NODE + 1), 3)),
    (kinds.ERROR, 24, struct.pack("<IIQ", 17, 4, room(0))),
    (kinds.CLOSURE, 72, struct.pack("<QQQQIIQQQ", 0, 0, 0, CODE, 1 << 17 | 1, 0, CODE, 5, room(1))),
    (kinds.CLOSURE, 96, struct.pack("<QQQQIIQQQQ", CODE, 80, CODE, CODE, 1, 0, CODE, 80, 0, 0)),
    (kinds.PLAIN_CLOSURE, 72, struct.pack("<QQQQIIQQQQ", 0, 0, 0, 0, 1 << 17 | 1, 0, 0, 5, room(1), CODE)),
    (kinds.PART, 48, struct.pack("<QQQQQ", room(0) + 8, 20, 1, CODE, room(1))),
    (kinds.CHANNEL, 120, struct.pack("<QQQQQQQQ", 1, CODE - 64, room(0), 0, 0, 0, 0, 1024)),
)


def make_heap() -> tuple[bytearray, list[tuple[int, int]]]:
    """Return memory with the structures, two nodes of the queue, and blocks of 160 bytes; and its blocks."""
    memory, blocks = bytearray(STRIDE * 26), []
    for number, (_, size, words) in enumerate(STRUCTURES):
        blocks.append((here(number), size))
        memory[STRIDE * number : STRIDE * number + len(words)] = words
    blocks += [*((room(number), 160) for number in range(3)), (here(NODE), 24), (here(NODE + 1), 24)]
    return memory, blocks


def find_in_both(memory: bytes, blocks: list[tuple[int, int]], cut: int = 0) -> list[list[Structure]]:
    made = []
    for engine in (graphs.native(), graphs.pure()):
        directory = engine.blocks(engine.arch, 8)
        directory.append([start for start, _ in blocks], [size for _, size in blocks], [State.IN_USE] * len(blocks))
        directory.seal()
        pieces = [graphs.piece(HEAP, memory[:cut]), graphs.piece(HEAP + cut, memory[cut:])]
        made.append([one for piece in pieces for one in find_structures(engine, directory, piece, [Range(CODE, CODE + 64)], 1000)])
    return made


def test_each_kind_is_found() -> None:
    for found in find_in_both(*map(bytes, make_heap()[:1]), make_heap()[1]):
        assert [(one.block, one.kind) for one in found] == [(number, kind) for number, (kind, _, _) in enumerate(STRUCTURES)]


@pytest.mark.parametrize(("place", "is_found"), [(here(NODE) + 16, False), (here(NODE + 1) + 8, False), (here(NODE) + 8, True)])
def test_nodes_of_trees(place: int, is_found: bool) -> None:
    """A node of a tree looks like a queue, but its children do not look like the first and the last node of a queue. Only children in the
    same piece are examined; the caller examines the others."""
    memory, blocks = make_heap()
    memory[place - HEAP] = 1
    for cut, expected in ((0, is_found), (here(NODE) - HEAP, True)):
        for found in find_in_both(bytes(memory), blocks, cut):
            assert (kinds.QUEUE in [one.kind for one in found]) == expected


@pytest.mark.parametrize("number", range(len(STRUCTURES)))
def test_a_structure_that_refers_to_no_block(number: int) -> None:
    """A structure is not found without the blocks to which it refers. Exceptions are a GBytes that contains its data, and a
    closure without notifiers."""
    memory, blocks = make_heap()
    for found in find_in_both(bytes(memory), [blocks[number]]):
        assert [one.kind for one in found] == {10: [kinds.BYTES], 16: [kinds.CLOSURE]}.get(number, [])


@pytest.mark.parametrize(("requested", "usable", "is_found"), [(4, 24, True), (4, 40, True), (25, 56, True), (4, 72, False)])
def test_blocks_that_are_larger_than_requested(requested: int, usable: int, is_found: bool) -> None:
    """malloc returns 24 bytes for a request of 4, and 40 if it does not split off the rest of a chunk."""
    memory = struct.pack("<QQQQQ", room(0), requested, 1, CODE, room(0)).ljust(STRIDE * 26, b"\0")
    for found in find_in_both(memory, [(HEAP, 40), (room(0), usable)]):
        assert [one.kind for one in found] == ([kinds.BYTES] if is_found else [])


@given(seed=st.integers(0, 2**32 - 1), cut=st.integers(0, 3000))
@settings(max_examples=60)
def test_both_engines_agree(seed: int, cut: int) -> None:
    memory, blocks = make_heap()
    rng = random.Random(seed)
    for _ in range(rng.randrange(30)):
        at = STRIDE * rng.randrange(len(STRUCTURES)) + 4 * rng.randrange(24)
        memory[at : at + 4] = struct.pack("<I", rng.choice((0, 1, 3, 8, 1 << 24, 0xFFFFFFFF, CODE, room(0), here(rng.randrange(20)))))
    blocks = [(start, max(16, size + rng.choice((0, 0, 0, -8, 8, 24, 32)))) for start, size in blocks]
    native, pure = find_in_both(bytes(memory), blocks, 8 * cut)
    assert native == pure


class Directory:
    """A directory of blocks of malloc."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks, self.heaps = blocks, HeapParts()

    def ranges(self) -> list[Range]:
        return [Range(HEAP, HEAP + STRIDE * 24)]


class Quarks:
    def quark(self, number: int) -> str:
        return "g-io-error-quark" if number == 17 else "label"


@pytest.mark.parametrize("batch", [100, 5, 2])
def test_structures_of_the_program_before_those_of_glib(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Structures like a GError or a GString do not count as such when there are too many: 4 blocks begin with the number of a label, one
    with a string that is not in a slice, and 5 have a GError."""
    monkeypatch.setattr(structures, "BATCH", batch)
    memory = bytearray(STRIDE * 26)
    rows = [struct.pack("<IIQ", 18, 4, room(0))] * 4 + [struct.pack("<QQQ", room(0), 30, 128)] + [struct.pack("<IIQ", 17, 4, room(0))] * 5
    for number, words in enumerate(rows):
        memory[STRIDE * number : STRIDE * number + len(words)] = words
    memory[STRIDE * ROOM : STRIDE * ROOM + 4] = b"text"
    engine = graphs.native()
    blocks = engine.blocks(engine.arch, 8)
    blocks.append([*(here(number) for number in range(len(rows))), room(0)], [24] * len(rows) + [160], [State.IN_USE] * (len(rows) + 1))
    blocks.seal()
    target = Memory(FakeTarget({HEAP: bytes(memory)}))
    made = Structures(target, engine, cast(structures.Directory, Directory(blocks)), cast(GTypeNames, Quarks()), {}, Range(0, 0))
    assert list(made.find()) == [(number, "GError (g-io-error-quark)") for number in range(5, 10)]


@pytest.mark.parametrize("count", [1, 63, 64, 200])
def test_quarks_end_at_the_last_text(count: int) -> None:
    """Memory behind the array of quarks has the address of a text, too."""
    texts, quarks = 0x100000, 0x200000
    words = [0, *(texts for _ in range(count)), *[0] * (254 - count), texts]
    names = GTypeNames(FakeTarget({texts: b"io-error-quark\0".ljust(64, b"\0"), quarks: struct.pack("<256Q", *words)}))
    names.__dict__["_quarks"] = quarks
    assert [bool(names.quark(number)) for number in (-1, 0, 1, count, count + 1, 255)] == [False, False, True, True, False, False]
