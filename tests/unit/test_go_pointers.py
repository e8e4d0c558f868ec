"""Test copying the pointers of Go's objects. The C engine and the reference engine agree, and copy the words that are
pointers according to Go's bitmaps."""

from __future__ import annotations

import random
from array import array
from types import SimpleNamespace
from typing import Any

import graphs
import pytest

from findleaks.engine.contract import Engine
from findleaks.runtimes.go.engine import ARENA, BITMAP, HEADERS, NONE, PAGE, PAIRS, PointerTable, copy_pointers
from findleaks.runtimes.go.pointer_maps import PointerMaps
from findleaks.target.arch import X86_64
from findleaks.target.base import Piece, Range

BASE, ENTRY = 0xC000000000, 0x7F0000000000
TYPE, WIDE = 0x500000, 0x500100
SPANS = ((1, 24, 6), (1, 8, 2), (1, 512, 40), (4, 1024, 46), (2, 3072, 50), (5, 5 * PAGE, 0), (9, 9 * PAGE, 0))
"""For each span: its number of pages, the size of its slots in bytes, and its class."""


def table(form: int) -> PointerTable:
    starts, at = array("Q"), BASE
    for pages, _, _ in SPANS:
        starts.append(at)
        at += pages * PAGE
    return PointerTable(
        starts,
        array("Q", [start + pages * PAGE for start, (pages, _, _) in zip(starts, SPANS)]),
        array("Q", [size for _, size, _ in SPANS]),
        array("I", [NONE, NONE, NONE, NONE, NONE, 1, NONE]),
        bytearray(kind for _, _, kind in SPANS),
        array("Q", [TYPE, WIDE]),
        array("Q", [24, 680]),
        array("Q", [2, 84]),
        array("Q", [0, 1]),
        bytearray([2, *range(11)]),
        array("Q", [BASE]),
        array("Q", [ENTRY]),
        form,
    )


def memory(state: random.Random, form: int) -> list[Any]:
    """Return memory with random words and bitmaps. One page is missing, and some headers have the address of a type."""
    known = table(form)
    heap = bytearray(state.randbytes(known.ends[-1] - BASE))
    for start, end, size, kind in zip(known.starts, known.ends, known.sizes, known.classes):
        if kind and size > 512:
            for at in range(start - BASE, end - BASE - size + 1, size):
                heap[at : at + 8] = state.choice([TYPE, WIDE, 7, 0]).to_bytes(8, "little")
        elif kind and state.random() < 0.5:
            heap[end - BASE - 1] = kind
    bitmap = state.randbytes(ARENA // 64 if form == BITMAP else ARENA // 32)[: len(heap) // 32 - (512 if state.random() < 0.3 else 0)]
    gap = state.randrange(0, len(heap) - PAGE, 8)
    parts = [(BASE, heap[:gap]), (BASE + gap + PAGE, heap[gap + PAGE :]), (ENTRY, bitmap)]
    return [graphs.piece(address, bytes(data)) for address, data in parts if data]


@pytest.mark.parametrize("form", [HEADERS, BITMAP, PAIRS])
@pytest.mark.parametrize("seed", range(12))
def test_engines_agree(seed: int, form: int) -> None:
    state, known = random.Random(f"{seed} {form}"), table(form)
    pieces, end = memory(state, form), known.ends[-1]
    low = BASE + state.randrange(0, end - BASE, 8)
    for where in (Range(BASE, end), Range(low, min(low + state.randrange(8, 20 * PAGE, 8), end))):
        answers = [copy_pointers(engine, pieces, known, where) for engine in (graphs.native(), graphs.pure())]
        assert len({(bytes(piece.data), unknown) for piece, unknown in answers}) == 1


@pytest.mark.parametrize("of", [graphs.native, graphs.pure])
@pytest.mark.parametrize("form", [HEADERS, BITMAP, PAIRS])
@pytest.mark.parametrize("left_out", [(), (1,), (1, 3), (0, 2, 5), (5, 6), (6,), (0, 1, 2, 3, 4, 5, 6)])
def test_gaps_between_spans(left_out: tuple[int, ...], form: int, of: Any) -> None:
    """All pointers of the heap are the same in pieces that include gaps between spans. `left_out`: spans without pointers."""
    known, pieces = table(form), memory(random.Random(f"{left_out} {form}"), form)
    chosen = [at for at in range(len(SPANS)) if at not in left_out]
    columns = (known.starts, known.ends, known.sizes, known.large)
    starts, ends, sizes, large = (array(one.typecode, [one[at] for at in chosen]) for one in columns)
    known = known._replace(starts=starts, ends=ends, sizes=sizes, large=large, classes=bytearray(known.classes[at] for at in chosen))

    def cut(start: int, end: int) -> list[Piece]:
        found = [(one, max(start, one.address), min(end, one.address + len(one.data))) for one in pieces]
        return [Piece(low, one.data[low - one.address : high - one.address]) for one, low, high in found if low < high]

    target = SimpleNamespace(is_interrupted=lambda: False, pieces=cut)
    maps = PointerMaps.__new__(PointerMaps)
    vars(maps).update(
        _memory=SimpleNamespace(target=target), _engine=of(), _form=form, _table=known, unknown=0,
        _starts=starts, _ends=ends, _kinds=known.classes, _heap=SimpleNamespace(arenas=known.arenas, entries=known.entries),
    )  # fmt: skip
    joined = list(maps.all_pieces())
    apart = list(maps.pieces(map(Range, starts, ends)))
    assert len(joined) <= len(apart)
    words = [{one.address + at: one.data[at] for one in found for at in range(len(one.data)) if one.data[at]} for found in (joined, apart)]
    assert words[0] == words[1]


def copy_words(engine: Engine, form: int, words: dict[int, int], where: Range) -> tuple[list[int], int]:
    """Return the offsets of the kept words in a range, and the number of unknown parts. `words`: values by address; other words of the
    heap are 1."""
    known = table(form)
    heap = array("Q", [1]) * ((known.ends[-1] - BASE) // 8)
    bitmap = bytearray(ARENA // 32)
    for address, value in words.items():
        if address >= ENTRY:
            bitmap[address - ENTRY : address - ENTRY + 8] = value.to_bytes(8, "little")
        else:
            heap[(address - BASE) // 8] = value
    piece, unknown = copy_pointers(engine, [graphs.piece(BASE, heap.tobytes()), graphs.piece(ENTRY, bytes(bitmap))], known, where)
    return [8 * at for at, word in enumerate(X86_64.words(piece.data)) if word], unknown


@pytest.mark.parametrize("of", [graphs.native, graphs.pure])
def test_maps_of_pointers(of: Any) -> None:
    engine = of()
    page = Range(BASE, BASE + 64 * 8)
    bits, class_ = 0b1010_0001, 6 << 56
    # Since Go 1.22, the bits are at the end of the span, or before the mark bits that the collector of Go 1.26 has there.
    assert copy_words(engine, HEADERS, {BASE + PAGE - 128: bits, BASE + PAGE - 8: 0}, page) == ([0, 40, 56], 0)
    assert copy_words(engine, HEADERS, {BASE + PAGE - 256: bits, BASE + PAGE - 8: class_}, page) == ([0, 40, 56], 0)
    # In Go 1.20 and 1.21, a bitmap has one bit for each word.
    assert copy_words(engine, BITMAP, {ENTRY: bits}, page) == ([0, 40, 56], 0)
    # Up to Go 1.19, a bitmap has two bits for each word. Of three objects, the second and the third have a pointer only in the first word.
    assert copy_words(engine, PAIRS, {ENTRY: 0x66FD}, page) == ([0, 16, 24, 48], 0)
    # Since Go 1.22, larger objects have headers. The first object has values of 24 bytes, with a pointer in the second word of each value.
    start = table(HEADERS).starts[3]
    kept, unknown = copy_words(engine, HEADERS, {start: TYPE, start + 1024: 7}, Range(start, start + 2048))
    assert unknown == 1
    assert [at for at in kept if at < 1024] == list(range(16, 1024, 24))
    assert [at for at in kept if at >= 1024] == list(range(1024, 2048, 8))
