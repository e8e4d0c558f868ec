"""Interior pointers by offset: the C engine and the reference engine agree, a rule has the effect that its definition
describes, and which offsets become rules."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace
from typing import Any

import graphs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.engine.contract import Engine, Graph
from findleaks.engine.interiors import LOW_BITS, Row, Rule
from findleaks.engine.terms import NO_BLOCK, Heuristic, Kind, State
from findleaks.graph.conventions import MIN_BLOCKS, MIN_SIZES, Sampled, _by_content, _sample_pointers, candidates, rules_of

MAX_OFFSET = (1 << 32) - 1


def mark(engine: Engine, heap: graphs.Heap, heuristics: Heuristic) -> Graph:
    blocks = engine.blocks(graphs.X86_64, heap.granule)
    blocks.append([b.start for b in heap.blocks], [b.size for b in heap.blocks], [b.state for b in heap.blocks])
    graph = engine.graph(blocks, heuristics, graphs.VTABLES, graphs.TYPES)
    for piece in heap.pieces:
        graph.scan_blocks(piece)
    for piece in heap.root_pieces:
        graph.scan_roots(piece)
    graph.root_words(heap.root_words)
    while not graph.mark(7):
        pass
    return graph


def find_all(engine: Engine, heap: graphs.Heap, heuristics: Heuristic, choose: Any, budget: int) -> dict[str, Any]:
    """Return all results about interior pointers. `choose` makes rules of the rows."""
    graph = mark(engine, heap, heuristics | Heuristic.AUTO)
    before = bytes(graph.kinds())
    interiors = graph.interiors()
    keys, done = interiors.keys(budget)
    while not done:
        more, done = interiors.keys(budget)
        keys += more
    distinct = engine.sum_by_value(keys, array("Q"))[0]
    for at in range(0, len(distinct), budget):
        interiors.count(distinct[at : at + budget])
    rows = interiors.rows(1)
    rules = choose(rows)
    sizes = sorted({b.size for b in heap.blocks})[::2]
    held, at = array("Q", bytes(8 * len(sizes) + 8)), 0
    while at < len(heap.blocks):
        at = interiors.count_held(sizes, held, at, budget)
    while not interiors.accept(rules, budget):
        pass
    while not interiors.promote(budget):
        pass
    after = bytes(graph.kinds())
    effect = interiors.effect(distinct, rules)
    while not graph.classify(1 << 30):
        pass
    references = [graph.references(index) for index in range(len(heap.blocks))]
    return {
        "before": before,
        "keys": distinct,
        "rows": rows,
        "some": interiors.rows(3),
        "rules": rules,
        "held": dict(zip([*sizes, 0], held)),
        "after": after,
        "effect": effect,
        "kinds": bytes(graph.kinds()),
        "references": references,
    }


def mark_again(engine: Engine, heap: graphs.Heap, late: list[int], choose: Any, budget: int) -> tuple[list[Rule], bytes]:
    """Accept rules, add the references `late`, and accept the same rules again. Return the rules and the kinds."""
    graph, rules = mark(engine, heap, Heuristic.AUTO), list[Rule]()
    for references in (late, []):
        interiors = graph.interiors()
        if not rules:
            keys, done = interiors.keys(budget)
            while not done:
                more, done = interiors.keys(budget)
                keys += more
            interiors.count(engine.sum_by_value(keys, array("Q"))[0])
            rules = choose(interiors.rows(1))
        while not interiors.accept(rules, budget):
            pass
        while not interiors.promote(budget):
            pass
        if references:
            graph.connect(array("Q", references))
            while not graph.mark(budget):
                pass
    while not graph.classify(1 << 30):
        pass
    return rules, bytes(graph.kinds())


class RuledOracle(graphs.Oracle):
    """An oracle, by definition: pointers that a rule covers are start pointers."""

    def __init__(self, heap: graphs.Heap, heuristics: Heuristic, rules: list[Rule]) -> None:
        super().__init__(heap, heuristics)
        self.rules = rules

    def counts(self, block: graphs.Block, value: int) -> bool:
        offset = value - block.start
        return super().counts(block, value) or (0, offset) in self.rules or (block.size, offset) in self.rules


@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.sampled_from((4, 12, 30, 60)),
    granule=st.sampled_from((4, 8, 16)),
    heuristics=st.sampled_from((0, 0, 5, 15, 48)),
    budget=st.sampled_from((1, 3, 1 << 12)),
)
@settings(max_examples=graphs.share(150))
def test_both_engines_and_the_definition_agree(seed: int, count: int, granule: int, heuristics: int, budget: int) -> None:
    heap = graphs.random_heap(seed, count, granule, 3)

    def choose(rows: list[Row]) -> list[Rule]:
        found = [(row.size, row.offset) for row in rows if 0 < row.offset < LOW_BITS]
        return sorted(random.Random(seed).sample(found, len(found) // 2))

    said = find_all(graphs.native(), heap, Heuristic(heuristics), choose, budget)
    assert said == find_all(graphs.pure(), heap, Heuristic(heuristics), choose, 1 << 12)
    plain, ruled = graphs.Oracle(heap, Heuristic(heuristics)), RuledOracle(heap, Heuristic(heuristics), said["rules"])
    assert said["kinds"] == bytes(ruled.kinds)
    held = (Kind.REACHABLE, Kind.POSSIBLE)
    assert [k in held for k in said["before"]] == [k in held for k in said["after"]]
    assert [k if k in held else 0 for k in plain.kinds] == list(said["before"])
    for size, number in said["held"].items():
        assert number == sum(k in held and size in (0, b.size) for k, b in zip(said["before"], heap.blocks))
    into = {
        (index, value - heap.blocks[index].start)
        for index, value in find_interior_words(plain)
        if plain.kinds[index] == Kind.POSSIBLE and value - heap.blocks[index].start < MAX_OFFSET
    }
    assert {(key >> 32, key & MAX_OFFSET) for key in said["keys"]} == into
    for size, offset, number in said["rows"]:
        mine = [(index, at) for index, at in into if size in (0, heap.blocks[index].size)]
        assert number == len({index for index, at in mine if not offset or at == offset or (offset == LOW_BITS and at < 16)})
    led = {index for index, at in into if (0, at) in said["rules"] or (heap.blocks[index].size, at) in said["rules"]}
    assert sum(one.blocks for one in said["effect"]) == sum(said["after"][index] == Kind.REACHABLE for index in led)


@given(seed=st.integers(0, 2**32 - 1), count=st.sampled_from((4, 12, 30)), budget=st.sampled_from((1, 3, 1 << 12)))
@settings(max_examples=graphs.share(80))
def test_references_that_are_added_after_rules(seed: int, count: int, budget: int) -> None:
    """A graph that is marked again has the kinds of a graph that had all references from the beginning."""
    heap, rng = graphs.random_heap(seed, count, 16, 3), random.Random(seed)
    used = [index for index, block in enumerate(heap.blocks) if block.state == State.IN_USE]
    pairs = sorted((rng.choice(used), rng.choice(used)) for _ in used[::2])
    rooted = used[::5]
    late = [source << 32 | target for source, target in [*pairs, *((NO_BLOCK, target) for target in rooted)]]

    def choose(rows: list[Row]) -> list[Rule]:
        return sorted((row.size, row.offset) for row in rows if 0 < row.offset < LOW_BITS)[::2]

    rules, kinds = mark_again(graphs.native(), heap, late, choose, budget)
    assert (rules, kinds) == mark_again(graphs.pure(), heap, late, choose, 1 << 12)
    oracle = RuledOracle(replace(heap, root_words=[*heap.root_words, *(heap.blocks[one].start for one in rooted)]), Heuristic.NONE, rules)
    for source, target in pairs:
        oracle.references[source].append((target, False))
    assert kinds == bytes(oracle.kinds)


def find_interior_words(oracle: graphs.Oracle) -> list[tuple[int, int]]:
    """Return the (block, value) pairs of the interior references in root memory and in reachable blocks."""
    found = []
    values = [*oracle.heap.root_words]
    for _, data in oracle.heap.root_memory:
        values += [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data) - 7, 8)]
    for index, block in enumerate(oracle.blocks):
        if oracle.kinds[index] in (Kind.REACHABLE, Kind.POSSIBLE):
            for address in range(-(-block.start // 8) * 8, block.end - 7, 8):
                target = oracle.target(oracle.word(address))
                if target and target[0] != index:
                    values.append(oracle.word(address))
    for value in values:
        target = oracle.target(value)
        if target and target[1]:
            found.append((target[0], value))
    return found


def make_rows(*sizes: tuple[int, int, dict[int, int]]) -> list[Row]:
    """Return (size, number of blocks, blocks by offset) for each size. The row with size 0 has the sums."""
    made = [Row(size, 0, looked) for size, looked, _ in sizes]
    made += [Row(size, offset, blocks) for size, _, offsets in sizes for offset, blocks in offsets.items()]
    for offset in {0, *(offset for _, _, offsets in sizes for offset in offsets)}:
        made.append(Row(0, offset, sum(row.blocks for row in made if row.size and row.offset == offset)))
    return made


def make_sizes(count: int, offset: int) -> list[tuple[int, int, dict[int, int]]]:
    return [(64 + 16 * number, MIN_BLOCKS, {offset: MIN_BLOCKS}) for number in range(count)]


@pytest.mark.parametrize(
    ("counted", "expected"),
    [
        ([(64, 100, {24: 100})], [(0, 24)]),
        ([(64, 15, {24: 15})], []),  # so few blocks may agree by chance
        ([(64, 100, {24: 89})], []),
        ([(64, 100, {24: 90, 16: 100 - 90})], [(0, 24)]),
        ([(64, 5, {24: 5}), (80, 5, {24: 5}), (96, 6, {24: 6})], [(0, 24)]),  # rare sizes, but all agree
        # The links of one structure, in a program without other interior pointers
        ([(64, 100, {24: 100}), (80, 100, {8: 50, 16: 50})], [(64, 24)]),
        ([(64, 100, {24: 100}), (80, 100, {40: 100})], [(64, 24), (80, 40)]),
        # The header that a library puts before its data, whatever the size of the block is
        ([*make_sizes(MIN_SIZES, 24), (1000, 400, {8: 200, 16: 200})], [(0, 24)]),
        ([*make_sizes(MIN_SIZES - 1, 24), (1000, 400, {8: 200, 16: 200})], [(64, 24), (80, 24), (96, 24)]),
        ([*make_sizes(MIN_SIZES, 24), (1000, 400, {16: 390})], [(0, 24), (1000, 16)]),
        ([*((64 + 16 * n, 4, {24: 4}) for n in range(4)), (1000, 400, {8: 200, 16: 200})], [(0, 24)]),  # few blocks of each size
        ([*((64 + 16 * n, 3, {24: 3}) for n in range(9)), (1000, 400, {8: 200, 16: 200})], []),
        ([*((64 + 16 * n, 4, {24: 4}) for n in range(3)), (1000, 400, {8: 200, 16: 200})], []),
        ([(64, 100, {8: 100, 24: 100})], [(0, 8)]),  # a block with pointers to two offsets: the smaller one
        ([], []),
    ],
)
def test_offsets_that_become_rules(counted: list[tuple[int, int, dict[int, int]]], expected: list[Rule]) -> None:
    """Start pointers refer to no other blocks of these sizes."""
    said = make_rows(*counted)
    assert rules_of(candidates(said), lambda size: max((row.blocks for row in said if row.size == size), default=0), 8) == expected


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ({64: 150, 80: 150, 96: 150, 112: 150, 0: 9999}, [(0, 24)]),
        ({64: 550, 80: 16, 96: 16, 112: 18, 0: 9999}, [(0, 24)]),
        # Start pointers refer to more blocks of one size, such as a size of which other parts of the program allocate many blocks
        ({64: 151, 80: 150, 96: 150, 112: 150, 0: 9999}, [(80, 24), (96, 24), (112, 24)]),
        ({64: 9000, 80: 151, 96: 100, 112: 151, 0: 9999}, [(96, 24)]),
        ({64: 151, 80: 151, 96: 151, 112: 151, 0: 9999}, []),
    ],
)
def test_start_pointers_to_other_blocks_count(held: dict[int, int], expected: list[Rule]) -> None:
    said = make_rows(*((64 + 16 * n, 100, {24: 100}) for n in range(4)), (1000, 400, {8: 200, 16: 200}))
    assert rules_of(candidates(said), held.__getitem__, 8) == expected


def test_a_size_with_start_pointers_to_other_blocks() -> None:
    said = make_rows((64, 100, {24: 100}), (1000, 400, {8: 200, 16: 200}))
    assert rules_of(candidates(said), {64: 150}.__getitem__, 8) == [(64, 24)]
    assert rules_of(candidates(said), {64: 151}.__getitem__, 8) == []


def test_blocks_of_different_sizes() -> None:
    """A header before large buffers of different sizes, if all reachable blocks have this header."""
    said = make_rows(*((1000 + 16 * n, 1, {64: 1}) for n in range(40)))
    (one,) = candidates([row for row in said if row.blocks >= 4])
    assert (one.anywhere, one.blocks) == (True, 40)
    assert rules_of([one], {0: 60}.__getitem__, 8) == [(0, 64)]
    assert rules_of([one], {0: 61}.__getitem__, 8) == []


@pytest.mark.parametrize(
    ("counted", "expected"),
    [
        ([(64, 80, {1: 30, 2: 25, 3: 25, LOW_BITS: 80})], [(0, at) for at in range(1, 16)]),  # tags of two bits
        ([(64, 80, {1: 30, 2: 41, LOW_BITS: 71}), (80, 400, {24: 400})], [(80, 24)]),
        ([(64, 80, {1: 30, 2: 42, LOW_BITS: 72}), (80, 400, {24: 400})], [*((64, at) for at in range(1, 16)), (80, 24)]),
        ([(64, 80, {1: 80, LOW_BITS: 80})], [(0, 1)]),  # a tag of one bit
        ([(64, 15, {1: 8, 2: 7, LOW_BITS: 15})], []),
    ],
)
def test_tags_in_low_bits(counted: list[tuple[int, int, dict[int, int]]], expected: list[Rule]) -> None:
    """Pointers with tag 0 are start pointers. Their number does not matter."""
    assert rules_of(candidates(make_rows(*counted)), lambda size: 450, 8) == expected


@pytest.mark.parametrize(
    ("rules", "others", "expected"),
    [
        (set(), 0, Heuristic.LENGTH64),
        (set(), 20, Heuristic.LENGTH64 | Heuristic.NEWARRAY),  # blocks of another library: the second heuristic
        ({(0, 8)}, 0, Heuristic.NONE),  # the rule explains the pointers after the lengths; nothing explains the other pointers
    ],
)
def test_lengths_of_blocks_with_many_pointers(rules: set[Rule], others: int, expected: Heuristic) -> None:
    """40 blocks begin with their length. One pointer refers to the word after the length, and five refer to the middle of the block."""
    engine = graphs.native()
    blocks = engine.blocks(engine.arch, 16)
    blocks.append([0x10000 + 0x100 * number for number in range(40 + others)], [0xF8] * (40 + others), [0] * (40 + others))
    blocks.seal()
    keys = [number << 32 | offset for number in range(40) for offset in (8, 0x40, 0x48, 0x50, 0x58, 0x60)]
    keys += [number << 32 | 8 for number in range(40, 40 + others)]

    def fits(address: int, size: int, offset: int) -> Heuristic:
        return Heuristic.NONE if offset != 8 else Heuristic.LENGTH64 if address < 0x10000 + 0x100 * 40 else Heuristic.NEWARRAY

    sample = list(_sample_pointers(blocks, array("Q", keys), frozenset(rules), fits, lambda address, size: False))
    assert _by_content(sample, len(keys)) == expected


@pytest.mark.parametrize(("others", "expected"), [(1, Heuristic.LENGTH64), (4, Heuristic.LENGTH64 | Heuristic.NEWARRAY)])
def test_few_pointers_of_a_sample(others: int, expected: Heuristic) -> None:
    """One sampled pointer stands for a thousand others, and may fit a second heuristic by chance."""
    sample = [Sampled(8, False, one, False) for one in (*[Heuristic.LENGTH64] * 100, *[Heuristic.NEWARRAY] * others)]
    assert _by_content(sample, 1000 * len(sample)) == expected
