"""Numbers that lead to leaked blocks by chance are not disguised pointers. Which words are examined as keys."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import graphs
import pytest
from disguised import KEY, LOW, MANGLED, MASK, MIDDLE, Heap, engines, find_disguised, table_of

from findleaks.engine.disguises import Disguise, Form
from findleaks.engine.terms import Kind
from findleaks.graph.disguise_parameters import KEYS, find_key_forms
from findleaks.target.base import Piece


@pytest.mark.parametrize(
    ("form", "pointers", "count", "reported"),
    [
        (Disguise.RELATIVE, 3, 3, False),
        (Disguise.RELATIVE, 6, 6, True),
        (Disguise.RELATIVE, 6, 100, False),
        (Disguise.RELATIVE, 20, 100, True),
        (Disguise.TAGGED, 1, 100, False),
        (Disguise.TAGGED, 3, 100, False),
        (Disguise.TAGGED, 3, 3, False),
        (Disguise.TAGGED, 12, 100, True),
        (Disguise.UNALIGNED, 2, 2_526, False),
        (Disguise.UNALIGNED, 200, 2_526, False),
        (Disguise.UNALIGNED, 255, 2_526, True),
    ],
)
def test_few_pointers_are_not_reported(form: Disguise, pointers: int, count: int, reported: bool) -> None:
    """A size or a counter may be the distance from a leaked block by chance. In other forms, two or three words may be numbers."""
    shift = form == Disguise.UNALIGNED
    for engine in engines() if count < 1000 else [graphs.native()]:
        found, graph = find_disguised(engine, table_of(Form(form), lambda n: 8 * (n % pointers) + shift, count=count))
        assert not found.conventions and graph.totals(Kind.DEFINITE).blocks == count
        assert [(one.size, one.blocks, one.of) for one in found.partly] == ([(72, pointers, count)] if reported else [])


HASHES: dict[str, Callable[[int, int], bytes]] = {
    "unaligned": lambda number, extra: bytes(4) + number.to_bytes(12, "little"),
    "tagged": lambda number, extra: (number | (extra + 1) << 48).to_bytes(8, "little"),
    "shifted left": lambda number, extra: (number << 16 | extra).to_bytes(8, "little"),
    "shifted right": lambda number, extra: (number >> 3).to_bytes(8, "little"),
}
"""Functions that return a number, such as the hash of a string, in a form of disguised pointers."""


@pytest.mark.parametrize("kind", HASHES)
def test_hashes_in_a_large_heap_are_no_pointers(kind: str) -> None:
    """A program at low addresses, such as Node.js. Some hashes in its heap equal the addresses of leaked blocks by chance."""
    by_chance = 0
    for seed in range(8):
        rng = random.Random(seed)
        heap = Heap(graphs.X86_64, LOW, [1 << 18, *[120] * 2_526], 64)
        heap.root_memory[8:16] = heap.word(LOW)
        numbers = [rng.getrandbits(24) * 8 for _ in range(1 << 14)]
        heap.put(0, 0, b"".join(HASHES[kind](number, rng.getrandbits(15)) for number in numbers))
        found, graph = find_disguised(graphs.native(), heap)
        assert not (found.conventions or found.partly) and graph.totals(Kind.DEFINITE).blocks == 2_526, seed
        by_chance += len({at for at, _, _ in heap.blocks}.intersection(numbers))
    assert by_chance


RANDOM = [0x8F1BBCDC5A82799E + 0x9E3779B97F4A7C15 * number & MASK for number in range(60)]
"""Different words that look random."""


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (RANDOM[:2], RANDOM[:2]),
        ([KEY], []),  # a known key
        ([0x3FF8000000000000, int.from_bytes(b"any text", "little"), 0xFFF90000012345F7], []),  # a float, a text, a tagged pointer
        (RANDOM, RANDOM[:KEYS]),
    ],
    ids=["random", "known", "others", "many"],
)
def test_words_that_are_examined_as_keys(words: Sequence[int], keys: Sequence[int]) -> None:
    tried: list[Form] = []
    examined: list[int] = []

    def pieces() -> Iterator[Piece]:
        for number, word in enumerate(words):
            examined.append(word)
            yield graphs.piece(MIDDLE + 8 * number, bytearray(word.to_bytes(8, "little")))

    def tries(forms: Sequence[Form], step: int) -> list[tuple[int, int]]:
        tried.extend(forms)
        return [(8, 8 if form.base == RANDOM[1] and form.shift else 7) for form in forms]

    found = find_key_forms(graphs.native(), pieces(), [MANGLED], 100, 1 << 20, tries)
    assert [form.base for form in tried if not form.shift] == list(keys) and len(tried) == 2 * len(keys)
    assert found == [Form(Disguise.MANGLED, RANDOM[1], 17)] * (RANDOM[1] in keys)
    assert len(examined) <= KEYS + 1
    assert find_key_forms(graphs.native(), pieces(), [], 7, 1 << 20, tries) == [] and len(tried) == 2 * len(keys)  # too few leaks


SHIFTED = [("swapped", 120, 600), ("unaligned", 120, 600), ("unaligned", 120, 100), ("unaligned", 248, 600)]
"""How integers become addresses, the size of the blocks, and their number."""
# If the distance is 0, all blocks of 248 bytes are at multiples of 256, and pointers to them look like small integers.
SHIFTED_AT = [(*one, distance) for one in SHIFTED for distance in (0, 16, 80, 144, 240) if one[1] == 120 or distance]


@pytest.mark.parametrize(("way", "size", "count", "distance"), SHIFTED_AT)
def test_small_integers_of_v8_are_no_pointers(way: str, size: int, count: int, distance: int) -> None:
    """V8 stores a small integer in the upper half of a word. With swapped bytes, or read at the byte before it, it is a multiple of 256. If
    blocks are 128 or 256 bytes apart, counters lead to one offset in every second or in every block."""
    heap = Heap(graphs.X86_64, LOW, [(1 << 14) - 16 + distance, *[size] * count], 64)
    heap.root_memory[8:16] = heap.word(LOW)
    targets = range(LOW, LOW + len(heap.heap), 256)
    integers = [int.from_bytes(at.to_bytes(4, "little"), "big") if way == "swapped" else at >> 8 for at in targets]
    heap.put(0, 0, b"".join(heap.word(one << 32) for one in integers))
    for engine in engines() if distance in (0, 16) else [graphs.native()]:
        found, graph = find_disguised(engine, heap)
        assert not (found.conventions or found.partly) and graph.totals(Kind.DEFINITE).blocks == count


@pytest.mark.parametrize("size", [120, 248])
@pytest.mark.parametrize(("every", "conventions"), [(100, 1), (40, 0)])
def test_packed_structures_at_low_addresses(size: int, every: int, conventions: int) -> None:
    found, _ = find_disguised(graphs.native(), table_of(Form(Disguise.UNALIGNED), lambda n: 9 * (n % every) + 1, start=LOW, size=size))
    assert (len(found.conventions), len(found.partly)) == (conventions, 1 - conventions)


def test_small_integers_beside_packed_structures() -> None:
    """Blocks of one size have unaligned pointers. Integers lead to every second block of another size."""
    heap = Heap(graphs.X86_64, LOW, [8368, *[72] * 100, *[120] * 600], 64)
    heap.root_memory[8:16] = heap.word(LOW)
    for number in range(100):
        heap.put(0, 9 * number + 1, heap.word(heap.blocks[1 + number][0]))
    assert heap.blocks[101][0] % 256 == 0
    targets = range(heap.blocks[101][0], LOW + len(heap.heap), 256)
    heap.put(0, 1024, b"".join(heap.word(at >> 8 << 32) for at in targets))
    for engine in engines():
        found, graph = find_disguised(engine, heap)
        assert [(one.form.kind, one.sizes, one.blocks) for one in found.conventions] == [(Disguise.UNALIGNED, (72,), 88)]  # 12 are aligned
        assert graph.totals(Kind.DEFINITE).blocks == 600
