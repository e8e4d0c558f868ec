"""The variable from which most of the memory of an APR pool is reachable."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Optional

from fake import FakeTarget

from findleaks.allocators.apr_nodes import NODE, Node
from findleaks.allocators.memory import Memory
from findleaks.engine import load
from findleaks.runtimes.apr import holders
from findleaks.runtimes.apr.holders import Holder, PoolObjects, Reference, find_spans, list_pointers
from findleaks.runtimes.apr.pools import FIRST, Pool

START, SIZE, COUNT, EACH = 0x100000, 8192, 40, 400
MODULE = "mod_sessions.so"


def make_process(first: int, *, backward: bool) -> tuple[Pool, FakeTarget]:
    """Return a pool of COUNT nodes, and a process with this pool. The first node contains the pool's structure. All nodes contain objects
    of EACH bytes. From offset `first` on, the objects are a list: each refers to the previous one (`backward`), or to the next one."""
    data = bytearray(SIZE * COUNT)
    pool, begin = START + NODE, START + NODE + 8 * (FIRST + 1)
    struct.pack_into("<Q", data, pool + 8 * FIRST - START, begin)
    struct.pack_into("<Q", data, NODE, START + SIZE)  # a word of the pool's structure
    nodes = [Node(START + SIZE * number, START + SIZE * (number + 1) - 16, START + SIZE * (number + 1)) for number in range(COUNT)]
    objects = [at for node in nodes for at in range(node.start + NODE if node.start > START else begin + first, node.free - EACH, EACH)]
    for one, other in zip(objects, objects[1:]):
        place, value = (other, one) if backward else (one, other)
        struct.pack_into("<Q", data, place - START, value)
    return Pool(pool, "pconf", 0, 0, 0, nodes), FakeTarget({START: bytes(data)})


def find(pool: Pool, target: FakeTarget, references: Sequence[tuple[str, int]], module: str = MODULE) -> Optional[Holder]:
    spans = find_spans(Memory(target), pool)
    found = list_pointers(target, load.load(target.arch), spans)
    assert found is not None
    return PoolObjects(spans, *found, [Reference(name, module, value) for name, value in references]).find_holder()


def ends(pool: Pool, first: int) -> tuple[int, int]:
    """Return the addresses of the first and the last object of the list."""
    last = pool.nodes[-1]
    begin = pool.address + 8 * (FIRST + 1) + first
    return begin, range(last.start + NODE, last.free - EACH, EACH)[-1]


def test_lists_in_both_directions() -> None:
    """Another variable refers to an object that is before the list in the first node."""
    for backward in (False, True):
        pool, target = make_process(800, backward=backward)
        begin, last = ends(pool, 800)
        found = find(pool, target, [("settings", begin - 800), ("sessions", last if backward else begin)])
        assert found is not None and found.name == f"sessions ({MODULE}, data)"
        assert 0.9 * SIZE * COUNT < found.bytes < SIZE * COUNT


def test_several_variables() -> None:
    """If several variables of one file lead to the objects, the file is named. If variables of several files do, no name is given."""
    pool, target = make_process(800, backward=True)
    _, last = ends(pool, 800)
    found = find(pool, target, [("first", last), ("newest", last)])
    assert found is not None and found.name == f"variables of {MODULE}"
    spans = find_spans(Memory(target), pool)
    pointers = list_pointers(target, load.load(target.arch), spans)
    assert pointers is not None
    both = [Reference("sessions", MODULE, last), Reference("config", "apache2", last)]
    assert PoolObjects(spans, *pointers, both).find_holder() is None


def test_no_variable() -> None:
    """Pointers to the pool's own structure and to unused ends of nodes are not pointers to objects."""
    pool, target = make_process(800, backward=True)
    begin, _ = ends(pool, 800)
    assert find(pool, target, [("settings", begin - 800), ("tail", START + SIZE - 8), ("pool", pool.address)]) is None


def test_hostile_nodes() -> None:
    """Memory that is part of several overlapping nodes is read once."""
    pool, target = make_process(0, backward=True)
    spans = find_spans(
        Memory(target), pool._replace(nodes=[*pool.nodes, *(Node(START + 8 * n, START + SIZE, START + SIZE) for n in range(99))])
    )
    assert sum(end - start for start, end in spans) <= SIZE * COUNT
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:]))


def test_many_pointers() -> None:
    count = holders.MOST_POINTERS + 1
    target = FakeTarget({START: struct.pack("<Q", START + NODE) * (count + NODE)})
    assert list_pointers(target, load.load(target.arch), [(START + NODE, START + NODE + 8 * count)]) is None
