"""Disguised pointers: the C engine and the reference engine find the same, and add the same references. What counts as a convention."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import graphs
import pytest
from disguised import (
    HIGH,
    LOW,
    MANGLED,
    MASK,
    MIDDLE,
    ROOTS,
    Heap,
    classify,
    encode,
    engines,
    find_disguised,
    finish,
    random_heap,
    table_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.engine.contract import Engine
from findleaks.engine.disguises import ANY_OFFSET, Disguise, Form
from findleaks.engine.terms import Kind
from findleaks.graph.disguises import LEAST
from findleaks.target.arch import Arch


def find_all(engine: Engine, heap: Heap, forms: Sequence[Form], step: int, most: int) -> dict[str, Any]:
    graph = classify(engine, heap)
    before = bytes(graph.kinds())
    sizes = sorted({size for _, size, _ in heap.blocks})[:5]
    search = graph.disguises(heap.heap_ranges(), forms, most)
    for ranges, roots in ((heap.roots, True), (heap.heap_ranges(), False)):
        for piece in heap.pieces(ranges, ""):
            search.scan(piece, step, roots)
    keys = search.keys(sizes)
    accepted = sorted({(key >> 48, key & ANY_OFFSET) for key in keys.hits})
    references = search.references(accepted)
    graph.connect(references[1::3])
    finish(graph)
    numbers = range(len(heap.blocks))
    return {
        "before": before,
        "leaders": sorted(graph.leak_head_sizes()),
        "keys": [sorted(one) for one in keys],
        "references": references,
        "after": bytes(graph.kinds()),
        "edges": [graph.references(index) for index in numbers],
        "paths": [graph.path(index) for index in numbers],
        "hanging": [graph.indirect_totals(index) for index in numbers],
    }


@given(st.integers(0, 1 << 32), st.sampled_from(graphs.MOSTLY_64), st.sampled_from((1, 1, 2, 3)), st.sampled_from((5, 1 << 20)))
@settings(max_examples=graphs.share(120), deadline=None)
def test_the_engines_agree(seed: int, arch: Arch, step: int, most: int) -> None:
    heap, forms = random_heap(seed, arch)
    first, second = (find_all(engine, heap, forms, step, most) for engine in (graphs.native(arch), graphs.pure(arch)))
    if most == 5:  # which words are recorded for a form that is dropped later is undefined
        first, second = (
            {name: one[name] for name in ("before", "keys", "leaders")} if not one["references"] else {} for one in (first, second)
        )
    assert first == second


FORMS = {
    "tags above": (Form(Disguise.TAGGED), lambda n: 8 * n),
    "packed, 9 bytes": (Form(Disguise.UNALIGNED), lambda n: 9 * n + 1),
    "packed, 12 bytes": (Form(Disguise.UNALIGNED), lambda n: 24 * n + 4),
    "shifted left by 16": (Form(Disguise.SHIFTED_LEFT, shift=16), lambda n: 8 * n),
    "shifted left by 1": (Form(Disguise.SHIFTED_LEFT, shift=1), lambda n: 8 * n),
    "shifted right by 3": (Form(Disguise.SHIFTED_RIGHT, shift=3), lambda n: 8 * n),
    "six bytes": (Form(Disguise.SIX_BYTES), lambda n: 6 * n),
    "swapped bytes": (Form(Disguise.BYTE_SWAPPED), lambda n: 8 * n),
    "swapped halves": (Form(Disguise.HALVES, MIDDLE >> 32 << 32), lambda n: 8 * n),
    "combined with a key": (MANGLED, lambda n: 8 * n),
    "relative": (Form(Disguise.RELATIVE), lambda n: 8 * n),
    "relative, 32 bits": (Form(Disguise.RELATIVE_32), lambda n: 4 * n),
    "safe-linked": (Form(Disguise.SAFE_LINKED), lambda n: 8 * n),
    "compressed from 4 GiB": (Form(Disguise.COMPRESSED, MIDDLE >> 32 << 32, 4), lambda n: 4 * n),
    "compressed from the heap": (Form(Disguise.COMPRESSED, MIDDLE, 3), lambda n: 4 * n),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_convention(name: str) -> None:
    form, place = FORMS[name]
    for engine in engines():
        found, graph = find_disguised(engine, table_of(form, place))
        assert [(one.form, one.offset) for one in found.conventions] == [(form, 0)]
        assert not graph.has_kind(Kind.DEFINITE, 1)


@pytest.mark.parametrize("form", [Form(Disguise.TAGGED), Form(Disguise.SHIFTED_LEFT, shift=8)], ids=lambda form: form.kind.name.lower())
@pytest.mark.parametrize("size", [72, 136])
def test_tags_in_low_bits_too(form: Form, size: int) -> None:
    for engine in engines():
        found, graph = find_disguised(engine, table_of(form, lambda n: 8 * n, size=size, low_tags=16))
        assert [(one.form.kind, one.blocks) for one in found.conventions] == [(form.kind, 100)]
        assert not graph.has_kind(Kind.DEFINITE, 1)


def test_sizes_and_series_are_no_relative_pointers() -> None:
    """Each number plus its own address is the start of a block. Two cases: the same number in each block; a series in a table."""
    for numbers in ([96] * 100, [400 + 88 * n for n in range(100)]):
        heap = Heap(graphs.X86_64, MIDDLE, [800, *[72] * 100], 64)
        heap.root_memory[8:16] = heap.word(MIDDLE)
        place = 0 if numbers[0] != numbers[1] else 1
        for number in range(100):
            block, at = (0, 8 * number) if not place else (number, 0)
            start = heap.blocks[block][0] + at
            target = heap.blocks[number + 1][0] if not place else heap.blocks[min(number + 1, 100)][0]
            heap.put(block, at, heap.word(target - start))
        found, graph = find_disguised(graphs.native(), heap)
        assert not found.conventions and graph.totals(Kind.DEFINITE).blocks >= 99


def test_numbers_in_leaked_blocks_only() -> None:
    """Two words of each block are distances to starts of other leaked blocks, and no other memory has such numbers."""
    heap = Heap(graphs.X86_64, MIDDLE, [72] * 200, 64)
    for number in range(190):
        start = heap.blocks[number][0]
        heap.put(number, 0, heap.word(heap.blocks[number + 2][0] - start))
        heap.put(number, 8, heap.word(heap.blocks[number + 3][0] - start - 8))
    found, graph = find_disguised(graphs.native(), heap)
    assert not found.conventions and graph.totals(Kind.DEFINITE).blocks == 200


def test_relative_pointers_behind_a_head() -> None:
    """A root has a relative pointer to a block of another size, this one to the first of many blocks, and each block to another one.
    Leaked blocks of other sizes are between them."""
    rng = random.Random(1)
    between = [rng.randrange(88, 400, 16) for _ in range(300)]
    order = rng.sample(range(1, 600, 2), 300)
    for engine in engines():
        heap = Heap(graphs.X86_64, MIDDLE, [1000, *chain.from_iterable((72, size) for size in between)], 64)
        starts = [start for start, _, _ in heap.blocks]
        heap.root_memory[16:24] = encode(Form(Disguise.RELATIVE), starts[0], 0, heap.arch, ROOTS + 16)
        for number, following in zip([0, *order], order):
            heap.put(number, 8, encode(Form(Disguise.RELATIVE), starts[following], 0, heap.arch, starts[number] + 8))
        found, graph = find_disguised(engine, heap)
        assert [one.form.kind for one in found.conventions] == [Disguise.RELATIVE]
        assert graph.totals(Kind.DEFINITE).blocks == len(between)


def test_a_series_beside_a_convention() -> None:
    """Blocks of one size have tagged pointers. A series of numbers leads to the blocks of another size."""
    for engine in engines():
        heap = Heap(graphs.X86_64, MIDDLE, [1600, *[72] * 100, *[200] * 100], 64)
        heap.root_memory[8:16] = heap.word(MIDDLE)
        for at in range(0, 800, 8):
            heap.put(0, at, encode(Form(Disguise.TAGGED), heap.blocks[1 + at // 8][0], at, heap.arch))
            heap.put(0, at + 800, heap.word(heap.blocks[101 + at // 8][0] - MIDDLE - 800 - at))
        found, graph = find_disguised(engine, heap)
        assert [(one.form.kind, one.sizes, one.blocks) for one in found.conventions] == [(Disguise.TAGGED, (72,), 100)]
        assert set(found.numbers) == {0} and graph.totals(Kind.DEFINITE).blocks == 100


@pytest.mark.parametrize(("word", "hits"), [(0, []), (16, [16])])
def test_zeros_are_no_safe_links(word: int, hits: list[int]) -> None:
    """One case: the number of the page is the address of a block."""
    for engine in engines():
        heap = Heap(graphs.X86_64, LOW, [64], 0)
        search = classify(engine, heap).disguises(heap.heap_ranges(), [Form(Disguise.SAFE_LINKED)], 100)
        search.scan(graphs.piece(LOW << 12, heap.word(word) + bytes(248)), 1, True)
        assert list(search.keys(array("Q", [64])).hits) == hits


@pytest.mark.parametrize(("upper", "hits"), [(MIDDLE >> 32, 0), (0, 24)])
def test_halves_of_pointers_are_no_compressed_pointers(upper: int, hits: int) -> None:
    """The heap begins at a multiple of 4 GiB, so the lower half of a pointer to block n is the compressed pointer to block 4 n."""
    start = MIDDLE >> 32 << 32
    for engine in engines():
        heap = Heap(graphs.X86_64, start, [72] * 101)
        search = classify(engine, heap).disguises(heap.heap_ranges(), [Form(Disguise.COMPRESSED, start, 2)], 100)
        words = b"".join(heap.word(upper << 32 | (heap.blocks[number][0] - start)) for number in range(1, 25))
        search.scan(graphs.piece(start + (1 << 40), words.ljust(256, b"\0")), 1, True)
        assert len(search.keys(array("Q", [72])).hits) == hits


def test_stale_links_of_a_thread_cache_hide_no_leak() -> None:
    """glibc writes a link into the first word of a free block. The link remains in this word when malloc returns the block."""
    for engine in engines():
        heap = Heap(graphs.X86_64, MIDDLE, [72] * 101, 64)
        heap.root_memory[8:16] = heap.word(MIDDLE)
        for number in range(100):
            heap.put(number, 0, heap.word(heap.blocks[number + 1][0] ^ heap.blocks[number][0] >> 12))
        found, graph = find_disguised(engine, heap)
        assert not found.conventions and graph.totals(Kind.DEFINITE).blocks == 100


@pytest.mark.parametrize(("tags", "form"), [(10, Disguise.COMPRESSED), (100, Disguise.TAGGED)])
def test_numbers_that_look_like_tagged_pointers(tags: int, form: Disguise) -> None:
    """The lower halves of 100 words are lower halves of addresses. If only 10 of the upper halves are a tag with the
    upper half of an address, the lower halves are compressed pointers. If all are, the words are tagged pointers."""
    numbers = Form(Disguise.COMPRESSED, MIDDLE >> 32 << 32)
    for engine in engines():
        heap = table_of(numbers, lambda n: 8 * n)
        for number in range(100):
            upper = MIDDLE >> 32 | 0x1230000 if number < tags else 0x1230000
            heap.put(0, 8 * number + 4, upper.to_bytes(4, "little"))
        found, graph = find_disguised(engine, heap)
        assert [(one.form.kind, one.blocks) for one in found.conventions] == [(form, 100)]
        assert len(found.edges) == 100 and not graph.has_kind(Kind.DEFINITE, 1)


def test_few_blocks_or_too_few_of_a_group_are_no_convention() -> None:
    for engine in engines():
        few = table_of(Form(Disguise.TAGGED), lambda n: 8 * n, count=LEAST - 1)
        found, graph = find_disguised(engine, few)
        assert not found.conventions and graph.totals(Kind.DEFINITE).blocks == LEAST - 1
        assert [(one.size, one.blocks, one.of) for one in found.partly] == [(72, LEAST - 1, LEAST - 1)]
        some = table_of(Form(Disguise.TAGGED), lambda n: 8 * (n % 80))
        found, graph = find_disguised(engine, some)
        assert not found.conventions and graph.totals(Kind.DEFINITE).blocks == 100
        assert [(one.size, one.blocks, one.of) for one in found.partly] == [(72, 80, 100)]


def test_a_list_without_referrers_is_leaked() -> None:
    """The nodes of the list refer to each other by tagged pointers. The first node is definitely lost, the others are indirectly lost."""
    for engine in engines():
        heap = Heap(graphs.X86_64, MIDDLE, [72] * 50, 64)
        for number in range(49):
            heap.put(number, 16, encode(Form(Disguise.TAGGED), heap.blocks[number + 1][0], number, heap.arch))
        found, graph = find_disguised(engine, heap)
        assert graph.totals(Kind.DEFINITE).blocks == 1 and graph.totals(Kind.INDIRECT).blocks == 49
        assert found.held.blocks == 0
        heap.root_memory[:8] = encode(Form(Disguise.TAGGED), heap.blocks[0][0], 5, heap.arch)
        _, graph = find_disguised(engine, heap)
        assert graph.totals(Kind.REACHABLE).blocks == 50


def make_address(rng: random.Random, heap: Heap) -> int:
    """Return an address in the heap that is aligned like a block."""
    return heap.start + rng.randrange(len(heap.heap)) // 16 * 16


NOISE: dict[str, Callable[[random.Random, Heap, int], bytes]] = {
    "random bytes": lambda rng, heap, size: rng.randbytes(size),
    "text": lambda rng, heap, size: bytes(rng.choices(b"etaoin shrdluETAOIN UVWXYZ0123456789", k=size)),
    "counters": lambda rng, heap, size: array("I", range(size // 4)).tobytes(),
    "even counters": lambda rng, heap, size: array("I", range(0, size // 2, 2)).tobytes(),
    "random 32-bit numbers below 64 Ki": lambda rng, heap, size: array("I", (rng.getrandbits(16) for _ in range(size // 4))).tobytes(),
    "offsets of 16": lambda rng, heap, size: array("I", range(0, 4 * size, 16)).tobytes(),
    "64-bit numbers": lambda rng, heap, size: array("Q", range(0, 16 * (size // 8), 16)).tobytes(),
    "floats": lambda rng, heap, size: array("d", (rng.random() * 1000 for _ in range(size // 8))).tobytes(),
    "halves of addresses": lambda rng, heap, size: b"".join(
        (make_address(rng, heap) & 0xFFFFFFFF if n % 2 else heap.start >> 32).to_bytes(8, "little") for n in range(size // 8)
    ),
    "six bytes of addresses": lambda rng, heap, size: b"".join(
        make_address(rng, heap).to_bytes(6, "little") + b"\1" for _ in range(size // 8)
    ),
    "swapped bytes of addresses": lambda rng, heap, size: b"".join(make_address(rng, heap).to_bytes(8, "big") for _ in range(size // 8)),
    "mangled addresses": lambda rng, heap, size: b"".join(encode(MANGLED, make_address(rng, heap), 0, heap.arch) for _ in range(size // 8)),
    "inverted addresses": lambda rng, heap, size: b"".join(heap.word(~rng.choice(heap.blocks)[0] & MASK) for _ in range(size // 8)),
    "addresses in the heap": lambda rng, heap, size: b"".join(
        heap.word((heap.start + rng.randrange(len(heap.heap))) >> rng.choice((1, 2, 3, 4))) for _ in range(size // 8)
    ),
}


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("size", [24, 72])
def test_chance_hides_no_leak(noise: str, size: int) -> None:
    rng = random.Random(noise)
    heap = Heap(graphs.X86_64, MIDDLE, [1 << 18, *[size] * 500], 4096)
    heap.root_memory[8:16] = heap.word(MIDDLE)
    heap.put(0, 0, NOISE[noise](rng, heap, 1 << 18)[: 1 << 18])
    for number in range(1, 501):
        heap.put(number, 0, NOISE[noise](rng, heap, size)[: size // 8 * 8])
    found, graph = find_disguised(graphs.native(), heap)
    assert not found.conventions and not found.held.blocks
    assert graph.totals(Kind.DEFINITE).blocks >= 450


WIDE_FORMS = [Form(Disguise.TAGGED), Form(Disguise.UNALIGNED), Form(Disguise.SHIFTED_LEFT, shift=8), Form(Disguise.SHIFTED_RIGHT, shift=4)]


@pytest.mark.parametrize("form", WIDE_FORMS, ids=lambda form: form.kind.name.lower())
def test_random_addresses_hide_no_small_group(form: Form) -> None:
    """In a small heap, many random words refer to each of a few leaked blocks. They refer to all offsets, not only to the starts."""
    for seed in range(60):
        rng = random.Random(seed)
        size, count, table = rng.choice((24, 40, 72)), rng.randrange(LEAST, 17), rng.choice((1 << 12, 1 << 14))
        heap = Heap(graphs.X86_64, MIDDLE, [table, *[size] * count], 256)
        heap.root_memory[8:16] = heap.word(MIDDLE)
        for at in range(1, table - 7, 8) if form.kind == Disguise.UNALIGNED else range(0, table, 8):
            heap.put(0, at, encode(form, make_address(rng, heap), rng.getrandbits(16), heap.arch))
        found, graph = find_disguised(graphs.native(), heap)
        assert not found.conventions and graph.totals(Kind.DEFINITE).blocks == count, seed


def test_links_in_large_blocks_have_two_offsets() -> None:
    """Pointers between the nodes of a list refer to the links in the nodes. Pointers to the first node of a list refer to its start."""
    for engine in engines():
        heap = table_of(Form(Disguise.TAGGED), lambda n: 8 * n, size=136)
        for number in range(0, 100, 2):
            heap.put(0, 8 * number, encode(Form(Disguise.TAGGED), heap.blocks[1 + number][0] + 64, number, heap.arch))
        found, graph = find_disguised(engine, heap)
        assert [one.blocks for one in found.conventions] == [100] and not graph.has_kind(Kind.DEFINITE, 1)


NUMBERS: dict[str, Callable[[random.Random, Heap, int, int], int]] = {
    "distances": lambda rng, heap, place, size: make_address(rng, heap) - place,
    "sizes": lambda rng, heap, place, size: rng.choice(((size + 23) // 16 * 16, size, 16, 64, 4096)),
    "series": lambda rng, heap, place, size: (place - heap.start) // 8 * size + heap.root_memory[0] * 8,
    "safe-linked": lambda rng, heap, place, size: make_address(rng, heap) ^ place >> 12,
    "tagged": lambda rng, heap, place, size: make_address(rng, heap) + rng.randrange(16) | rng.getrandbits(16) << 48,
    "shifted": lambda rng, heap, place, size: make_address(rng, heap) + rng.randrange(16) << 8,
}
"""Functions that return a number for a place in a table. Leaked blocks of one size follow the table."""


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_in_a_table_hide_no_group(name: str) -> None:
    for seed in range(100):
        rng = random.Random(seed)
        size, count, table = rng.choice((40, 64, 72, 104, 136)), rng.randrange(LEAST, 150), rng.choice((1 << 10, 1 << 12, 1 << 14))
        heap = Heap(graphs.X86_64, rng.choice((MIDDLE, HIGH)), [table, *[size] * count], 256)
        heap.root_memory[0], heap.root_memory[8:16] = rng.choice((0, 1, 8, 200)), heap.word(heap.start)
        for at in range(0, table, 8):
            heap.put(0, at, heap.word(NUMBERS[name](rng, heap, heap.start + at, size) & MASK))
        found, graph = find_disguised(graphs.native(), heap)
        assert not found.conventions and graph.totals(Kind.DEFINITE).blocks == count, seed
