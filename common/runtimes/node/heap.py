"""V8's heap: where it is in an isolate, what it counts of external memory, and its chunks.

Sources: V8 10.2 to 13.6 (Node 18 to 24), src/api/api.cc (Isolate::AdjustAmountOfExternalAllocatedMemory, Isolate::GetHeapStatistics),
src/heap/heap.cc (Heap::UpdateExternalMemory), src/heap/basic-memory-chunk.h, later memory-chunk.h and memory-chunk-metadata.h. The first
function loads the address of the heap in the isolate (lea), and adds to the total (lock xadd): in the isolate, or in the heap by a function
that it calls. The second one stores the bytes of backing stores as the eighth word of the statistics. A chunk begins at a multiple of
256 KiB; it has its size and, further on, the heap's address among its first words, or what one of its first words points to has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.errors import Interrupted, UnreadableMemory
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

FIRST = 8
"""Of these words the size of the chunk is among the first."""

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
    """The chunks of these heaps, ascending; large objects' are larger than others. Raises nothing but Interrupted."""
    memory = Memory(target)
    headed: list[tuple[int, int, tuple[int, ...]]] = []  # where a chunk seems to begin, where memory ends, the words that its size is among
    for start, end in merged([Range(region.start, region.end) for region in target.regions() if not region.name.startswith("/")]):
        for number, at in enumerate(range(-(-start // CHUNK) * CHUNK, end, CHUNK)):
            if not number % 256 and target.interrupted():
                raise Interrupted
            words = _header(memory, at, heaps)
            if words is not None:
                headed.append((at, end, words[:FIRST]))
    sizes = _sizes(headed)
    found: list[Range] = []
    for at, end, words in headed:
        size = next((words[place] for place in sizes if _fits(words[place], end - at)), 0)
        if size and (not found or at >= found[-1].end):
            found.append(Range(at, at + size))
    return found


def _header(memory: Memory, at: int, heaps: frozenset[int]) -> Optional[tuple[int, ...]]:
    """The words of the header that stands here, or of what it leads to; None where there is no chunk of these heaps."""
    words = memory.words(at, HEADER)
    if words is None or not heaps.isdisjoint(words):
        return words
    for pointed in words[:4]:
        other = memory.words(pointed, HEADER) if pointed > PAGE and pointed % memory.size == 0 else None
        if other is not None and not heaps.isdisjoint(other):
            return other
    return None


def _sizes(headed: Sequence[tuple[int, int, tuple[int, ...]]]) -> list[int]:
    """Which of their words may be the size of chunks: the one that always could be first, for what is allocated in a chunk could be at
    times; of equal ones that which is larger."""
    votes: Counter[int] = Counter()
    total: Counter[int] = Counter()
    for at, end, words in headed:
        for place, word in enumerate(words):
            if _fits(word, end - at):
                votes[place] += 1
                total[place] += word
    return sorted(votes, key=lambda place: (-votes[place], -total[place]))


def _fits(size: int, most: int) -> bool:
    return PAGE <= size <= most and size % PAGE == 0
