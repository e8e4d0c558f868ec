"""Count CPython's objects in Python: the reference for common/native/cpython_objects.c."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Literal, Union

from findleaks.engine.contract import Blocks
from findleaks.engine.dominators import IGNORED
from findleaks.engine.reference.engine import PureEngine
from findleaks.engine.reference.graph import PureGraph
from findleaks.engine.terms import State
from findleaks.runtimes.count_verdict import CountVerdict
from findleaks.runtimes.cpython.counts import BlockReader, CountColumns
from findleaks.runtimes.cpython.engine import LEAF, NO_OBJECT, READY, STEPS, SUMS, ObjectTally
from findleaks.runtimes.cpython.values_reference import are_values
from findleaks.target.base import Piece
from findleaks.target.encoded_numbers import decode_signed

_SMALL = 1 << 20
FREE_THREADED = 16  # minimum number of bytes of an object before ob_ref_shared
MUTEX, GC_BITS = -6, -5  # offsets from ob_ref_shared: ob_mutex, ob_gc_bits; ob_ref_local follows
IMMORTAL = 0xFFFFFFFF  # ob_ref_local
MERGED = 3  # _Py_REF_MERGED, in the two low bits of ob_ref_shared
DEFERRED_BIT = 64  # of ob_gc_bits
_LINK_FLAGS, _LOWEST_LINK = 3, 4096  # see has_link in cpython_objects.c
_MOST_COUNTED, _DEFERRED = 1 << 33, 1 << 59


def count_objects(engine: PureEngine, blocks: Blocks, piece: Piece, tally: ObjectTally) -> array[int]:
    """See engine.py."""
    arch = engine.arch
    word = arch.word
    header = 2 * word
    numbers = {address: number for number, address in enumerate(tally.types)}
    steps = sorted({offset for offset in tally.offsets if offset % header == 0 and offset < STEPS * header})
    cut: array[int] = array("Q")
    end = piece.address + len(piece.data)
    for index in range(blocks.at_or_after(piece.address), len(blocks)):
        start = blocks.address(index)
        if start >= end:
            break
        size = blocks.size(index)
        if blocks.state(index) != State.IN_USE or start % word:
            continue
        if end - start < size and end - start < (STEPS + 1) * header:
            cut.append(start)
            continue

        def at(offset: int, start: int = start) -> int:
            place = start - piece.address + offset
            return int.from_bytes(piece.data[place : place + word], arch.byteorder)

        for offset in steps:
            if size < offset + header:
                break
            number = numbers.get(at(offset + word))
            count = at(offset)
            if number is None or tally.offsets[number] != offset:
                continue
            place = start - piece.address + offset
            if (
                not tally.shift
                and not offset
                and are_values(piece.data[start - piece.address :][: min(size, (STEPS + 1) * header)], arch, size)
            ):
                break
            if tally.shift:
                head = piece.data[place - FREE_THREADED : place] if offset >= FREE_THREADED else None
                if head is None or not _shared_counts(head, decode_signed(count, 8 * word), word, arch.byteorder):
                    continue
                live = bool(_local(head, arch.byteorder) or count >> 2)
                tracked = bool(head[GC_BITS] & 1)
            elif _counts(blocks, tally, count):
                link = at(offset - header) if offset else 0
                if _LINK_FLAGS < link < _LOWEST_LINK:
                    continue
                live, tracked = bool(count), link != 0
            else:
                continue
            if live:
                mark = tally.marks[number]
                there = mark and offset + mark < min(size, end - start)
                state = piece.data[start - piece.address + offset + mark] if there else 0
                leaf = tally.leaves[number]
                tally.found[index] = number
                is_leaf = leaf == 1 or (leaf and mark and state & leaf == leaf)
                if is_leaf and leaf & READY and offset + mark + 2 * word <= min(size, end - start):
                    is_leaf = at(offset + mark + word) == 0
                tally.merged[index] = IGNORED if is_leaf else number
                values = offset == 0 and _may_be_values(piece.data[start - piece.address :][:size], word, arch.byteorder)
                tally.patterns[index] = 0 if values else LEAF if is_leaf else tally.lives[number]
                tally.sums[SUMS * number] += 1
                tally.sums[SUMS * number + 1] += size
                tally.sums[SUMS * number + 2] += tracked
                if state & 3:
                    tally.sums[SUMS * number + 4] += 1
                    tally.sums[SUMS * number + 5] += size
            else:
                tally.sums[SUMS * number + 3] += 1
            break
    return cut


def _may_be_values(data: memoryview, word: int, order: Literal["little", "big"]) -> bool:
    """Return whether a block may be a dictionary's values: see may_be_values in
    cpython_objects.c."""
    for offset in (24, 32):
        if len(data) >= offset and data[offset - 1] == offset:
            most = offset - 2
            ordered = bytes(data[max(most - data[most], 0) : most])
            if len(ordered) != data[most] or len(set(ordered)) < len(ordered) or any(number >= most for number in ordered):
                continue
            if len(data) < offset + word or not int.from_bytes(data[offset : offset + word], order) % word:
                return True
    return False


def _counts(blocks: Blocks, tally: ObjectTally, word: int) -> bool:
    return not word >> 32 & 0xFFFF and (word < _SMALL or (not tally.low <= word < tally.high and blocks.find(word) < 0))


def _shared_counts(head: memoryview, count: int, word: int, order: Literal["little", "big"]) -> bool:
    """See shared_counts in cpython_objects.c."""
    owner = int.from_bytes(head[:word], order)
    owned = owner % word == 0 and owner >= 4096 if owner else count & 3 == MERGED or _local(head, order) == IMMORTAL
    return owned and head[MUTEX] <= 3 and (count >> 2 >= _DEFERRED or abs(count >> 2) < _MOST_COUNTED)


def _local(head: Union[memoryview, bytes], byteorder: Literal["little", "big"]) -> int:
    return int.from_bytes(head[-4:], byteorder)


def immortal_objects(engine: PureEngine, blocks: Blocks, piece: Piece, tally: ObjectTally) -> array[int]:
    """See engine.py and fl_immortal_objects."""
    word, found = engine.arch.word, array("Q")
    for index in range(blocks.at_or_after(piece.address), len(blocks)):
        start = blocks.address(index)
        place = start - piece.address
        if place >= len(piece.data):
            break
        if tally.found[index] == NO_OBJECT or start % word:
            continue
        at = place + tally.offsets[tally.found[index]]
        if at - place >= FREE_THREADED and at + 2 * word <= len(piece.data) and _local(piece.data[:at], engine.arch.byteorder) == IMMORTAL:
            found.append(start)
    return found


OBJECT, EXCESS, TRACKED, REFERS_TO_ITSELF = 1, 2, 4, 8  # flags of a block


def compare_counts(
    engine: PureEngine, graph: PureGraph, pieces: Iterable[Piece], read: BlockReader, tally: ObjectTally, columns: CountColumns
) -> None:
    """See counts.py and object_counts.c."""
    lost = graph.lost.indices()
    among = set(lost)
    for index in lost:
        for edge in graph.edges_of(index):
            if not edge & 1 and edge >> 1 in among:
                columns.excess[edge >> 1] += 1
    objects = [index for index in lost if tally.found[index] != NO_OBJECT]
    for index in objects:
        start = graph.blocks.starts[index]
        whole = None if start % engine.arch.word else read(start)
        if whole is not None:
            _compare(engine, graph, index, bytes(whole.data), tally, columns)
    _judge(graph, lost, tally, columns)


def _compare(engine: PureEngine, graph: PureGraph, index: int, data: bytes, tally: ObjectTally, columns: CountColumns) -> None:
    word, order = engine.arch.word, engine.arch.byteorder
    offset = tally.offsets[tally.found[index]]
    if len(data) < offset + 2 * word or (tally.shift and offset < FREE_THREADED):
        return
    words = engine.arch.unpack(data[: len(data) // word * word])
    of = graph.excluded.of(index)
    own = sum(
        value & ~3 == graph.blocks.starts[index] + offset - tally.shift and not (of.words | of.links) & of.bit(at)
        for at, value in enumerate(words)
    )
    counted = int.from_bytes(data[offset : offset + word], order)
    references = columns.excess[index] + own
    if tally.shift:
        local, bits = _local(data[:offset], order), data[offset + GC_BITS]
        counted = local + (decode_signed(counted, 8 * word) >> 2)
        exact, tracked = local != IMMORTAL and not bits & DEFERRED_BIT and counted < 0xFFFFFFFF, bool(bits & 1)
    else:
        counted &= 0xFFFFFFFF
        exact = counted < (1 << 31 if word == 8 else 1 << 29)
        tracked = offset >= 2 * word and words[offset // word - 2] != 0
    excess = exact and counted > references
    columns.flags[index] = OBJECT | EXCESS * excess | TRACKED * tracked | REFERS_TO_ITSELF * bool(own)
    columns.excess[index] = counted - references if excess else 0


def _judge(graph: PureGraph, lost: Iterable[int], tally: ObjectTally, columns: CountColumns) -> None:
    cycle_of_objects: set[int] = set()
    cycle_untracked: set[int] = set()
    has_excess: set[int] = set()
    for index in lost:
        leak_head, flags = graph.leak_head(index), columns.flags[index]
        cyclic = graph.lost.in_cycle_of(index, leak_head) and (graph.cycle(leak_head) > 1 or flags & REFERS_TO_ITSELF)
        if flags & OBJECT and cyclic:
            (cycle_of_objects if flags & TRACKED else cycle_untracked).add(leak_head)
        if flags & EXCESS:
            has_excess.add(leak_head)
    for index in lost:
        leak_head = graph.leak_head(index)
        verdict = (
            CountVerdict.MISSING_DECREF
            if leak_head in has_excess
            else CountVerdict.UNTRACKED_CYCLE
            if leak_head in cycle_untracked
            else CountVerdict.UNCOLLECTED
            if leak_head in cycle_of_objects
            else CountVerdict.NOTHING
        )
        columns.verdicts[index] = verdict
        columns.totals[2 * verdict] += 1
        columns.totals[2 * verdict + 1] += graph.blocks.sizes[index]
        number = tally.found[index]
        columns.excess[index] *= bool(columns.flags[index] & EXCESS)
        if number != NO_OBJECT:
            columns.sums[3 * number] += columns.excess[index] > 0
            columns.sums[3 * number + 1] += columns.excess[index]
            columns.sums[3 * number + 2] += verdict == CountVerdict.UNCOLLECTED
