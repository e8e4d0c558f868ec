"""vmem arenas: ranges of addresses for the slabs of caches, and for large requests."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.umem.layout import (
    SEG_ALLOC,
    SEG_FREE,
    SEG_ROTOR,
    SEG_SPAN,
    SEG_WALKER,
    ArenaLayout,
    measure_arena,
    read_structure,
)
from findleaks.engine.contract import Engine
from findleaks.target.arch import Words
from findleaks.target.base import Piece, Range
from findleaks.target.ranges import merge_ranges

MAX_ARENAS = 4096
MAX_SPANS = 1 << 20
MAX_SEGMENTS = 1 << 28
QUANTUM = 8  # of every arena with memory, in bytes, at least

OWN = frozenset(
    (
        *("umem_internal", "umem_cache", "umem_hash", "umem_log", "umem_va", "umem_default", "umem_firewall_va", "umem_firewall"),
        *("vmem_internal", "vmem_seg", "vmem_hash", "vmem_vmem", "mmap_top", "mmap_heap", "sbrk_top", "sbrk_heap"),
    )
)
"""Arenas that libumem hands on or keeps for itself (umem.c, vmem.c, vmem_mmap.c, vmem_sbrk.c)."""

MALLOC = frozenset(("umem_oversize", "umem_memalign"))
"""Arenas whose segments umem_alloc(), malloc() and memalign() hand out as they are."""


class Segment(NamedTuple):
    address: int
    start: int
    end: int
    kind: int


@dataclass
class Vmem:
    """A vmem_t with vm_kstat's counters: bytes in use, imported, in all; allocs, frees, fails."""

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

    def counters(self) -> dict[str, int]:
        return {
            "vk_mem_inuse": self.inuse,
            "vk_mem_import": self.imported,
            "vk_mem_total": self.total,
            "vk_alloc": self.allocs,
            "vk_free": self.frees,
            "vk_fail": self.fails,
        }


def read_arena(memory: Memory, address: int, layout: ArenaLayout) -> Vmem | None:
    fields = read_structure(memory, address, layout.kstat_alloc + 32)
    if fields is None or (fields.word(layout.freelist), fields.word(layout.freelist + layout.word)) != (0, 1):
        return None
    quantum, source, following = (fields.word(layout.quantum + number * layout.word) for number in (0, 4, 5))
    inuse, imported, total = (fields.int64(layout.kstat + 8 * number) for number in range(3))
    allocs, frees, _, fails = (fields.int64(layout.kstat_alloc + 8 * number) for number in range(4))
    name = fields.text(0, 30).decode("ascii", "replace")
    return Vmem(address, name, layout, source, following, quantum, inuse, imported, total, allocs, frees, fails)


def find_arenas(memory: Memory, known: Sequence[int], problems: list[Problem]) -> list[Vmem]:
    """The arenas in `known` (one for each cache), their sources, and all arenas made after these.
    If sources end at several roots, the heap's is the one of most caches: a program may make caches
    of numbers over arenas of its own."""
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
    chain: list[Vmem] = []
    at: Vmem | None = arena
    while at is not None and not at.heap and len(chain) < MAX_ARENAS:
        chain.append(at)
        at = found.get(at.source)
    if at is not None and at.heap:
        for one in chain:
            one.heap = True


def spans(memory: Memory, arena: Vmem, problems: list[Problem]) -> list[Range]:
    """The arena's spans, which are linked to vm_seg0 as its kin; adjacent ones joined."""
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
    return merge_ranges(ranges)


def segments(engine: Engine, pieces: Sequence[Piece], arena: Vmem, problems: list[Problem]) -> list[Segment]:
    """The arena's segments in its own order: spans included, rotor and walkers left out."""
    nodes, values, why = seg_records(engine, pieces, arena)
    if not nodes or "into itself at" not in why or f"{arena.seg0:#x}" not in why:
        problems.append(Problem(arena.address, f"libumem: the segments of arena {arena.name} are corrupt: {why or 'the list ends'}"))
    found = []
    columns = zip(nodes, values[0::7].tolist(), values[1::7].tolist(), values[6::7].tolist())
    for address, start, end, kind in columns:
        kind &= 0xFF
        if kind in (SEG_ROTOR, SEG_WALKER) or address == arena.seg0:
            continue
        if kind not in (SEG_ALLOC, SEG_FREE, SEG_SPAN) or start >= end or start % QUANTUM:
            what = f"libumem: segment {address:#x} of arena {arena.name} is corrupt ([{start:#x}, {end:#x}), type {kind:#x}): left out"
            problems.append(Problem(address, what))
        else:
            found.append(Segment(address, start, end, kind))
    return found


def seg_records(engine: Engine, pieces: Sequence[Piece], arena: Vmem) -> tuple[array[int], Words, str]:
    """Addresses of the segments from vm_seg0 on, their first seven words, why the list ended."""
    word = arena.layout.word
    nodes, why = engine.follow(pieces, arena.seg0, 4 * word, False, MAX_SEGMENTS)
    records, _ = engine.gather(pieces, nodes, 7 * word)
    return nodes, engine.arch.words(records), why
