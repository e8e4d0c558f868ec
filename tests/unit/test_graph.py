"""The pointer graph: the C engine and the reference engine return the same results on random heaps, which are those of the oracle."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace

import graphs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from findleaks.engine.terms import Heuristic, Kind, State, Totals
from findleaks.target.arch import X86_64, Arch
from findleaks.target.base import Range

ENGINES = [graphs.native, graphs.pure]
HEAPS = {
    "seed": st.integers(0, 2**32 - 1),
    "count": st.sampled_from((1, 4, 12, 30)),
    "granule": st.sampled_from((4, 8, 16, 16)),
    "heaps": st.integers(1, 5),
    "density": st.sampled_from((0.1, 0.4, 1.0)),
    "arch": st.sampled_from(graphs.MOSTLY_64),
}


@given(**HEAPS, budget=st.sampled_from((1, 3, 1 << 30)))
@settings(max_examples=graphs.share(150))
def test_both_engines_and_the_definition_agree(
    seed: int,
    count: int,
    granule: int,
    heaps: int,
    density: float,
    arch: Arch,
    budget: int,
) -> None:
    heap = graphs.random_heap(seed, count, granule, heaps, density, arch=arch)
    said = graphs.everything(graphs.native(arch), heap, budget=budget)
    assert said == graphs.everything(graphs.pure(arch), heap)
    oracle = graphs.Oracle(heap)
    assert said["kinds"] == bytes(oracle.kinds)
    assert said["references"] == oracle.references
    assert said["referrers"] == [[s for s, r in enumerate(oracle.references) if any(t == i for t, _ in r)] for i in range(len(heap.blocks))]
    assert said["leaders"] == oracle.leaders
    assert said["cycle"] == [len(oracle.cycles.get(i, {i})) for i in range(len(heap.blocks))]
    assert said["hanging"] == [oracle.hanging(i) for i in range(len(heap.blocks))]
    assert said["rooted"] == [any(i == r for r, _ in oracle.roots) for i in range(len(heap.blocks))]
    graphs.check_groups(oracle, said["groups"])
    graphs.check_typed(oracle, said["typed"])
    for index, path in enumerate(said["paths"]):
        assert len(path) == oracle.distances.get(index, 0)
        assert not path or (said["rooted"][path[0]] and path[-1] == index)
        assert all(any(t == b for t, _ in oracle.references[a]) for a, b in zip(path, path[1:]))
    for kind in Kind:
        sizes = [b.size for b, k in zip(heap.blocks, oracle.kinds) if k == kind and b.state == State.IN_USE]
        assert said["totals"][kind] == Totals(len(sizes), sum(sizes))


@given(**HEAPS, heuristics=st.integers(1, 63))
@settings(max_examples=graphs.share(100))
def test_heuristics(seed: int, count: int, granule: int, heaps: int, density: float, arch: Arch, heuristics: int) -> None:
    heap = graphs.random_heap(seed, count, granule, heaps, density, arch=arch)
    said = graphs.everything(graphs.native(arch), heap, Heuristic(heuristics))
    assert said == graphs.everything(graphs.pure(arch), heap, Heuristic(heuristics))
    oracle = graphs.Oracle(heap, Heuristic(heuristics))
    assert said["references"] == oracle.references
    assert said["kinds"] == bytes(oracle.kinds)


@given(**HEAPS)
@settings(max_examples=graphs.share(50))
def test_interior_references_that_count(seed: int, count: int, granule: int, heaps: int, density: float, arch: Arch) -> None:
    """No block is possibly lost. The blocks that roots reach are the same."""
    heap = graphs.random_heap(seed, count, granule, heaps, density, arch=arch)
    said = graphs.everything(graphs.native(arch), heap, Heuristic.EVERY)
    assert said == graphs.everything(graphs.pure(arch), heap, Heuristic.EVERY)
    oracle, plain = graphs.Oracle(heap, Heuristic.EVERY), graphs.Oracle(heap)
    assert said["references"] == oracle.references
    assert said["kinds"] == bytes(oracle.kinds)
    live = (Kind.REACHABLE, Kind.POSSIBLE)
    assert [kind == Kind.REACHABLE for kind in oracle.kinds] == [kind in live for kind in plain.kinds]


@given(**HEAPS, others=st.sampled_from((0, 16, 63)))
@settings(max_examples=graphs.share(60))
def test_items_after_their_number(seed: int, count: int, granule: int, heaps: int, density: float, arch: Arch, others: int) -> None:
    """A pointer to the second word of a block whose first word can be its number of items is a start reference."""
    heap = graphs.random_heap(seed, count, granule, heaps, density, arch=arch)
    said = graphs.everything(graphs.native(arch), heap, Heuristic(others) | Heuristic.ITEMS)
    assert said == graphs.everything(graphs.pure(arch), heap, Heuristic(others) | Heuristic.ITEMS)
    without = graphs.everything(graphs.native(arch), heap, Heuristic(others))["references"]
    for one, other in zip(said["references"], without):
        assert [target for target, _ in one] == [target for target, _ in other]
        assert all(_has_items(heap, target) for (target, interior), (_, before) in zip(one, other) if interior != before)


def _has_items(heap: graphs.Heap, index: int) -> bool:
    block, word = heap.blocks[index], heap.arch.word
    number = graphs.Oracle(heap).word(-(-block.start // word) * word)
    return block.start % word == 0 and 0 < number < block.size // word <= 2 * number + 4


def test_random_heaps_have_items_after_their_number() -> None:
    for arch in graphs.ARCHES:
        heaps = (graphs.random_heap(seed, 60, 16, 3, 1.0, arch=arch) for seed in range(40))
        engine = graphs.native(arch)
        assert any(graphs.everything(engine, heap) != graphs.everything(engine, heap, Heuristic.ITEMS) for heap in heaps)


@given(**HEAPS, heuristics=st.sampled_from((0, 15, 16, 48, 63)), budget=st.sampled_from((1, 3, 1 << 30)))
@settings(max_examples=graphs.share(100))
def test_roots_that_are_added_late(
    seed: int,
    count: int,
    granule: int,
    heaps: int,
    density: float,
    arch: Arch,
    heuristics: int,
    budget: int,
) -> None:
    """Roots have the same effect before marking and between its steps. With `holds`, they do not change the kinds of blocks."""
    heap = graphs.random_heap(seed, count, granule, heaps, density, arch=arch)
    rng = random.Random(seed)
    late = [graphs.word_for(rng, heap.blocks, arch) for _ in range(3)]
    early = graphs.Oracle(heap, Heuristic(heuristics))
    reached = early.closure({i for i, interior in early.roots if not interior}, starts_only=True)
    held = {i for i, _ in filter(None, map(early.target, late))} <= reached
    whole = replace(heap, root_words=[*heap.root_words, *late])
    wanted = graphs.everything(graphs.pure(arch), whole, Heuristic(heuristics))
    if held:
        assert wanted["kinds"] == bytes(early.kinds)
    for engine in (graphs.native(arch), graphs.pure(arch)):
        graph = graphs.scan_graph(engine, heap, Heuristic(heuristics))
        while not graph.mark_starts(budget):
            pass
        assert graph.holds(late) == held
        largest = rng.choice((32, 64, 1 << 20))
        lone = [
            index
            for index in range(len(heap.blocks))
            if index not in reached
            and heap.blocks[index].state == State.IN_USE
            and 16 <= heap.blocks[index].size <= largest
            and not graph.is_rooted(index)
        ]
        few = [index for index in lone if not graph.referrers(index)]
        assert graph.find_unreferenced(16, largest, len(lone)) == few
        assert graph.find_unreferenced(16, largest, len(lone) - 1) == [] or not lone
        if not held:
            graph.root_words(late[:1])
            graph.scan_roots(graphs.piece(0x700000, arch.pack(late[1:])))
        graphs.mark(graph, budget)
        assert bytes(graph.kinds()) == wanted["kinds"]
        graph.root_words(late)
        assert graphs.said_of(graph, heap) == wanted


@given(
    seed=st.integers(0, 2**32 - 1),
    granule=st.sampled_from((4, 8, 16)),
    heuristics=st.sampled_from((0, 15, 16, 48, 63, 128, 191)),
    arch=HEAPS["arch"],
)
@settings(max_examples=graphs.share(15))
def test_both_engines_agree_on_larger_heaps_cut_anywhere(seed: int, granule: int, heuristics: int, arch: Arch) -> None:
    heap = graphs.random_heap(seed, 1500, granule, 6, 0.4, whole_words=False, arch=arch)
    assert graphs.everything(graphs.native(arch), heap, Heuristic(heuristics), 1000) == graphs.everything(
        graphs.pure(arch), heap, Heuristic(heuristics)
    )


@given(seed=st.integers(0, 2**32 - 1), arch=HEAPS["arch"])
@settings(max_examples=graphs.share(50))
def test_both_engines_agree_on_random_bytes(seed: int, arch: Arch) -> None:
    rng = random.Random(seed)
    heap = graphs.random_heap(seed, 40, 16, 3, arch=arch)
    garbage = [
        (start, bytes(rng.choice((0, 0, 0, 0x10, 0x55, 0x7F, 0xFF, data[i])) for i in range(len(data)))) for start, data in heap.memory
    ]
    heap.memory = garbage
    heap.pieces = [p for start, data in garbage for p in graphs.cut(start, data, rng, 1)]
    assert graphs.everything(graphs.native(arch), heap, Heuristic(63)) == graphs.everything(graphs.pure(arch), heap, Heuristic(63))


def make_heap(blocks: list[tuple[int, int]], words: dict[int, int], roots: list[int], granule: int = 16) -> graphs.Heap:
    """Return a graph of in-use blocks (start, size) with these words at these addresses. Each block is a separate piece."""
    heap = graphs.Heap(granule, [graphs.Block(start, size, 0) for start, size in blocks], [], [], roots)
    for start, size in blocks:
        data = bytearray(size)
        for address, value in words.items():
            if start <= address < start + size:
                data[address - start : address - start + 8] = value.to_bytes(8, "little")
        heap.memory.append((start, bytes(data)))
    heap.pieces = [graphs.piece(start, data) for start, data in heap.memory]
    return heap


@pytest.mark.parametrize("engine", ENGINES)
class TestByHand:
    def test_a_list_with_a_cycle_behind_it(self, engine: type) -> None:
        a, b, c, d = (0x10000 + 0x40 * i for i in range(4))
        heap = make_heap([(x, 0x38) for x in (a, b, c, d)], {d: b, b: c, c: b}, [])
        graph = graphs.graph_of(engine(), heap)
        assert [graph.kind(i) for i in range(4)] == [Kind.DEFINITE, Kind.INDIRECT, Kind.INDIRECT, Kind.DEFINITE]
        assert [graph.leak_head(i) for i in range(4)] == [0, 3, 3, 3]
        assert graph.indirect_totals(3) == Totals(2, 0x70)

    def test_a_whole_cycle_is_one_leak(self, engine: type) -> None:
        blocks = [(0x10000 + 0x40 * i, 0x38) for i in range(5)]
        ring = {start: blocks[(i + 2) % 5][0] for i, (start, _) in enumerate(blocks)}
        graph = graphs.graph_of(engine(), make_heap(blocks, ring, []))
        assert bytes(graph.kinds()) == bytes([Kind.DEFINITE] + [Kind.INDIRECT] * 4)
        (group,) = graph.groups((), ())
        assert (group.cycle, group.blocks, group.indirect_blocks, group.examples) == (5, 1, 4, (0x10000,))

    def test_edges_of_a_block_are_its_aligned_words_only(self, engine: type) -> None:
        a, b = 0x10000, 0x10040
        heap = make_heap([(a, 0x38), (b, 0x38)], {a + 4: b, a + 0x30: b, b: a + 0x38, b + 8: a + 0x37, b + 16: b, b + 24: a - 8}, [])
        graph = graphs.graph_of(engine(), heap)
        assert graph.references(0) == [(1, False)]  # the last whole word, not the word at an unaligned address
        assert graph.references(1) == [(0, True)]  # not a pointer to the end, to the header, or to the block itself

    def test_heaps_that_meet_within_a_slot(self, engine: type) -> None:
        """The end marker of one heap must not shift the ranks of blocks of the next heap (a former bug)."""
        low = [(0x7F0000000000 - 0x30 * i, 0x28) for i in range(40, 0, -1)]
        high = [(0x7F0000000010 + 0x30 * i, 0x28) for i in range(40)]
        blocks = low + high
        heap = make_heap(blocks, {start: blocks[-1 - i][0] for i, (start, _) in enumerate(blocks)}, [blocks[3][0]])
        graph = graphs.graph_of(engine(), heap)
        for index, (start, _) in enumerate(blocks):
            assert graph.references(index) == [(len(blocks) - 1 - index, False)]
            assert graph.blocks.find(start + 0x27) == index
            assert graph.blocks.find(start + 0x28) == -1
        assert [i for i in range(len(blocks)) if graph.kind(i) == Kind.REACHABLE] == [3, 76]

    def test_a_block_with_more_than_255_edges(self, engine: type) -> None:
        small = [(0x20000 + 0x20 * i, 0x18) for i in range(40)]
        table = (0x10000, 8 * 700)
        words = {0x10000 + 8 * i: small[i % 40][0] for i in range(700)}
        words.update({small[i][0]: small[(i * 7 + 1) % 40][0] for i in range(40)})
        graph = graphs.graph_of(engine(), make_heap([table, *small], words, [0x10000]))
        assert graph.references(0) == [(1 + i % 40, False) for i in range(700)]
        for i in range(40):
            assert graph.references(1 + i) == [(1 + (i * 7 + 1) % 40, False)] if (i * 7 + 1) % 40 != i else True
        assert graph.totals(Kind.REACHABLE) == Totals(41, 5600 + 40 * 0x18)

    def test_a_long_list_needs_no_recursion(self, engine: type) -> None:
        number = 20_000
        blocks = [(0x10000 + 0x20 * i, 0x18) for i in range(number)]
        words = {start: start - 0x20 for start, _ in blocks[1:]}
        heap = graphs.Heap(16, [graphs.Block(s, n, 0) for s, n in blocks], [], [], [])
        data = bytearray(number * 0x20)
        for start, value in words.items():
            data[start - 0x10000 : start - 0x10000 + 8] = value.to_bytes(8, "little")
        heap.pieces = graphs.cut(0x10000, bytes(data), random.Random(1))
        graph = graphs.graph_of(engine(), heap, budget=1000)
        assert graph.kind(number - 1) == Kind.DEFINITE
        assert graph.indirect_totals(number - 1) == Totals(number - 1, (number - 1) * 0x18)
        heap.root_words = [blocks[-1][0]]
        graph = graphs.graph_of(engine(), heap, budget=1000)
        assert graph.path(0) == list(range(number - 1, -1, -1))
        assert graph.path(0, [3, 5]) == [3, 2, 1, 0] and graph.path(number - 1, [3]) == []

    @pytest.mark.parametrize(
        ("avoided", "path"),
        [
            (b"", [0, 1, 3]),
            (bytes([0, 1, 0]), [0, 2, 4, 3]),  # 1 has label 1
            (bytes([0, 1, 1]), []),  # 4 has label 2
            (bytes([0, 0]), [0, 1, 3]),  # fewer marks than labels
            (bytes([1, 0, 0]), []),  # the root is avoided, too
        ],
    )
    def test_a_path_without_some_labels(self, engine: type, avoided: bytes, path: list[int]) -> None:
        heap = make_heap([(0x10000 + 0x20 * i, 0x18) for i in range(5)], {}, [])
        words = {0: (1, 2), 1: (3,), 2: (4,), 4: (3,)}
        blocks = engine().blocks(X86_64, 16)
        blocks.append([block.start for block in heap.blocks], [0x18] * 5, [0] * 5)
        graph = engine().graph(blocks)
        graph.set_labels(array("H", [0, 1, 0, 0, 2]), array("I", [1, 1, 1]))
        for source in range(5):
            data = b"".join((0x10000 + 0x20 * target).to_bytes(8, "little") for target in words.get(source, ()))
            graph.scan_blocks(graphs.piece(0x10000 + 0x20 * source, data.ljust(0x18, b"\0")))
        graph.root_words([0x10000])
        while not graph.mark(1000):
            pass
        assert graph.path(3, [], avoided) == graph.path(3, [0], avoided) == path

    def test_a_table_of_more_blocks_than_the_initial_queue(self, engine: type) -> None:
        number = 5_000
        small = [(0x1000000 + 0x20 * i, 0x18) for i in range(2 * number)]
        data = bytearray(2 * number * 0x20)
        for i in range(number):  # each block of the first half refers to a block of the second half
            data[0x20 * i : 0x20 * i + 8] = small[number + i * 7 % number][0].to_bytes(8, "little")
        table = b"".join(small[i * 3 % number][0].to_bytes(8, "little") for i in range(number - 1))
        blocks = [graphs.Block(0x10000, len(table), 0), *(graphs.Block(s, n, 0) for s, n in small)]
        heap = graphs.Heap(16, blocks, [], [], [0x10000])
        heap.pieces = [graphs.piece(0x10000, table), graphs.piece(0x1000000, bytes(data))]
        for budget in (1 << 30, 100):
            graph = graphs.graph_of(engine(), heap, budget=budget)
            assert graph.totals(Kind.REACHABLE).blocks == 1 + 2 * (number - 1)
            assert graph.totals(Kind.DEFINITE).blocks == 1
            assert len(graph.path(len(blocks) - 1)) == 3

    def test_no_blocks_at_all(self, engine: type) -> None:
        graph = graphs.graph_of(engine(), graphs.Heap(16, [], [], [], [0x1000, 0]))
        assert bytes(graph.kinds()) == b""
        assert graph.groups((), ()) == []
        assert graph.totals(Kind.DEFINITE) == Totals(0, 0)
        with pytest.raises(IndexError):
            graph.kind(0)

    def test_order_is_checked(self, engine: type) -> None:
        heap = make_heap([(0x10000, 0x18), (0x10020, 0x18)], {}, [])
        blocks = engine().blocks(X86_64, 16)
        blocks.append([0x10000, 0x10020], [0x18, 0x18], [0, 0])
        graph = engine().graph(blocks)
        graph.scan_blocks(heap.pieces[1])
        with pytest.raises(ValueError, match="lies below"):
            graph.scan_blocks(heap.pieces[0])
        with pytest.raises(RuntimeError, match="mark first"):
            graph.classify(1)
        while not graph.mark(100):
            pass
        with pytest.raises(RuntimeError, match="before marking"):
            graph.scan_blocks(graphs.piece(0x20000, bytes(8)))
        with pytest.raises(RuntimeError, match="classify first"):
            graph.groups((), ())

    def test_types_by_first_word_of_blocks_with_a_root(self, engine: type) -> None:
        vtable = graphs.VTABLES[0].start + 16
        blocks = [(0x10000 + 0x40 * i, 0x38) for i in range(4)]
        heap = make_heap(blocks, {blocks[0][0]: vtable, blocks[2][0]: vtable, blocks[3][0]: 0x1234}, [])
        graph = graphs.graph_of(engine(), heap)
        groups = graph.groups(iter(heap.pieces), [Range(vtable, vtable + 1)])
        assert [(g.type_word, g.blocks, g.examples) for g in groups] == [(0, 2, (0x10040, 0x100C0)), (vtable, 2, (0x10000, 0x10080))]
        with pytest.raises(ValueError, match="lies below"):
            graph.groups(heap.pieces[::-1], [Range(vtable, vtable + 1)])


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=graphs.share(20))
@example(seed=0)
def test_kinds_stay_readable_after_the_graph_is_gone(seed: int) -> None:
    heap = graphs.random_heap(seed, 30, 16, 2)
    kinds = graphs.graph_of(graphs.native(), heap).kinds()
    assert bytes(kinds) == bytes(graphs.graph_of(graphs.pure(), heap).kinds())
    assert kinds.readonly


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, 30))
@settings(max_examples=graphs.share(20))
def test_at_least_a_number_of_blocks_is_of_a_kind(seed: int, count: int) -> None:
    heap = graphs.random_heap(seed, count, 16, 2)
    for engine in (graphs.native(), graphs.pure()):
        graph = graphs.graph_of(engine, heap)
        kinds = bytes(graph.kinds())
        for kind in Kind:
            number = kinds.count(kind)
            assert [graph.has_kind(kind, least) for least in (0, number, number + 1)] == [True, True, False]
