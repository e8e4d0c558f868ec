"""vmem arenas: ranges of addresses for the slabs of caches, and for large requests."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.umem.layout import SEG_ALLOC, SEG_FREE, SEG_ROTOR, SEG_SPAN, SEG_WALKER, ArenaLayout, measure_arena
from findleaks.engine.contract import Engine
from findleaks.target.base import Piece, Range
from findleaks.target.ranges import merged

MAX_ARENAS = 4096
MAX_SPANS = 1 << 20
MAX_SEGMENTS = 1 << 28

OWN = frozenset(
    (
        *("umem_internal", "umem_cache", "umem_hash", "umem_log", "umem_va", "umem_default", "umem_firewall_va", "umem_firewall"),
        *("vmem_internal", "vmem_seg", "vmem_hash", "vmem_vmem", "mmap_top", "mmap_heap", "sbrk_top", "sbrk_heap"),
    )
)
"""Arenas from which libumem takes what it then hands out, or which hold its structures.

Sources: umem.c, vmem.c, vmem_mmap.c, vmem_sbrk.c.
"""

MALLOC = frozenset(("umem_oversize", "umem_memalign"))
"""Arenas whose segments umem_alloc(), malloc() and memalign() hand out as they are."""


@dataclass
class Segment:
    """A vmem_seg_t: `kind` is its type."""

    address: int
    start: int
    end: int
    kind: int


@dataclass
class Vmem:
    """A vmem_t.

    The counters are those of vm_kstat: bytes in use, imported and in all; allocations, frees and
    failures.
    """

    address: int
    name: str
    layout: ArenaLayout
    source: int
    next: int
    quantum: int
    inuse: int
    imported: int
    total: int
    allocs: int
    frees: int
    fails: int
    heap: bool = False  # its memory comes from the library's own heap
    source_of: list[str] = field(default_factory=list)

    @property
    def seg0(self) -> int:
        return self.address + self.layout.seg0


def read_arena(memory: Memory, address: int, layout: ArenaLayout) -> Vmem | None:
    """The arena at `address`, or None if there is none."""
    word = layout.word
    fields = memory.words(address + layout.quantum, 8)
    name = memory.words(address, 32 // word)
    kstat = memory.words(address + layout.kstat, (24 + word + 32) // word)
    first = memory.words(address + layout.freelist, 2)
    if fields is None or name is None or kstat is None or first != (0, 1):
        return None
    text = b"".join(value.to_bytes(word, memory.arch.byteorder) for value in name)[:30].split(b"\0")[0]
    counters = _wide(memory, address + layout.kstat, 3), _wide(memory, address + layout.kstat_alloc, 4)
    (inuse, imported, total), (allocs, frees, _, fails) = counters
    label = text.decode("ascii", "replace")
    return Vmem(address, label, layout, fields[4], fields[5], fields[0], inuse, imported, total, allocs, frees, fails)


def _wide(memory: Memory, address: int, count: int) -> list[int]:
    """`count` words of 64 bits, on any machine."""
    data = memory.words(address, count * 8 // memory.size) or (0,) * (count * 8 // memory.size)
    raw = b"".join(value.to_bytes(memory.size, memory.arch.byteorder) for value in data)
    return [int.from_bytes(raw[at : at + 8], memory.arch.byteorder) for at in range(0, len(raw), 8)]


def find_arenas(memory: Memory, known: Sequence[int], problems: list[Problem]) -> list[Vmem]:
    """Every arena: those of `known`, their sources, and all that were made after these.

    `known` has the arena of each cache. Where sources end at several roots, the heap's is the one
    of most caches: a program may make caches of numbers over arenas of its own.
    """
    first = known[0] if known else 0
    layout = measure_arena(memory, first)
    if layout is None:
        problems.append(Problem(first, f"libumem: no vmem arena at {first:#x}, where a cache has its arena: heaps are not seen"))
        return []
    found: dict[int, Vmem] = {}
    tops: Counter[int] = Counter()
    bad: set[int] = set()
    for start in known:
        address = top = start
        for _ in range(MAX_ARENAS):
            arena = found.get(address) or read_arena(memory, address, layout)
            if arena is None:
                bad.add(address)
                break
            found[address] = arena
            top, address = address, arena.source
            if not address:
                tops[top] += 1
                break
    problems += [Problem(address, f"libumem: {address:#x} is no vmem arena: what it has is not seen") for address in sorted(bad)]
    root = tops.most_common(1)[0][0] if tops else 0
    if root:
        found[root].heap = True
    order: list[Vmem] = []
    address = root  # vmem_init makes the root before all others, and vm_next is the order of making
    seen: set[int] = set()
    while address and len(order) < MAX_ARENAS:
        listed = found.get(address) or read_arena(memory, address, layout)
        if listed is None or address in seen:
            problems.append(Problem(address, f"libumem: the list of vmem arenas is corrupt at {address:#x}: arenas behind are not seen"))
            break
        seen.add(address)
        found[address] = listed
        order.append(listed)
        address = listed.next
    order += [arena for at, arena in found.items() if at not in seen]
    for arena in order:
        _mark_heap(arena, found)
        if arena.source in found:
            found[arena.source].source_of.append(arena.name)
    return order


def _mark_heap(arena: Vmem, found: dict[int, Vmem]) -> None:
    """Mark the arenas of a chain of sources that ends in a heap."""
    chain: list[Vmem] = []
    at: Vmem | None = arena
    while at is not None and not at.heap and len(chain) < MAX_ARENAS:
        chain.append(at)
        at = found.get(at.source)
    if at is not None and at.heap:
        for one in chain:
            one.heap = True


def spans(memory: Memory, arena: Vmem, problems: list[Problem]) -> list[Range]:
    """The ranges that the arena spans, adjacent ones joined.

    The spans are linked to vm_seg0 as its kin.
    """
    word = memory.size
    at, ranges = arena.seg0, []
    for _ in range(MAX_SPANS):
        words = memory.words(at, 4)
        if words is None:
            problems.append(Problem(at, f"libumem: span {at:#x} of arena {arena.name} cannot be read: spans behind it are not seen"))
            break
        if at != arena.seg0:
            if words[0] >= words[1]:
                problems.append(Problem(at, f"libumem: span {at:#x} of arena {arena.name} is [{words[0]:#x}, {words[1]:#x}): left out"))
            else:
                ranges.append(Range(words[0], words[1]))
        at = words[2]
        if at == arena.seg0 or at % word:
            break
    return merged(ranges)


def segments(engine: Engine, pieces: Sequence[Piece], arena: Vmem, problems: list[Problem]) -> list[Segment]:
    """The segments of an arena in its own order: spans included, rotor and walkers left out."""
    word = arena.layout.word
    nodes, why = engine.follow(pieces, arena.seg0, 4 * word, False, MAX_SEGMENTS)
    if not nodes or "into itself at" not in why or f"{arena.seg0:#x}" not in why:
        problems.append(Problem(arena.address, f"libumem: the segments of arena {arena.name} are corrupt: {why or 'the list ends'}"))
    records, _ = engine.gather(pieces, nodes, 7 * word)
    values = memoryview(records).cast("Q" if word == 8 else "I")
    found = []
    columns = zip(nodes, values[0::7].tolist(), values[1::7].tolist(), values[6::7].tolist())
    for address, start, end, kind in columns:
        kind &= 0xFF
        if kind in (SEG_ROTOR, SEG_WALKER) or address == arena.seg0:
            continue
        if kind not in (SEG_ALLOC, SEG_FREE, SEG_SPAN) or start >= end:
            problems.append(
                Problem(
                    address,
                    f"libumem: segment {address:#x} of arena {arena.name} is corrupt ([{start:#x}, {end:#x}), type {kind:#x}): left out",
                )
            )
            continue
        found.append(Segment(address, start, end, kind))
    return found


def seg_records(engine: Engine, pieces: Sequence[Piece], arena: Vmem) -> tuple[array[int], memoryview]:
    """Addresses of the segments in order, from vm_seg0 on, and the first six words of each."""
    word = arena.layout.word
    nodes, _ = engine.follow(pieces, arena.seg0, 4 * word, False, MAX_SEGMENTS)
    records, _ = engine.gather(pieces, nodes, 6 * word)
    return nodes, memoryview(records).cast("Q" if word == 8 else "I")
