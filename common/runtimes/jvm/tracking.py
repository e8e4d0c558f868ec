"""Read Native Memory Tracking (NMT): the JVM's counts of its memory by kind and, if NMT records
details, by stack.

Sources: OpenJDK 17, 21 and 25, src/hotspot/share/services (nmt from 22 on): mallocTracker.hpp,
virtualMemoryTracker.hpp, mallocSiteTable.hpp, nmtCommon.hpp, memReporter.cpp, which determines what
jcmd prints. The sizes of records follow from the sizes of the variables: for N kinds, the malloc
snapshot has 2 N + 1 counters, and the virtual one has N pairs of words or more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Optional

from findleaks.runtimes.base import Count, Site
from findleaks.runtimes.jvm.tables import Tables

LEVEL = "_ZN10MemTracker15_tracking_levelE"
NAMES = ("_ZN7NMTUtil18_memory_type_namesE", "_ZN7NMTUtil8_stringsE")
MALLOC = "_ZN19MallocMemorySummary9_snapshotE"
VIRTUAL = "_ZN20VirtualMemorySummary9_snapshotE"
SITES = "_ZN15MallocSiteTable6_tableE"
ENTRY = "_ZZN15MallocSiteTable10initializeEvE5entry"

SUMMARY, DETAIL = 2, 3
MAX_KINDS = 64
MAX_SITES = 1 << 20
HEADER = 16  # bytes before each block
FOOTER = 2  # bytes after each block since 19; part of NMT's overhead since 24
FRAMES = 4  # NMT_TrackingStackDepth
BUCKETS = 4099  # MallocSiteTable::table_size of 21 and 25


class Tracked(NamedTuple):
    """A kind of memory, in bytes, as counted by `jcmd PID VM.native_memory scale=b`."""

    name: str
    reserved: int
    committed: int


class Tracking(NamedTuple):
    """NMT's counts. `malloc`: all counted malloc blocks, including NMT's headers."""

    kinds: list[Tracked]
    reserved: int
    committed: int
    malloc: int
    detailed: bool

    def counters(self, used: int) -> dict[str, Count]:
        """Return the counts by name. `used`: the bytes of malloc's blocks in use. Those that NMT
        does not count belong to Java libraries, agents, and all callers other than the JVM."""
        found = {
            "malloc: in use, not counted by NMT": max(0, used - self.malloc),
            "NMT: malloc, with headers": self.malloc,
            "NMT: reserved": self.reserved,
            "NMT: committed": self.committed,
        }
        for kind in self.kinds:
            if kind.reserved:
                found.update({f"NMT: {kind.name}, reserved": kind.reserved, f"NMT: {kind.name}, committed": kind.committed})
        return {name: Count(count, "bytes") for name, count in found.items()}


class _Counter(NamedTuple):
    blocks: int
    size: int


def tracking(tables: Tables) -> Optional[Tracking]:
    """Read NMT's counts; None if it is off, or its variables have no symbols."""
    memory, word = tables.memory, tables.memory.size
    level = memory.int32(tables.symbol(LEVEL)) if tables.symbol(LEVEL) else None
    names = _names(tables)
    if level not in (SUMMARY, DETAIL) or not names:
        return None
    kinds = len(names)
    malloc, virtual = tables.symbol(MALLOC), tables.symbol(VIRTUAL)
    counter, pair = tables.symbol_size(MALLOC) // (2 * kinds + 1) // word, tables.symbol_size(VIRTUAL) // kinds // word
    if not malloc or not virtual or counter < 2 or pair < 2:
        return None
    counts = memory.words(malloc, (2 * kinds + 1) * counter)
    pages = memory.words(virtual, kinds * pair)
    if counts is None or pages is None:
        return None
    counters = [_Counter(*counts[at : at + 2]) for at in range(0, len(counts), counter)]
    around = HEADER + (FOOTER if (tables.int32("Abstract_VM_Version", "_vm_major_version") or 0) >= 24 else 0)
    return _sum_counts(names, counters, [pages[at : at + 2] for at in range(0, len(pages), pair)], around, level == DETAIL)


def _names(tables: Tables) -> list[str]:
    for symbol, step, at in ((NAMES[0], 1, 0), (NAMES[1], 2, 1)):
        address, size = tables.symbol(symbol), tables.symbol_size(symbol)
        count = size // (step * tables.memory.size)
        if address and 0 < count <= MAX_KINDS:
            words = tables.memory.words(address, count * step)
            if words is not None:
                return [tables.text(word) for word in words[at::step]]
    return []


def _sum_counts(names: list[str], counters: list[_Counter], pages: list[tuple[int, ...]], around: int, detailed: bool) -> Tracking:
    """Add up the counts as MemSummaryReporter prints them: thread stacks belong to "Thread", the
    `around` bytes of each block to NMT, and memory in arenas is not in free chunks."""
    overhead = counters[-1].size
    # Since 17 the last counter is that of all blocks, not only of headers.
    if overhead == sum(counter.size for counter in counters[:-1:2]):
        overhead = counters[-1].blocks * around
    arenas = sum(counter.size for counter in counters[1:-1:2])
    stacks = next((at for at, name in enumerate(names) if name == "Thread Stack"), None)
    kinds: list[Tracked] = []
    for at, name in enumerate(names):
        size = counters[2 * at].size + counters[2 * at + 1].size - (arenas if name == "Arena Chunk" else 0)
        reserved, committed = (size + pages[at][which] for which in (0, 1))
        if name == "Thread" and stacks is not None:
            reserved, committed = reserved + pages[stacks][0], committed + pages[stacks][1]
        if name == "Native Memory Tracking":
            reserved, committed = reserved + overhead, committed + overhead
        if at != stacks:
            kinds.append(Tracked(name, reserved, committed))
    blocks = sum(counter.size for counter in counters[:-1:2]) + overhead
    return Tracking(kinds, sum(kind.reserved for kind in kinds), sum(kind.committed for kind in kinds), blocks, detailed)


class Entry(NamedTuple):
    """An entry of the table of sites: its return addresses, innermost first, with live blocks and
    bytes."""

    frames: tuple[int, ...]
    blocks: int
    bytes: int


def buckets(tables: Tables) -> list[list[Entry]]:
    """Read the table of sites, which exists if NMT records details. The result has the entries of
    each bucket, in the order of their numbers. An entry has up to four return addresses, a kind, a
    counter, a hash, and the address of the next entry."""
    entry, word = tables.symbol_size(ENTRY), tables.memory.size
    if not entry:
        return []
    counter = tables.symbol_size(MALLOC) // (2 * len(_names(tables)) + 1)
    seen: set[int] = set()
    found: list[list[Entry]] = []
    for head in _heads(tables):
        found.append([])
        while head and head not in seen and len(seen) < MAX_SITES:
            seen.add(head)
            frames = tables.memory.words(head, FRAMES)
            counts = tables.memory.words(head + entry - 2 * word - counter, 2)
            if frames is None or counts is None:
                break
            found[-1].append(Entry(tuple(frame for frame in frames if frame), *counts))
            head = tables.memory.word(head + entry - word) or 0
    return found


def _heads(tables: Tables) -> Sequence[int]:
    """Return the first entry of each bucket. libjvm has an array of these, or (JDK 21 and 25) a
    pointer to one."""
    table, count = tables.symbol(SITES), tables.symbol_size(SITES) // tables.memory.size
    if count == 1:
        table, count = tables.memory.word(table) or 0, BUCKETS
    return tables.memory.words(table, count) or ()


def sites(tables: Tables) -> list[Site]:
    """Return allocation sites of malloc memory, if NMT records details; those with the most bytes
    first."""
    blocks: Counter[tuple[str, ...]] = Counter()
    sizes: Counter[tuple[str, ...]] = Counter()
    for one in (one for bucket in buckets(tables) for one in bucket):
        if one.bytes:
            frames = tuple(_frame(tables, address) for address in one.frames)
            blocks[frames] += one.blocks
            sizes[frames] += one.bytes
    made = [Site(frames or ("no stack",), count, sizes[frames]) for frames, count in blocks.items()]
    return sorted(made, key=lambda site: (-site.bytes, -site.blocks, tuple(site.frames)))


def _frame(tables: Tables, address: int) -> str:
    found = tables.target.symbolize(address - 1)
    return f"{found.name.split('(')[0]}+{address - found.address:#x}" if found is not None else hex(address)
