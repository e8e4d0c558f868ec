"""pymalloc in handmade images: every layout of its variables, statistics, and corrupt metadata."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import graphs
import pytest
from fake import FakeTarget

from findleaks.allocators import pymalloc
from findleaks.allocators.base import Problem
from findleaks.allocators.nesting import Slabs, Walk, nest_heaps
from findleaks.allocators.pymalloc import pools as pools_of
from findleaks.allocators.pymalloc.instance import Pymalloc
from findleaks.allocators.pymalloc.layout import POOLS, VARIABLES, Variables
from findleaks.allocators.pymalloc.locate import ArenaObject
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.target.arch import X86_64
from findleaks.target.base import Module

ENGINES = [graphs.native, graphs.pure]
DATA, ARRAY, ARENA = 0x500000, 0x7F1000001000, 0x7F2000004000
DATA_SIZE = 0x80000
TYPE, POINTER = DATA + 0x100, DATA + 0x60000
HEADER = 48


@dataclass
class Image:
    """The data of an interpreter, its array of arena_objects, and one arena with some pools in use. `pools`, by pool
    number: size class (-1 if the pool is free again), number of blocks ever handed out, and the freed blocks in the
    order of their list."""

    variables: Variables = VARIABLES[0]
    pool: int = 1 << 14
    pools: list[tuple[int, int, list[int]]] = field(
        default_factory=lambda: [(2, 10, [3, 7]), (31, 4, []), (-1, 0, []), (0, 1020, [1019, 0])]
    )
    target: FakeTarget = field(init=False)

    def __post_init__(self) -> None:
        size = 64 * self.pool
        memory = {DATA: bytes(DATA_SIZE), ARRAY: bytes(16 * 48), ARENA: bytes(size)}
        module = Module("/usr/bin/python3", 0, DATA, DATA + DATA_SIZE)
        self.target = FakeTarget(memory, names={DATA: "/usr/bin/python3"}, modules=[module])
        write = self.target.write_word
        write(TYPE + 8, TYPE)
        for number in range(60):
            write(DATA + 0x1000 + 64 * number + 8, TYPE)
        self.target.write(DATA + 0x3000, b"3.13.5 (main, Jun 25 2025, 18:55:22) [GCC 14.2.0]\0")
        for name, value in (("unused", ARRAY + 48), ("usable", ARRAY), ("current", 1), ("times", 5), ("highwater", 3)):
            write(POINTER + 8 * getattr(self.variables, name), value)
        write(POINTER, ARRAY)
        self.target.write(POINTER + 8 * self.variables.maximum, struct.pack("<I", 16))
        spare = [number for number, (index, _, _) in enumerate(self.pools) if index < 0]
        free = 64 - len(self.pools) + len(spare)
        write(POINTER + 8 * (self.variables.last + free), ARRAY)
        head = ARENA + spare[0] * self.pool if spare else 0
        self.target.write(ARRAY, struct.pack("<QQIIQQQ", ARENA, ARENA + len(self.pools) * self.pool, free, 64, head, 0, 0))
        for number in range(1, 16):
            write(ARRAY + 48 * number + 32, ARRAY + 48 * (number + 1) if number < 15 else 0)
        for number, (index, carved, freed) in enumerate(self.pools):
            if index >= 0:
                self._pool(ARENA + number * self.pool, index, carved, freed)

    def _pool(self, at: int, index: int, carved: int, freed: list[int]) -> None:
        size = 16 * (index + 1)
        ring = DATA + 0x5000 + 16 * index  # for this pool only
        blocks = [at + HEADER + size * number for number in freed]
        words = (carved - len(freed), blocks[0] if blocks else 0, ring, ring)
        self.target.write(at, struct.pack("<4Q4I", *words, 0, index, HEADER + carved * size, self.pool - size))
        self.target.write_word(ring + 16, at)
        self.target.write_word(ring + 24, at)
        for block, following in zip(blocks, [*blocks[1:], 0]):
            self.target.write_word(block, following)

    def find_allocators(self, engine: type) -> list[Pymalloc]:
        return list(pymalloc.find(self.target, engine(), []))  # type: ignore[arg-type]

    def read(self, engine: type) -> tuple[Pymalloc, Blocks]:
        """Return the allocator, with its heaps walked and the blocks sealed."""
        (allocator,) = self.find_allocators(engine)
        problems: list[Problem] = []
        blocks = engine().blocks(X86_64, 16)
        heaps = [(heap, allocator) for heap in allocator.heaps()]
        Walk(blocks, engine(), self.target, Slabs(heaps, problems), problems).walk(nest_heaps(heaps, problems))
        blocks.seal()
        allocator.mark_blocks(blocks)
        assert problems == []
        return allocator, blocks


@pytest.mark.parametrize("engine", ENGINES)
class TestWhole:
    @pytest.mark.parametrize("variables", VARIABLES, ids=lambda v: f"{v.name} {v.last}")
    @pytest.mark.parametrize("pool", [1 << 14, 1 << 12])
    def test_blocks_statistics_and_totals(self, engine: type, variables: Variables, pool: int) -> None:
        full = (pool - HEADER) // 16
        image = Image(variables, pool, [(2, 10, [3, 7]), (31, 4, []), (-1, 0, []), (0, full, [full - 1, 0])])
        allocator, blocks = image.read(engine)
        assert allocator.problems == [] and list(allocator.verify(blocks)) == []
        assert allocator.version == "3.13.5" and allocator.where == "python3"
        room = {index: (pool - HEADER) // (16 * (index + 1)) for index in (0, 2, 31)}
        rows = {c.own["class"]: (c.size, c.in_use, c.cached, c.free, c.memory) for c in allocator.caches(blocks)}
        expected = {0: (16, full - 2), 2: (48, 8), 31: (512, 4)}
        assert rows == {i: (size, used, 0, room[i] - used, pool) for i, (size, used) in expected.items()}
        states = {blocks.address(i): blocks.state(i) for i in range(len(blocks))}
        used = {ARENA + HEADER + 48 * i for i in range(10) if i not in (3, 7)} | {ARENA + pool + HEADER + 512 * i for i in range(4)}
        used |= {ARENA + 3 * pool + HEADER + 16 * i for i in range(1, full - 1)}
        assert {address for address, state in states.items() if state == State.IN_USE} == used
        assert len(states) == sum(room.values())
        counted = allocator.read_counters()
        assert [counted[f"arenas {n}"] for n in ("allocated total", "reclaimed", "highwater mark", "allocated current")] == [5, 4, 3, 1]
        assert counted["unused pools"] == 61
        parts = ("in allocated blocks", "in available blocks", "in unused pools")
        lost = ("pool headers", "quantization", "arena alignment")
        assert sum(counted[f"bytes {p}"] for p in parts) + sum(counted[f"bytes lost to {p}"] for p in lost) == 64 * pool
        assert allocator.locate(ARENA + 8) == "header of a pool of 48-byte blocks in arena 0"
        assert allocator.locate(ARENA + 2 * pool) == "free pool of arena 0"
        assert allocator.locate(ARRAY + 49) == "arena_object 1"

    def test_no_interpreter_no_allocator(self, engine: type) -> None:
        image = Image()
        image.target.write_word(TYPE + 8, 0)
        assert image.find_allocators(engine) == []

    def test_no_arena_no_allocator(self, engine: type) -> None:
        image = Image()
        image.target.write_word(POINTER, 0)
        image.target.write(ARRAY, bytes(16 * 48))
        assert image.find_allocators(engine) == []

    def test_variables_in_an_unknown_order(self, engine: type) -> None:
        """The blocks are found. A warning says that there are no counters."""
        image = Image()
        image.target.write_word(POINTER + 8, 0)
        allocator, blocks = image.read(engine)
        assert sum(cache.in_use for cache in allocator.caches(blocks)) == 8 + 4 + 1018
        assert [problem.corrupt for problem in allocator.problems] == [False]
        assert "arenas allocated total" not in allocator.read_counters()


@pytest.mark.parametrize("engine", ENGINES)
class TestCorrupt:
    """Damage is reported with its address, and the rest is read."""

    def wrong(self, image: Image, engine: type, words: str) -> tuple[Pymalloc, Blocks]:
        allocator, blocks = image.read(engine)
        reported = [problem.what for problem in (*allocator.problems, *allocator.verify(blocks))]
        assert any(words in what for what in reported), reported
        return allocator, blocks

    @pytest.mark.parametrize("offset", [32, 36, 40, 44])
    def test_a_pools_header(self, engine: type, offset: int) -> None:
        image = Image()
        pool = ARENA + (1 << 14)
        image.target.write(pool + offset, b"\x77\x66\x55\x44")
        allocator, blocks = self.wrong(image, engine, f"pool {pool:#x} of arena 0: its header is invalid")
        assert blocks.find(pool + HEADER) == -1
        assert sum(cache.in_use for cache in allocator.caches(blocks)) == 8 + 1018
        (heap,) = allocator.heaps()
        assert [(r.start, r.end) for r in heap.foreign] == [(pool, pool + (1 << 14))]

    def test_more_blocks_in_use_than_handed_out(self, engine: type) -> None:
        image = Image()
        image.target.write_word(ARENA, 11)
        self.wrong(image, engine, "its header is invalid")

    def test_a_list_of_freed_blocks_with_a_cycle(self, engine: type) -> None:
        image = Image()
        image.target.write_word(ARENA + HEADER + 48 * 7, ARENA + HEADER + 48 * 3)
        self.wrong(image, engine, f"pool {ARENA:#x}: of its 2 freed blocks 2 are found")

    def test_an_overwritten_list_of_freed_blocks(self, engine: type) -> None:
        image = Image()
        image.target.write(ARENA + HEADER + 48 * 3, b"overrun!")
        _, blocks = self.wrong(image, engine, f"pool {ARENA:#x}: of its 2 freed blocks 1 are found")
        assert blocks.state(blocks.find(ARENA + HEADER + 48 * 3)) == State.FREE
        assert blocks.state(blocks.find(ARENA + HEADER + 48 * 7)) == State.IN_USE

    def test_a_list_that_leaves_its_pool(self, engine: type) -> None:
        image = Image()
        image.target.write_word(ARENA + HEADER + 48 * 3, ARENA + (1 << 14) + HEADER)
        self.wrong(image, engine, f"the list leaves the pool, to {ARENA + (1 << 14) + HEADER:#x}")

    def test_a_list_with_an_invalid_block(self, engine: type) -> None:
        image = Image()
        image.target.write_word(ARENA + HEADER + 48 * 3, ARENA + HEADER + 48 * 7 + 8)
        self.wrong(image, engine, f"its list of freed blocks has {ARENA + HEADER + 48 * 7 + 8:#x}, where no block begins")

    def test_a_free_pool_too_many(self, engine: type) -> None:
        image = Image()
        image.target.write(ARRAY + 16, struct.pack("<I", 63))
        self.wrong(image, engine, "counts 63 free pools; 61 were found")

    def test_links_of_a_pool(self, engine: type) -> None:
        image = Image()
        image.target.write_word(ARENA + 16, ARENA + (1 << 14))
        self.wrong(image, engine, f"pool {ARENA:#x} has free blocks, but its nextpool {ARENA + (1 << 14):#x} does not link back")

    def test_free_pools_in_a_cycle(self, engine: type) -> None:
        image = Image()
        image.target.write_word(ARENA + 2 * (1 << 14) + 16, ARENA + 2 * (1 << 14))
        self.wrong(image, engine, f"its list of free pools has a cycle at {ARENA + 2 * (1 << 14):#x}")

    def test_a_free_pool_that_is_in_use(self, engine: type) -> None:
        image = Image()
        image.target.write_word(ARRAY + 24, ARENA)
        self.wrong(image, engine, f"its list of free pools has {ARENA:#x}, which holds blocks in use")


def test_pools_end_inside_their_arena() -> None:
    """An arena that is not aligned to a pool has one pool less. A damaged arena may claim otherwise, and the memory
    after it belongs to other code."""
    size = 4096
    arena = ArenaObject(0, ARENA + 16, ARENA + 80 * size, 0, POOLS, 0)
    assert pools_of.carve_pools(arena, size) == range(ARENA + size, ARENA + POOLS * size, size)
    assert len(pools_of.carve_pools(arena._replace(address=ARENA), size)) == POOLS
