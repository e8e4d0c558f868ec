"""Deques and vectors: the unused parts of intact ones are found. Damaged, destroyed and used ones have none. Random
bytes cause no exception."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from typing import Any, cast

import graphs
import pytest
from containers import DATA, Building
from fake import thread

from findleaks.stale_slots import deques, sequences
from findleaks.stale_slots.heap_memory import HeapMemory, HeapPointers, SequenceStorage, wastes_little
from findleaks.stale_slots.near_blocks import MAX_BLOCKS, NearBlocks
from findleaks.target.base import Piece, Range

HEAD, CHUNK = DATA + 0x100, 512


def make_deque(made: Building, first: int, last: int, head: int = HEAD) -> list[int]:
    """Write a deque of 8-byte elements with 3 chunks, from element `first` of the first chunk to element `last` of the
    last chunk. Return the addresses of its map and chunks."""
    table = made.block(72)
    chunks = [made.block(CHUNK + 8, *(made.block(24) for _ in range(64))) for _ in range(3)]
    stale = made.block(CHUNK + 8)
    made.put(table, stale, stale, *chunks, stale, stale, stale)
    iterators = [
        (chunk + 8 * at, chunk, chunk + CHUNK, table + 8 * node) for chunk, at, node in ((chunks[0], first, 2), (chunks[2], last, 4))
    ]
    made.put(head, table, 8, *iterators[0], *iterators[1])
    return [table, *chunks]


def find_deques(made: Building, start: int = DATA, size: int = 1 << 14) -> tuple[HeapMemory, list[SequenceStorage]]:
    """Return the memory, and the deques whose heads are in [start, start + size). Check that both engines agree."""
    found = []
    for engine in (graphs.native(), graphs.pure()):
        session = made.session(engine)
        memory = HeapMemory(session.target, engine, session.directory.blocks, lambda: None)
        found.append((memory, list(deques.find_deques(memory, read_words(memory, start, size)))))
    assert found[0][1] == found[1][1]
    return found[0]


def find_owned(memory: HeapMemory, found: list[SequenceStorage]) -> list[SequenceStorage]:
    heaps = [Range(memory.low, memory.high)]
    return sequences.select_single_owners(memory, heaps, [*heaps, Range(DATA, DATA + 4096)], found)


def read_words(memory: HeapMemory, start: int, size: int) -> HeapPointers:
    data = memory.read(start, size)
    pairs = [(start + 8 * at, word) for at, word in enumerate(memory.arch.unpack(data)) if memory.low <= word < memory.high]
    return HeapPointers(Piece(start, memoryview(data)), array("Q", [one for one, _ in pairs]), [word for _, word in pairs])


@pytest.mark.parametrize(("first", "last"), [(0, 0), (5, 60), (63, 63), (0, 63)])
def test_both_ends_of_a_deque(first: int, last: int) -> None:
    made = Building()
    table, start, _, end = make_deque(made, first, last)
    memory, found = find_deques(made)
    assert [one.head for one in found] == [Range(HEAD, HEAD + 80)]
    unused = [Range(table, table + 16), Range(table + 40, table + 64), Range(start, start + 8 * first), Range(end + 8 * last, end + CHUNK)]
    assert found[0].unused == unused
    assert find_owned(memory, found) == found


DAMAGE: dict[str, Callable[[Building, list[int]], None]] = {
    "too many chunks for the map": lambda made, blocks: made.put(HEAD + 8, 20),
    "too few chunks": lambda made, blocks: made.put(HEAD + 8, 4),
    "first element outside": lambda made, blocks: made.put(HEAD + 16, blocks[1] + CHUNK),
    "first chunk of another size": lambda made, blocks: made.put(HEAD + 32, blocks[1] + CHUNK - 8),
    "another node": lambda made, blocks: made.put(HEAD + 40, blocks[0] + 24),
    "no multiple": lambda made, blocks: made.put(HEAD + 40, blocks[0] + 20),
    "last element outside": lambda made, blocks: made.put(HEAD + 48, blocks[3] - 8),
    "last node before the first": lambda made, blocks: made.put(HEAD + 72, blocks[0] + 8),
    "a chunk in the middle is none": lambda made, blocks: made.put(blocks[0] + 24, made.block(40)),
    "a chunk twice": lambda made, blocks: made.put(blocks[0] + 24, blocks[1]),
    "the map is not a block": lambda made, blocks: made.put(HEAD, blocks[0] + 8),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_one_wrong_field(name: str) -> None:
    made = Building()
    blocks = make_deque(made, 5, 60)
    DAMAGE[name](made, blocks)
    assert find_deques(made)[1] == []


def test_a_deque_with_the_map_of_another_is_ignored() -> None:
    """The old head of a destroyed deque refers to a map that belongs to another deque now."""
    made = Building()
    table = make_deque(made, 5, 60)[0]
    memory, found = find_deques(made)
    for where in (HEAD + 0x200, made.block(40)):
        made.put(where, table)
        memory, found = find_deques(made)
        assert find_owned(memory, found) == []
        made.put(where, 0)


def test_a_deque_in_use_by_a_thread_is_ignored() -> None:
    made = Building()
    blocks = make_deque(made, 5, 60)
    memory, found = find_deques(made)
    assert not sequences.is_busy(memory, found[0])
    for address in (HEAD + 16, blocks[1] + 8, blocks[3] + 480):
        target = cast(Any, memory.target)
        target._threads = [thread(77, registers={"rdi": address})]
        fresh = HeapMemory(memory.target, memory.engine, memory.blocks, memory.poll)
        assert sequences.is_busy(fresh, found[0])


def test_other_users_of_a_vector() -> None:
    """The vector's head and the owner of the block that begins with the head are not users. A pointer to the storage or
    to the head may be an iterator."""
    made = Building()
    storage, head = made.block(160), made.block(24)
    made.put(head, 20, storage, 5)
    made.put(DATA, head)
    found = SequenceStorage(Range(head, head + 24), [Range(storage, storage + 160)], [Range(storage + 40, storage + 160)])

    def other_user() -> bool:
        pointers = sequences.SeenPointers()
        for start, size in ((DATA, 4096), (head, 24)):
            pointers.add(read_words(find_deques(made)[0], start, size))
        return sequences.has_other_user(pointers, {head: DATA}, found)

    assert not other_user()
    for value in (storage, storage + 152, head, head + 8):
        made.put(DATA + 512, value)
        assert other_user()
    made.put(DATA + 512, storage + 160)  # the next block
    assert not other_user()


def test_near_blocks_are_bounded() -> None:
    """A long list is followed up to the limit, and a cyclic list once."""
    made = Building()
    nodes = [made.block(24) for _ in range(MAX_BLOCKS + 50)]
    for one, following in zip(nodes, [*nodes[1:], nodes[0]]):
        made.put(one, following)
    made.put(DATA, nodes[0])
    memory, _ = find_deques(made)
    near = NearBlocks(memory)
    near.add([read_words(memory, DATA, 64)])
    visited = list(near.visit())
    assert len(visited) == len(near.referrers) == MAX_BLOCKS
    assert near.referrers[nodes[0]] == DATA and near.referrers[nodes[9]] == nodes[8]


@pytest.mark.parametrize("seed", range(8))
def test_any_damage_is_handled(seed: int) -> None:
    rng = random.Random(seed)
    made = Building()
    blocks = make_deque(made, 5, 60)
    for _ in range(30):
        where = rng.choice((HEAD + 8 * rng.randrange(10), rng.choice(blocks) + 8 * rng.randrange(8)))
        made.put(where, rng.choice((0, 1, 1 << 63, (1 << 64) - 1, rng.choice(blocks), HEAD, rng.randrange(1 << 64))))
        memory, found = find_deques(made)
        find_owned(memory, found)


def test_waste_of_allocators() -> None:
    assert wastes_little(72, 64, 8) and wastes_little(640, 520, 8) and wastes_little(24, 1, 8)
    assert not wastes_little(63, 64, 8) and not wastes_little(640, 400, 8)
