"""Damaged or malicious lists of pools: each node is read a limited number of times. Also the pool that `verdict` names."""

from __future__ import annotations

import struct
from array import array
from types import SimpleNamespace
from typing import Any, Optional

import graphs
import pytest
from fake import FakeTarget

from findleaks.allocators.memory import Memory
from findleaks.engine.terms import State
from findleaks.errors import Interrupted
from findleaks.runtimes.apr import pools as apr
from findleaks.runtimes.glib import contexts as glib
from findleaks.runtimes.perl.shared_keys import list_keys
from findleaks.runtimes.pool_tree import PoolNode, Words, add_up, find_large_pool
from findleaks.runtimes.postgresql import contexts as postgresql
from findleaks.target.base import Range

POOLS, NODES = 0x100000, 0x800000
COUNT, LENGTH = 200, 3000
WORDS = Words("pool", "pool", "pools", "all pools")


class CountingMemory(Memory):
    """Memory that counts how often it is read."""

    reads = 0

    def word(self, address: int) -> Optional[int]:
        self.reads += 1
        return super().word(address)

    def words(self, address: int, count: int) -> Optional[tuple[int, ...]]:
        self.reads += 1
        return super().words(address, count)

    def members(self, address: int, kinds: str) -> Optional[tuple[int, ...]]:
        self.reads += 1
        return super().members(address, kinds)


def make_siblings_of_apr() -> CountingMemory:
    """Return 200 pools without a parent in one list. Each has a ring that leads to the same chain of 3,000 nodes."""
    nodes = bytearray(64 * (LENGTH + 1))
    for number in range(LENGTH):
        at = NODES + 64 * number
        struct.pack_into("<QQIIQQ", nodes, 64 * number, at + 64, 0, 0, 0, at + apr.NODE, at + 4096)
    made = bytearray(256 * COUNT)
    for number in range(COUNT):
        at = POOLS + 256 * number
        words = [0] * apr.WORDS
        words[apr.SIBLING] = at + 256 if number + 1 < COUNT else 0
        words[apr.ACTIVE], words[apr.SELF] = NODES, at - apr.NODE
        struct.pack_into(f"<{apr.WORDS}Q", made, 256 * number, *words)
    return CountingMemory(FakeTarget({POOLS: bytes(made), NODES: bytes(nodes)}))


def test_rings_of_apr_that_lead_to_one_chain() -> None:
    memory = make_siblings_of_apr()
    reader = apr.PoolReader(memory)
    found = list(reader.read(POOLS))
    assert [len(pool.nodes) for pool in found] == [LENGTH] + [0] * (COUNT - 1)
    assert len(reader.problems) == COUNT
    assert memory.reads < 2 * LENGTH + 10 * COUNT


def test_outermost_pools_of_apr_that_lead_to_one_another() -> None:
    """Reading begins at each outermost pool, and all outermost pools are in one list. Still, each pool is read once."""
    memory = make_siblings_of_apr()
    reader = apr.PoolReader(memory)
    found = [pool.address for number in range(COUNT) for pool in reader.read(POOLS + 256 * number)]
    assert found == [POOLS + 256 * number for number in range(COUNT)]
    assert memory.reads < 2 * LENGTH + 10 * COUNT


def test_first_nodes_of_apr() -> None:
    """Four pools without a parent in mappings. One node was reused, one is in the list of free nodes, and one has an unknown allocator."""
    size, allocator, unknown = 8192, POOLS, POOLS + 512
    starts = range(NODES, NODES + 4 * size, size)
    memory = {POOLS: struct.pack("<25Q", *(0,) * 5, starts[2], *(0,) * 19)}
    for number, at in enumerate(starts):
        following = 0 if number == 1 else at
        head = struct.pack("<QQIIQQ", following, at, 1, 0, at + 200, at + size)
        words = [0] * apr.WORDS
        words[apr.ALLOCATOR] = unknown if number == 3 else allocator
        words[apr.ACTIVE], words[apr.SELF] = at, at
        memory[at] = (head + struct.pack(f"<{apr.WORDS}Q", *words)).ljust(size, b"\0")
    blocks: Any = SimpleNamespace(
        of_sizes=lambda *_: array("Q"),
        find=lambda address: 0 if address == allocator else -1,
        address=lambda _: allocator,
        state=lambda _: State.IN_USE,
    )
    assert list(apr.find_by_nodes(Memory(FakeTarget(memory)), graphs.native(), blocks, [])) == [NODES + apr.NODE]


def test_lists_of_sources_of_glib_that_lead_to_one_chain() -> None:
    """A main context has 200 lists of sources. Each list leads to the same chain of 3,000 sources. The last source of the chain was
    destroyed."""
    size, table, variable = 128, POOLS + 0x10000, POOLS + 0x20000
    last = NODES + size * (LENGTH - 1)
    sources = bytearray(size * LENGTH)
    for number in range(LENGTH):
        at = NODES + size * number
        struct.pack_into("<QIIQ", sources, size * number + glib.CONTEXT, POOLS, 0, 0 if at == last else glib.ACTIVE, number + 1)
        struct.pack_into("<Q", sources, size * number + glib.NEXT, 0 if at == last else at + size)
    context = bytearray(64 * (COUNT + 2))
    struct.pack_into("<QQ", context, glib.REFERENCES, 1, table)
    struct.pack_into("<Q", context, glib.SOURCE_LISTS[0], POOLS + 128)
    for number in range(COUNT):
        at = POOLS + 64 * (number + 2)
        struct.pack_into("<5Q", context, 64 * (number + 2), at, at + 64 if number + 1 < COUNT else 0, 0, NODES, last)
    header = struct.pack("<QIIIIQQQQQQQ", 2, 2, 1, 2, 2, 3, table + 136, table + 128, table + 152, POOLS, POOLS, 1)
    hashes = struct.pack("<II4Q", 2, 3, 1, LENGTH, NODES, last)
    places = {POOLS: bytes(context), table: header.ljust(128, b"\0") + hashes, NODES: bytes(sources), variable: struct.pack("<Q", POOLS)}
    memory = CountingMemory(FakeTarget(places))
    (found,) = glib.Contexts(memory, [Range(variable, variable + 8)]).all
    assert (found.sources, found.destroyed, len(found.unowned)) == ([NODES], [last], COUNT + 2)
    assert memory.reads < 5 * LENGTH + 10 * COUNT


def test_rings_of_shared_keys_of_perl() -> None:
    """The third key leads back to the second one. Each key is listed once."""
    places = [NODES + 64 * number for number in range(3)]
    after = [places[1], places[2], places[1]]
    entries = b"".join(struct.pack("<QQQII", then, at + 24, 1, 0, 5).ljust(64, b"\0") for at, then in zip(places, after))
    found = list(list_keys(FakeTarget({NODES: entries}), graphs.native(), array("Q", places[:1])))
    assert found == [(at, at + 24) for at in places]


def test_free_lists_of_postgresql_that_lead_to_one_chain() -> None:
    """200 contexts. The free list of each leads to the same chain of 3,000 chunks."""
    chunks = bytearray(16 * (LENGTH + 1))
    for number in range(LENGTH):
        struct.pack_into("<QQ", chunks, 16 * number, 8, NODES + 16 * (number + 1) if number + 1 < LENGTH else 0)
    made = bytearray(512 * COUNT)
    for number in range(COUNT):
        at = POOLS + 512 * number
        words = [0] * postgresql.HEAD
        words[postgresql.PARENT] = POOLS if number else 0
        words[postgresql.FIRST] = at + 512 if not number else 0
        words[postgresql.NEXT] = at + 512 if 0 < number < COUNT - 1 else 0
        heads = [0] + [NODES] * postgresql.FREE_LISTS
        struct.pack_into(f"<{len(words) + len(heads)}Q", made, 512 * number, *words, *heads)
        struct.pack_into("<Q", made, 512 * number + postgresql.SET_BYTES[0], at)
    memory = CountingMemory(FakeTarget({POOLS: bytes(made), NODES: bytes(chunks)}))
    found = postgresql.ContextReader(memory).read(POOLS)
    assert len(found) == COUNT and sum(one.usage.chunks or 0 for one in found) == LENGTH
    assert memory.reads < 3 * LENGTH + 10 * COUNT


@pytest.mark.parametrize("damage", ["", "previous", "size", "unreadable"])
def test_lists_of_blocks_of_postgresql(damage: str) -> None:
    """A Bump context (PostgreSQL 17) with two blocks of 1,024 bytes. If a link or a size is damaged, the context is reported as one
    block of unknown use."""
    context, keeper, other = POOLS, POOLS + 112, NODES
    words = [0] * postgresql.HEAD
    words[postgresql.ALLOCATED] = 112 + 1024 + (1000 if damage == "size" else 1024)
    head = context + 96
    made = struct.pack("<14Q", *words, 0, 0, keeper, other).ljust(112, b"\0")
    first = struct.pack("<4Q", other, head, keeper + 1000, keeper + 1024)
    second = struct.pack("<4Q", keeper if damage == "previous" else head, keeper, other + 32, other + 1024)
    memory = {POOLS: made + first} if damage == "unreadable" else {POOLS: made + first, NODES: second}
    reader = postgresql.ContextReader(CountingMemory(FakeTarget(memory)))
    (one,) = reader.read(POOLS)
    if damage:
        assert (one.usage.free, one.usage.blocks) == (None, [POOLS]) and "unknown type" in reader.problems[0][1]
    else:
        assert one.usage == (2048, 24 + 992, 0, [other, keeper], 0) and not reader.problems


def test_cyclic_lists_of_postgresql() -> None:
    """All 4,096 lists of a damaged SlabContext (PostgreSQL 15) lead to one circular chain, which contains none of the list heads."""
    lists = 4096
    block = 24 + 64 * (lists - 1)
    words = [0] * postgresql.HEAD
    words[postgresql.ALLOCATED] = block
    made = struct.pack("<15QII", *words, 48, 64, block, 128 + 16 * lists, lists - 1, 0, 0)[:128]
    chain = b"".join(struct.pack("<QQ", NODES + 16 * (number - 1), NODES + 16 * ((number + 1) % LENGTH)) for number in range(LENGTH))
    target = FakeTarget({POOLS: made + struct.pack("<QQ", NODES, NODES) * lists, NODES: chain})
    memory = CountingMemory(target)
    (one,) = postgresql.ContextReader(memory).read(POOLS)
    assert one.usage.free is None and memory.reads < 4 * lists
    target.stop_after(2)  # one context, and one list
    with pytest.raises(Interrupted):
        postgresql.ContextReader(memory).read(POOLS)


@pytest.mark.parametrize("count", [1, 3])
def test_contexts_of_postgresql_of_unknown_type(count: int) -> None:
    """All contexts of unknown type are reported as one problem. Ctrl-C ends the walk."""
    made = bytearray(512 * count)
    for number in range(count):
        words = [0] * postgresql.HEAD
        words[postgresql.PARENT] = POOLS if number else 0
        words[postgresql.FIRST] = POOLS + 512 if count > 1 and not number else 0
        words[postgresql.NEXT] = POOLS + 512 * (number + 1) if 0 < number < count - 1 else 0
        struct.pack_into(f"<{len(words)}Q", made, 512 * number, *words)
    target = FakeTarget({POOLS: bytes(made)})
    reader = postgresql.ContextReader(Memory(target))
    assert len(reader.read(POOLS)) == count
    names = {1: "the memory context at 0x100000 has", 3: "3 memory contexts have"}
    ((address, what),) = reader.problems
    assert address == POOLS and what.startswith(f"{names[count]} an unknown type") and "0x100000" in what
    target.stop_after(0)
    with pytest.raises(Interrupted):
        postgresql.ContextReader(Memory(target)).read(POOLS)


def test_the_pool_with_most_memory() -> None:
    top = PoolNode(1, "top", None, 1000)
    server = PoolNode(2, "server", top, 1000)
    pools = [top, server, *(PoolNode(3 + number, "request", server, 1 << 20) for number in range(20)), PoolNode(99, "other", top, 1 << 20)]
    add_up(pools)
    (found,) = find_large_pool(top, WORDS)
    assert "the pool top > server and 20 pools below it have 20 MiB, 95 % of all pools" in found.title
    assert found.cause.startswith("By name: 20 of request (20 MiB)")


def test_the_outermost_pool_with_most_memory() -> None:
    """A program can allocate from the outermost pool itself."""
    top = PoolNode(1, "top", None, 10 << 20)
    pools = [top, *(PoolNode(2 + number, "request", top, 1 << 16) for number in range(20))]
    add_up(pools)
    (found,) = find_large_pool(top, WORDS)
    assert "the pool top and 20 pools below it have 11 MiB, 100 % of all pools" in found.title
    assert found.cause.startswith("By name: 1 of top (10 MiB)")


def test_a_deep_tree() -> None:
    """The path of a pool is shortened. Its figures are those of the whole tree."""
    pools = [PoolNode(0, "0", None, 0)]
    for number in range(1, 50_000):
        pools.append(PoolNode(number, str(number), pools[-1], 0))
    pools[-1].bytes = 9 << 20
    add_up(pools)
    assert (pools[0].below, pools[0].bytes_below) == (49_999, 9 << 20)
    (found,) = find_large_pool(pools[0], WORDS)
    assert "… > 49984" in found.title and len(found.title) < 300


def test_a_chain_of_pools_with_one_name() -> None:
    """PostgreSQL has a context for each of 4,000 nested savepoints. The finding is the outermost of them."""
    top = PoolNode(1, "top", None, 1 << 20)
    pools = [top, PoolNode(2, "other", top, 5 << 20), PoolNode(3, "transaction", top, 8 << 10)]
    for number in range(4000):
        pools.append(PoolNode(100 + number, "savepoint", pools[-1], 8 << 10))
    add_up(pools)
    (found,) = find_large_pool(top, WORDS)
    assert "the pool top > transaction > savepoint and 3,999 pools below it have 31 MiB, 83 % of all pools" in found.title
    assert found.cause == "By name: 4,000 of savepoint (31 MiB)."


def test_a_chain_of_pools_with_different_names() -> None:
    """The memory is spread equally. The finding is the innermost pool that still has half of it."""
    pools = [PoolNode(0, "0", None, 0)]
    for number in range(1, 101):
        pools.append(PoolNode(number, str(number), pools[-1], 1 << 20))
    add_up(pools)
    (found,) = find_large_pool(pools[0], WORDS)
    assert "49 > 50 > 51 and 49 pools below it have 50 MiB, 50 % of all pools" in found.title


def test_a_child_that_is_too_small_for_a_finding() -> None:
    """The finding is the parent, although most of the parent's memory belongs to the child."""
    top = PoolNode(1, "top", None, 1000)
    parent = PoolNode(2, "parent", top, 2 << 20)
    add_up([top, parent, PoolNode(3, "child", parent, 3 << 20)])
    (found,) = find_large_pool(top, WORDS)
    assert "the pool top > parent and 1 pool below it have 5.0 MiB" in found.title


def test_many_outermost_pools() -> None:
    """Many pools are not a finding, because no pool has most of the memory."""
    top = PoolNode(0, "", None, 0)
    add_up([top, *(PoolNode(1 + number, "pool", top, 1 << 20) for number in range(20))])
    assert find_large_pool(top, WORDS) == []


def test_small_pools_are_no_finding() -> None:
    top = PoolNode(1, "top", None, 1000)
    pools = [top, PoolNode(2, "small", top, 1 << 20)]
    add_up(pools)
    assert find_large_pool(top, WORDS) == []
