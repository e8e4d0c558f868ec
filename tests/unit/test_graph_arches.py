"""Other word sizes and byte orders: the same graph gives the same results, in the C engine and in the reference engine."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import graphs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.allocators.glibc.engine import walk_chunks
from findleaks.engine import load as engine
from findleaks.engine.native import library as kernel_library
from findleaks.engine.terms import State
from findleaks.target.arch import X86_64, Arch

ARCHES = graphs.ARCHES


def logical_heap(seed: int, arch: Arch) -> graphs.Heap:
    """Return the same blocks, measured in words, with the same pointers, for each architecture."""
    rng = random.Random(seed)
    word, base = arch.word, rng.choice((0x10000, 0x7FFF0000, 0x50000000))
    places: list[tuple[int, int, int]] = []  # first word, number of words, state
    at = 0
    for _ in range(rng.randrange(40)):
        at += rng.randrange(3)
        places.append((at, rng.randrange(1, 20), rng.choice((0, 0, 0, 1, 2))))
        at += places[-1][1]
    values = []
    for _ in range(at):
        value = rng.randrange(100)
        if places and rng.random() < 0.3:
            first, words, _ = rng.choice(places)
            value = base + (first + rng.choice((0, 0, 0, rng.randrange(words + 1)))) * word
        values.append(value)
    data = arch.pack(values)
    blocks = [graphs.Block(base + first * word, words * word, state) for first, words, state in places]
    heap = graphs.Heap(4, blocks, [], [], [blocks[0].start] if blocks else [], arch=arch)
    cuts = sorted({0, at, *(rng.randrange(at + 1) for _ in range(3))})
    heap.pieces = [graphs.piece(base + low * word, data[low * word : high * word]) for low, high in zip(cuts, cuts[1:])]
    return heap


def compute(engine: Any, heap: graphs.Heap) -> list[Any]:
    graph = graphs.graph_of(engine, heap)
    number = range(len(heap.blocks))
    each = [
        [f(i) for i in number]
        for f in (graph.leak_head, graph.references, graph.path, graph.is_rooted, lambda i: graph.indirect_totals(i).blocks)
    ]
    return [bytes(graph.kinds()), *each]


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_the_same_graph_in_every_architecture(seed: int) -> None:
    expected = compute(graphs.pure(), logical_heap(seed, X86_64))
    for arch in ARCHES:
        assert compute(graphs.native(arch), logical_heap(seed, arch)) == expected
        assert arch == X86_64 or compute(graphs.pure(arch), logical_heap(seed, arch)) == expected


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: f"{arch.word * 8}-{arch.byteorder}")
def test_chunks_and_lists(arch: Arch) -> None:
    word = arch.word
    base = 0x50000000
    first, second = (0, 4 * word | 1, base + 4 * word, base), (4 * word, 4 * word, base + 8 * word, 0)
    data = arch.pack((*first, *second, 0, 4 * word | 1, 0, 0))
    for one in (graphs.native(arch), graphs.pure(arch)):
        blocks = one.blocks(arch, 2 * word)
        step = walk_chunks(blocks, graphs.piece(base, data), base, base + 8 * word)
        assert (step.chunk, step.done, step.problem) == (base + 8 * word, True, "")
        blocks.seal()
        found = [(blocks.address(i), blocks.size(i), blocks.state(i)) for i in range(2)]
        assert found == [(base + 2 * word, 2 * word, State.FREE), (base + 6 * word, 3 * word, State.IN_USE)]
        nodes, problem = one.follow([graphs.piece(base, data)], base, 2 * word, False, 9)
        assert (list(nodes), problem) == ([base, base + 4 * word, base + 8 * word], "")
        assert list(one.search(graphs.piece(base, data), base, base + 1)) == [base + 3 * word]


def test_c_engine_supports_all_architectures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(engine.PURE, raising=False)
    assert [engine.load(arch).name for arch in ARCHES] == ["native"] * 4
    assert engine.load(X86_64, pure=True).name == "pure"
    monkeypatch.setenv(engine.PURE, "1")
    assert engine.load(X86_64).name == "pure"


def test_a_library_for_other_targets_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(engine.PURE, raising=False)
    path = tmp_path / "_native.so"
    path.write_bytes(Path(kernel_library.HERE, "_native_big.so").read_bytes())
    monkeypatch.setattr(kernel_library, "LIBRARY", str(path))
    assert engine.load(X86_64).name == "pure"
    assert engine.stale_native()


@pytest.mark.parametrize("content", [None, b"not a library"])
def test_reference_engine_is_used_without_the_library(content: bytes | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(engine.PURE, raising=False)
    path = tmp_path / "_native.so"
    if content:
        path.write_bytes(content)
    monkeypatch.setattr(kernel_library, "LIBRARY", str(path))  # an absolute path replaces the folder that it is joined to
    assert engine.load(X86_64).name == "pure"
