"""Heaps inside blocks of other heaps: each block belongs to exactly one allocator. Random nestings are compared with a slow oracle."""

from __future__ import annotations

import random
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import graphs
import pytest
from fake import FakeTarget
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.allocators import directory
from findleaks.allocators.base import Allocator, Heap, Problem
from findleaks.allocators.heaps import SlabHeap
from findleaks.allocators.nesting import Slabs, Walk, nest_heaps
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State, run_states
from findleaks.target.arch import X86_64

ENGINES = [graphs.native, graphs.pure]
LOW, HIGH = 0x10000, 0x40000


class SimpleAllocator(Allocator):
    """An allocator with given heaps and blocks: {(start, end): [(start, size, state), …]}. `slabs`: they form one heap of slabs."""

    version = where = ""
    granule = 16

    def __init__(self, name: str, nested: bool, heaps: dict[tuple[int, int], list[tuple[int, int, State]]], slabs: bool = False) -> None:
        self.name, self.nested, self.slabs = name, nested, slabs
        self.problems: list[Problem] = []
        self.contents = dict(sorted(heaps.items()))
        self._heaps = [Heap(start, end, "heap", self._walker(blocks)) for (start, end), blocks in heaps.items()]
        if slabs and heaps:
            bounds = array("Q", (at for both in self.contents for at in both))
            runs = array("Q")
            for blocks in self.contents.values():
                for start, size, state in blocks:
                    runs.extend((start, 0, size, 1, 0, run_states(state, state)))
            self._heaps = [SlabHeap.of("heap", bounds, runs)]

    @staticmethod
    def _walker(contents: list[tuple[int, int, State]]):  # type: ignore[no-untyped-def]
        def walk_heap(blocks: Blocks) -> None:
            blocks.append([start for start, _, _ in contents], [size for _, size, _ in contents], [state for _, _, state in contents])

        return walk_heap

    def heaps(self) -> Sequence[Heap]:
        return self._heaps


def make_blocks(rng: random.Random, start: int, end: int) -> list[tuple[int, int, State]]:
    """Return blocks from `start` to `end` with gaps. Most blocks are in use, and many are large."""
    made = []
    at = start + 16 * rng.randrange(3)
    while at + 16 <= end:
        size = min(end - at, 16 * rng.choice((1, 2, 5, 40, 200, 600)) - rng.choice((0, 8)))
        made.append((at, size, rng.choice((State.IN_USE, State.IN_USE, State.IN_USE, State.CACHED, State.FREE))))
        at = (at + size + 15) // 16 * 16 + 16 * rng.choice((0, 1, 4))
    return made


def random_allocators(seed: int) -> list[SimpleAllocator]:
    """Return up to four allocators: the heaps of one are not nested; those of the others are inside its blocks, inside
    their blocks, or at wrong addresses."""
    rng = random.Random(seed)
    outer: dict[tuple[int, int], list[tuple[int, int, State]]] = {}
    at = LOW
    while at < HIGH:
        end = min(HIGH, at + 0x1000 * rng.randrange(1, 12))
        outer[at, end] = make_blocks(rng, at, end)
        at = end + 0x1000 * rng.choice((0, 0, 1, 3))
    made = [SimpleAllocator("outer", False, outer)]
    for number in range(rng.randrange(1, 4)):
        around = rng.choice([one for one in made if not one.slabs]).contents
        heaps: dict[tuple[int, int], list[tuple[int, int, State]]] = {}
        for contents in around.values():
            for start, size, _ in contents:
                if size >= 0x200 and rng.random() < 0.5:
                    low, high = sorted((rng.randrange(0, size // 16) * 16, rng.randrange(0, size // 16 + 1) * 16))
                    if rng.random() < 0.1:
                        high += 16 * rng.randrange(400)  # the heap extends beyond the block
                    if high > low:
                        heaps[start + low, start + high] = make_blocks(rng, start + low, start + high)
        last = 0
        for start, end in sorted(heaps):  # the heaps of one allocator are disjoint
            if start < last:
                del heaps[start, end]
            last = max(last, end if (start, end) in heaps else 0)
        slabs = rng.random() < 0.5
        if slabs and rng.random() < 0.2:  # outside of all heaps, or partly inside one
            start = rng.randrange(LOW // 16, HIGH // 16) * 16
            if all(start >= e or start + 0x400 <= s for s, e in heaps):
                heaps[start, start + 0x400] = make_blocks(rng, start, start + 0x400)
        made.append(SimpleAllocator(f"inner{number}", True, heaps, slabs))
    return made


@dataclass
class Oracle:
    """Compute by definition which heap owns each granule, and the blocks: the outermost heaps first, then each inner
    heap compared with the heap around it."""

    allocators: Sequence[SimpleAllocator]

    def compute(self) -> tuple[dict[int, tuple[int, State]], dict[int, str], int]:
        """Return the blocks (address: size, state), the owner of each granule, and how many heaps are left out."""
        heaps = [(s, e, a) for a in self.allocators if not a.slabs for s, e in a.contents]
        heaps.sort(key=lambda one: (one[0], -one[1], one[2].nested))
        accepted: list[tuple[int, int, SimpleAllocator, int]] = []  # the last field is the number of the heap around, or -1
        out = 0
        for start, end, allocator in heaps:
            around = [n for n, (s, e, _, _) in enumerate(accepted) if s <= start < e]
            if not around:
                accepted.append((start, end, allocator, -1))
                continue
            _, e, other, _ = accepted[around[-1]]
            if allocator.nested and end <= e and other is not allocator:
                accepted.append((start, end, allocator, around[-1]))
            else:
                out += 1
        blocks: dict[int, tuple[int, State]] = {}
        owner: dict[int, str] = {}
        kept: list[tuple[int, int, SimpleAllocator]] = []

        def place(number: int) -> None:
            nonlocal out
            start, end, allocator, _ = accepted[number]
            kept.append((start, end, allocator))
            own = {b: (size, state) for b, size, state in allocator.contents[start, end]}
            owner.update(dict.fromkeys(range(start, end, 16), allocator.name))
            inside = []
            for child, (s, e, _, around) in enumerate(accepted):
                if around != number:
                    continue
                holding = [b for b, (size, state) in own.items() if b <= s and e <= b + size and state == State.IN_USE]
                if holding:
                    inside.append((child, holding[0], s))
                else:
                    out += 1  # including the heaps in it, which are not examined
            for block in {b for _, b, _ in inside}:  # if a block contains several heaps, the part before the first heap stays a block
                del own[block]
                first = min(s for _, b, s in inside if b == block)
                if first > block:
                    own[block] = (first - block, State.METADATA)
            blocks.update(own)
            for child, _, _ in inside:
                place(child)

        for number, (_, _, _, around) in enumerate(accepted):
            if around == -1:
                place(number)
        return blocks, owner, out + self.place_slabs(kept, blocks, owner)

    def place_slabs(
        self, kept: Sequence[tuple[int, int, SimpleAllocator]], blocks: dict[int, tuple[int, State]], owner: dict[int, str]
    ) -> int:
        """Add the slabs to blocks and owners, and return how many are left out: all that overlap a lower one, and those that are neither
        apart nor in a block in use of the innermost heap around, which contains no heap."""
        slabs = [(s, e, number, a) for number, a in enumerate(self.allocators) if a.slabs for s, e in a.contents]
        out = last = 0
        for start, end, _, allocator in sorted(slabs, key=lambda one: one[:3]):
            if start < last:
                out += 1
                continue
            last = end
            around = max((one for one in kept if one[0] <= start < one[1]), default=None, key=lambda one: (one[0], -one[1]))
            inside = [one for one in kept if start < one[0] < end]
            if around is None:
                holding = [] if inside else [(start, 0)]
            else:
                heap = around[2].contents[around[:2]]
                holding = [(b, z) for b, z, state in heap if b <= start and end <= b + z and state == State.IN_USE]
                holding = [(b, z) for b, z in holding if not any(b <= s < b + z and (s, e) != around[:2] for s, e, _ in kept)]
            if not holding:
                out += 1
                continue
            block, _ = holding[0]
            if around is not None and blocks.get(block, (0, State.FREE))[1] == State.IN_USE and owner[block] == around[2].name:
                del blocks[block]
                if start > block:
                    blocks[block] = (start - block, State.METADATA)
            blocks.update({b: (size, state) for b, size, state in allocator.contents[start, end]})
            owner.update(dict.fromkeys(range(start, end, 16), allocator.name))
        return out


@pytest.mark.parametrize("engine", ENGINES)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_each_block_belongs_to_one_allocator(engine: type, seed: int) -> None:
    allocators = random_allocators(seed)
    made, problems, walk = build(engine(), allocators)
    blocks, owner, out = Oracle(allocators).compute()
    found = {made.address(i): (made.size(i), made.state(i)) for i in range(len(made))}
    assert found == blocks
    parts = list(walk.parts)
    assert all(before.end <= after.start for before, after in zip(parts, parts[1:]))
    assert {g: p.allocator.name for p in parts for g in range(p.start, p.end, 16)} == owner
    further = [re.match(r"and (\d+) more", problem.what) for problem in problems]
    assert sum(int(one[1]) if one else 1 for one in further) == out
    assert all(not problem.corrupt and "left out" in problem.what for problem in problems)
    for allocator in allocators:  # the parts that a heap returns are the parts in the tree
        for heap in allocator.heaps():
            mine = [(p.start, p.end) for p in parts if p.heap is heap]
            assert not mine or mine == [(s, e) for s, e in heap.parts() if e > s]
            inside = [state for block, (_, state) in blocks.items() if any(s <= block < e for s, e in mine)]
            assert not mine or [one.blocks for one in heap.count(made)] == [inside.count(state) for state in State]


def build(engine: Engine, allocators: Sequence[SimpleAllocator]) -> tuple[Blocks, list[Problem], Walk]:
    problems: list[Problem] = []
    blocks = engine.blocks(X86_64, 16)
    heaps = [(heap, allocator) for allocator in allocators for heap in allocator.heaps()]
    walk = Walk(blocks, engine, FakeTarget({LOW: bytes(16)}), Slabs(heaps, problems), problems)
    walk.walk(nest_heaps(heaps, problems))
    blocks.seal()
    return blocks, problems, walk


@pytest.mark.parametrize("engine", ENGINES)
class TestDirectory:
    def test_owners_totals_and_claims(self, engine: type, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two handmade cases: an inner heap in the middle of a block, and an inner heap that fills its block."""
        used = State.IN_USE
        outer = SimpleAllocator(
            "outer", False, {(0x1000, 0x3000): [(0x1010, 0x800, used), (0x1820, 0x100, used), (0x2000, 0x200, State.FREE)]}
        )
        inner = SimpleAllocator(
            "inner", True, {(0x1100, 0x1400): [(0x1100, 16, used), (0x1200, 32, State.FREE)], (0x1820, 0x1920): [(0x1830, 64, used)]}
        )
        finders = {"outer": outer, "inner": inner}
        modules = {name: type("Module", (), {"find": staticmethod(lambda t, e, taken, a=a: [a])}) for name, a in finders.items()}
        monkeypatch.setattr(directory, "FINDERS", tuple(modules))
        monkeypatch.setattr(directory.importlib, "import_module", modules.__getitem__)
        made = directory.build_directory(FakeTarget({0x1000: bytes(0x2000)}), engine())
        assert made.problems == []
        assert [(o.allocator.name, o.start, o.end) for o in made.heaps] == [
            ("outer", 0x1000, 0x1100),
            ("inner", 0x1100, 0x1400),
            ("outer", 0x1400, 0x1820),
            ("inner", 0x1820, 0x1920),
            ("outer", 0x1920, 0x3000),
        ]
        blocks = made.blocks
        reported = [(blocks.address(i), blocks.size(i), blocks.state(i)) for i in range(len(blocks))]
        assert reported == [
            (0x1010, 0xF0, State.METADATA),
            (0x1100, 16, used),
            (0x1200, 32, State.FREE),
            (0x1830, 64, used),
            (0x2000, 0x200, State.FREE),
        ]
        owners = {address: made.owner(address) for address in (0xFFF, 0x1000, 0x10FF, 0x1100, 0x13FF, 0x1400, 0x1900, 0x2FFF, 0x3000)}
        names = [owned.allocator.name if owned else "" for owned in owners.values()]
        assert names == ["", "outer", "outer", "inner", "inner", "outer", "inner", "outer", ""]
        assert sum(end - start for a in (outer, inner) for start, end in made.of(a)) == 0x2000
        assert {(0x1000, 0x3000), (0x1100, 0x1400), (0x1820, 0x1920)} == {tuple(r) for r in made.list_claimed()}


@pytest.mark.parametrize("engine", ENGINES)
def test_slabs_and_runs_that_do_not_fit(engine: type) -> None:
    """ValueError for runs outside of slabs, and for slabs that overlap."""
    one = engine()
    outer, blocks = one.blocks(X86_64, 16), one.blocks(X86_64, 16)
    outer.append([0x1000], [0x1000], [State.IN_USE])
    outer.seal()
    run = [0x1100, 16, 16, 4, 0, run_states(State.IN_USE, State.IN_USE)]
    for slabs, runs in (([], run), ([0x1110, 0x1200], run), ([0x1100, 0x1130], run), ([0x1100, 0x1200, 0x11F0, 0x1300], []), ([5, 5], [])):
        with pytest.raises(ValueError, match="slab"):
            blocks.append_nested(outer, 0, 1, array("Q", slabs), array("Q", runs))
    assert list(blocks.append_nested(outer, 0, 1, array("Q", [0x1100, 0x1140, 0x1FF0, 0x2010]), array("Q", run))) == [1]
    blocks.seal()
    assert [blocks.address(at) for at in range(len(blocks))] == [0x1000, 0x1100, 0x1110, 0x1120, 0x1130]
    assert [total.blocks for total in blocks.totals_in(array("Q", [0x1000, 0x1110, 0x1120, 0x1121]))] == [2, 0, 0, 1]
