"""V8's heap: where it is in an isolate, what it counts of external memory, and its chunks.

Sources: V8 10.2 to 13.6 (Node 18 to 24), src/api/api.cc (Isolate::AdjustAmountOfExternalAllocatedMemory, Isolate::GetHeapStatistics),
src/heap/heap.cc (Heap::UpdateExternalMemory), src/heap/basic-memory-chunk.h, later memory-chunk.h and memory-chunk-metadata.h. The first
function loads the address of the heap in the isolate (lea), and adds to the total (lock xadd): in the isolate, or in the heap by a function
that it calls. The second one stores the bytes of backing stores as the eighth word of the statistics. A chunk begins at a multiple of
256 KiB; it has its size and, further on, the heap's address among its first words, or what one of its first words points to has.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.errors import UnreadableMemory
from findleaks.runtimes.node import ADJUST
from findleaks.runtimes.v8.decode import CALL, Instruction
from findleaks.runtimes.v8.layout import FAR, code_of
from findleaks.runtimes.v8.listing import listing
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merged

LEA, STORE, ADDS = 0x8D, 0x89, 0x0FC1
STATISTICS = "_ZN2v87Isolate17GetHeapStatisticsEPNS_14HeapStatisticsE"
EIGHTH = 56
CHUNK = 256 << 10
PAGE = 4096
HEADER = 32
"""Words of a chunk, or of what one of its first four points to, among which the heap's address stands."""

LENGTH = 256


class Heap(NamedTuple):
    """Offsets from the isolate: of the heap, of the bytes of external memory that it was told of, and of those of backing stores, which
    process.memoryUsage() calls external (0: not known)."""

    heap: int
    told: int
    external: int


def derive(target: Target) -> Optional[Heap]:
    """None where the function is not the code that was expected."""
    code = code_of(target, (ADJUST,)) or []
    heap = next((one.displacement for one in code if one.opcode == LEA and _far(one)), None)
    if heap is None:
        return None
    total = _added(code, heap)
    if total is None:
        for one in code:
            if one.opcode == CALL and one.target is not None:
                total = _added(_called(target, one.target), heap, True)
                if total is not None:
                    break
    return Heap(heap, total, _stores(code_of(target, (STATISTICS,)) or [])) if total is not None else None


def _stores(code: list[Instruction]) -> int:
    """From where the eighth word of the statistics is taken; 0 where that cannot be seen."""
    loaded: dict[int, int] = {}
    for one in code:
        if one.loads and _far(one):
            loaded[one.reg] = one.displacement or 0
        elif one.opcode == STORE and one.displacement == EIGHTH:
            return loaded.get(one.reg, 0)
    return 0


def _far(one: Instruction) -> bool:
    return one.displacement is not None and one.displacement >= FAR and one.base >= 0


def _added(code: list[Instruction], heap: int, inside: bool = False) -> Optional[int]:
    """Where something is added to: relative to the isolate, or to the heap."""
    for one in code:
        if one.opcode == ADDS and one.displacement is not None:
            return one.displacement if one.displacement >= FAR and not inside else heap + one.displacement
    return None


def _called(target: Target, address: int) -> list[Instruction]:
    try:
        return list(listing(target, address, LENGTH))
    except UnreadableMemory:
        return []


def chunks(target: Target, heaps: frozenset[int]) -> list[Range]:
    """The chunks of these heaps, ascending; large objects' are larger than others."""
    found: list[Range] = []
    memory = Memory(target)
    for start, end in merged([Range(region.start, region.end) for region in target.regions() if not region.name.startswith("/")]):
        for at in range(-(-start // CHUNK) * CHUNK, end, CHUNK):
            if found and at < found[-1].end:
                continue
            size = _chunk(memory, at, end, heaps)
            if size:
                found.append(Range(at, at + size))
    return found


def _chunk(memory: Memory, at: int, end: int, heaps: frozenset[int]) -> int:
    """The size of the chunk here, which does not reach beyond `end`, or 0."""
    words = memory.words(at, HEADER)
    if words is None:
        return 0
    if not heaps.isdisjoint(words):
        return _size(words, end - at)
    for pointed in words[:4]:
        other = memory.words(pointed, HEADER) if pointed > PAGE and pointed % memory.size == 0 else None
        if other is not None and not heaps.isdisjoint(other):
            return _size(other, end - at)
    return 0


def _size(words: tuple[int, ...], most: int) -> int:
    return next((word for word in words[:8] if PAGE <= word <= most and word % PAGE == 0), 0)
