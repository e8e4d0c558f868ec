"""Find the runtime's processors (runtime.p), and the buffers of the collector that belong to them.

Sources: Go 1.18 to 1.26, src/runtime: runtime2.go (p), proc.go (allp, procresize), mwbbuf.go
(wbBuf), time.go (timer.ts, timers); since 1.25, mgcwork.go (gcWork.ptrBuf); since 1.26,
mgcmark_greenteagc.go (spanQueue, spanSPMC: rings in separate mappings)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.go.code_references import variables_of_function
from findleaks.runtimes.go.pclntab import FunctionTable
from findleaks.runtimes.go.types import Types
from findleaks.target.base import Range

_RESIZE = "runtime.procresize"  # allocates the array of processors, so it refers to runtime.allp
_MOST = 1 << 12  # maximum number of processors
_MOST_RINGS = 1 << 10  # maximum number of rings of a processor
_RINGS = "gcw.spanq.chain.head", "gcw.spanq.chain.tail"  # pointers to the rings of spans to scan
_WRITES, _SCANNED = "wbBuf.buf", "gcw.ptrBuf"  # an array, and a pointer to an array


class Processors(NamedTuple):
    """The processors of a program. `variable`: the address of runtime.allp; `array`: that of the
    array to which it refers; `addresses`: those of the processors."""

    variable: int
    array: int
    addresses: Sequence[int]


def find_processors(memory: Memory, types: Types, tables: Sequence[FunctionTable]) -> Optional[Processors]:
    """Return all processors; None if they are not found."""
    structure = types.find("runtime.p")
    number = types.offset(structure, "id") if structure is not None else None
    if number is None:
        return None
    for table in tables:
        for variable in variables_of_function(memory.target, table, _RESIZE):
            place, count, room = memory.words(variable, 3) or (0, 0, 0)
            found = memory.words(place, count) if place and 0 < count <= room <= _MOST else None
            if found and found[0] and all(memory.int32(one + number) == at for at, one in enumerate(found) if one):
                return Processors(variable, place, [one for one in found if one])
    return None


def find_timer_lists(types: Types, processors: Sequence[int]) -> Sequence[int]:
    """Return the addresses of the lists of timers in processors. Timers refer to these lists since
    1.23 (timer.ts); () for older versions."""
    structure, timer = types.find("runtime.p"), types.find("runtime.timer")
    offset = types.offset(structure, "timers") if structure is not None else None
    if offset is None or timer is None or types.offset(timer, "ts") is None:
        return ()
    return [processor + offset for processor in processors]


def list_buffers(memory: Memory, types: Types, processors: Sequence[int]) -> list[Range]:
    """Return the buffers in which processors store pointers for the collector: pointers that the
    program overwrites, pointers in spans that are scanned, and spans that are to be scanned. The
    collector never clears the buffers, so they contain stale pointers, including pointers to blocks
    of C code."""
    structure = types.find("runtime.p")
    found: list[Range] = []
    if structure is None:
        return found
    for name in (_WRITES, _SCANNED):
        field = types.field(structure, name)
        one = types.at(field.type) if field is not None else None
        array = types.at(one.elem) if one is not None and name == _SCANNED else one
        if field is None or array is None:
            continue
        places = (processor + field.offset for processor in processors)
        starts = (memory.word(place) or 0 for place in places) if name == _SCANNED else places
        found += [Range(start, start + array.size) for start in starts if start]
    return found + _list_rings(memory, types, structure, processors)


def _list_rings(memory: Memory, types: Types, structure: int, processors: Sequence[int]) -> list[Range]:
    """Return the rings of spans that are to be scanned. `structure`: the type runtime.p."""
    head, *places = (types.field(structure, name) for name in _RINGS)
    pointer = types.at(head.type) if head is not None else None
    elem = pointer.elem if pointer is not None else 0
    previous, capacity, ring = (types.offset(elem, name) if elem else None for name in ("prev", "cap", "ring"))
    if head is None or previous is None or capacity is None or ring is None:
        return []
    found: dict[int, Range] = {}
    for processor in processors:
        for offset in (head.offset, *(one.offset for one in places if one is not None)):
            record = memory.word(processor + offset) or 0
            for _ in range(_MOST_RINGS):
                start, count = memory.word(record + ring) if record else None, memory.int32(record + capacity) if record else None
                if record in found or not start or not count or count < 0:
                    break
                found[record] = Range(start, start + 8 * count)
                record = memory.word(record + previous) or 0
    return list(found.values())
