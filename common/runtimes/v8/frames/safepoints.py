"""Read the safepoint table of optimized code, which describes the code after each call.

An entry has the offset after the call, the number of a deoptimization, and the offset of a
trampoline, which replaces the return address if the code was deoptimized during the call.

Sources: V8 7.8 to 13.6 (Node 12 to 24), src/codegen/safepoint-table.h, maglev-safepoint-table.h."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from findleaks.runtimes.v8.frames.heap import FrameHeap
from findleaks.runtimes.v8.frames.machine_code import MAGLEV, Code
from findleaks.value_classes import NamedTuple

_MOST_ENTRIES = 1 << 18
# The offset of the field with the offset of the table from the start of the code, up to V8 8.5.
# Later the table follows the instructions.
_TABLE_OFFSET = 48
_NONE = 0xFFFFFFFF


class Safepoint(NamedTuple):
    """The code after a call at offset `pc`. `deoptimization` and `trampoline` are -1 if there is
    none."""

    pc: int
    deoptimization: int
    trampoline: int


def find_deoptimization(heap: FrameHeap, code: Code, pc: int) -> int:
    """Return the number of the deoptimization at a return address; -1 if it is not found."""
    offset = pc - code.start
    found = next((one for one in _safepoints(heap, code) if offset in (one.pc, one.trampoline)), None)
    return found.deoptimization if found is not None else -1


def _safepoints(heap: FrameHeap, code: Code) -> Iterator[Safepoint]:
    if heap.version < (9, 0):
        table = heap.memory.int32(code.header + _TABLE_OFFSET)
        return _iterate_fixed(heap, code.start + table) if table and table <= code.end - code.start else iter(())
    if heap.version < (10, 0):
        return _iterate_fixed(heap, code.end)
    return _variable(heap, code.end, code.kind == MAGLEV)


def _iterate_fixed(heap: FrameHeap, table: int) -> Iterator[Safepoint]:
    """Yield the entries of a table {number of entries, bytes of a bitmap}, and entries of three
    words of 32 bits."""
    count = heap.memory.int32(table)
    if count is None or not 0 < count <= _MOST_ENTRIES:
        return
    data = heap.read_table(table + 8, 12 * count)
    words = memoryview(data).cast("I")
    for at in range(0, len(words), 3):
        pc, number, trampoline = words[at : at + 3]
        yield Safepoint(pc, -1 if number == _NONE else number, -1 if trampoline == _NONE else trampoline)


def _variable(heap: FrameHeap, table: int, is_maglev: bool) -> Iterator[Safepoint]:
    """Yield the entries of a table whose header has the sizes of the fields. Since V8 13, the
    number of stack slots comes first."""
    counts_slots = heap.version >= (13, 0)
    head = heap.memory.read(table, 16 + 4 * counts_slots)
    if not head:
        return
    words = memoryview(head).cast("I")[counts_slots:]
    count, sizes = words[0], words[1]
    has_deoptimization, registers, pcs, numbers = sizes & 1, sizes >> 1 & 7, sizes >> 4 & 7, sizes >> 7 & 7
    start = table + 4 * counts_slots + 8
    if is_maglev:
        start += 4 if counts_slots else 8  # numbers of tagged and, up to V8 12, of untagged slots
        registers += 1  # number of spill slots
    size = pcs + (pcs + numbers if has_deoptimization else 0) + registers
    data = heap.read_table(start, size * count) if 0 < count <= _MOST_ENTRIES and size else b""
    for at in range(0, len(data), size or 1):
        pc = _number(data, at, pcs)
        number = _number(data, at + pcs, numbers) - 1 if has_deoptimization else -1
        trampoline = _number(data, at + pcs + numbers, pcs) - 1 if has_deoptimization else -1
        yield Safepoint(pc, number, trampoline)


def _number(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")


def first_entry(length: int, least: int) -> Optional[int]:
    """Return the index of the first entry of deoptimization data of this length. Entries have three
    elements, and follow `least` to `least` + 2 others."""
    return next((first for first in range(least, least + 3) if (length - first) % 3 == 0), None) if length >= least else None
