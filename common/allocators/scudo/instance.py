"""scudo as an Allocator: size classes, large blocks, guarded blocks, thread caches, quarantine."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.base import MAX_PROBLEMS, Allocator, Arena, Cache, Heap, Problem, ThreadCache, any_within
from findleaks.allocators.mappings import MMAPPED
from findleaks.allocators.memory import Memory
from findleaks.allocators.scudo.checksum import UNKNOWN, choose_algorithm
from findleaks.allocators.scudo.engine import DAMAGED, ClassKey, read_blocks
from findleaks.allocators.scudo.guarded import find_guarded, find_ring_buffer
from findleaks.allocators.scudo.large import Large, find_kept, find_list, read_list
from findleaks.allocators.scudo.layout import (
    ALLOCATED,
    COOKIE,
    HEADER,
    LIST_BYTES,
    MARKER,
    QUARANTINE_BYTES,
    QUARANTINED,
    SECONDARY_BYTES,
    STRIDE,
    unpack,
)
from findleaks.allocators.scudo.locate import Found, SizeClass, Unknown, locate
from findleaks.allocators.scudo.thread_caches import Batches, Caches, read_batches, read_caches
from findleaks.allocators.scudo.verify import check_classes
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State, Totals
from findleaks.errors import Interrupted
from findleaks.target.arch import X86_64
from findleaks.target.base import Module, Range, Target

LARGE, GUARDED = "large", "guarded"
STEP = 4 << 20  # bytes of blocks that are read at once
SAMPLE = 64  # blocks of a class that are read to determine the checksum
TLS = 1 << 20  # bytes: a thread's cache is at most so far below its thread pointer

_STATES = bytes(
    {ALLOCATED: State.IN_USE, DAMAGED: State.IN_USE}.get(state, State.FREE) for state in range(256)
)  # available and quarantined chunks are free
OTHER_LAYOUT = "an unknown layout: its blocks are not read (supported: LLVM 14 to 23 in the default configuration)"
OTHER_MACHINE = "blocks that are not read: findleaks reads scudo only on x86-64"


class Unread(Allocator):
    """A scudo that is reported, but not read."""

    name = "scudo"
    version = "another layout"
    granule = HEADER

    def __init__(self, where: str, address: int, what: str) -> None:
        self.where = where
        self.problems = [Problem(address, f"scudo in {where} has {what}", False)]

    def heaps(self) -> list[Heap]:
        return []


def make(target: Target, engine: Engine, groups: Sequence[Sequence[int]], named: Sequence[Module]) -> list[Allocator]:
    """Return the scudos of a process, of which there is usually one. `groups` are starts of
    mappings, see locate. `named` are the loaded files that contain a scudo according to their
    names."""
    found: list[Allocator] = []
    for one in locate(target, engine, groups):
        if isinstance(one, Unknown):
            found.append(Unread(one.image.name, one.address, OTHER_LAYOUT))
        elif target.arch.name != X86_64.name:
            found.append(Unread(one.image.name, one.address, OTHER_MACHINE))
        elif not any(isinstance(other, Scudo) and other.found.address == one.address for other in found):
            found.append(Scudo(target, engine, one))
    for module in named if not found else ():
        what = OTHER_LAYOUT if target.arch.name == X86_64.name else OTHER_MACHINE
        found.append(Unread(os.path.basename(module.path), module.start, what))
    return found


class Scudo(Allocator):
    """One scudo; see Allocator. Quarantined chunks are free. Blocks in thread caches are cached."""

    name = "scudo"
    granule = HEADER
    release_call = "mallopt(-101, 0)"  # M_PURGE of scudo/standalone/include/scudo/interface.h
    release_settings = ("SCUDO_OPTIONS=release_to_os_interval_ms=0",)

    def __init__(self, target: Target, engine: Engine, found: Found) -> None:
        self.target = target
        self.engine = engine
        self.memory = Memory(target)
        self.found = found
        self.version = found.layout.version
        self.where = found.image.name
        self.problems = found.problems
        self.classes = [one for one in found.classes if one.number]
        cookie = self.memory.int32(found.address + COOKIE) or 0
        self.algorithm = choose_algorithm(cookie, self._sample())
        self.cookie = cookie
        if self.algorithm == UNKNOWN and any(True for _ in self._sample()):
            what = f"scudo's cookie at {found.address:#x} does not fit the checksums of blocks: overwritten headers are not detected"
            self.problems.append(Problem(found.address, what, False))
        key = ClassKey(0, cookie, self.algorithm)
        self.list = find_list(self.memory, found.records.end)
        self.large = read_list(self.memory, self.list, found.layout.large_words, key, self.problems) if self.list is not None else []
        self.kept = sorted(find_kept(self.memory, found.records.end, self.list, self.large))
        self.guarded = find_guarded(self.memory, engine, found.image, self.problems)
        self.ring_buffer = find_ring_buffer(self.memory, engine, found.image)
        self.thread_blocks: Caches = read_caches(self.memory, found.address, found.starts, self.problems)
        # The quarantine follows MapAllocator, whose size is known only if its list was found.
        after, size = (self.list.address + LIST_BYTES, 0) if self.list is not None else (found.records.end, SECONDARY_BYTES)
        self.batches: Batches = read_batches(self.memory, after, size + QUARANTINE_BYTES, self.thread_blocks, self.problems)
        # number of chunks by class and state, filled by `walk`
        self.states: dict[int, Counter[int]] = {}
        self.damaged: list[int] = []  # the first chunks with damaged headers
        self._heaps: list[Heap] = []

    def _sample(self) -> Iterator[tuple[int, int]]:
        """Yield the address and the packed header of some chunks."""
        for one in self.classes:
            for at in range(one.start, min(one.carved, one.start + SAMPLE * one.size), one.size):
                header = self.memory.word(at) or 0
                if header & 0xFFFFFFFF != MARKER and unpack(header).state in (ALLOCATED, QUARANTINED):
                    yield at + HEADER, header

    def heaps(self) -> list[Heap]:
        if not self._heaps:
            self._heaps = [Heap(one.start, one.mapped, "", self._walk(one)) for one in self.classes]
            self._heaps += [Heap(*one.mapping, MMAPPED, _walk_large(one, State.IN_USE)) for one in self.large]
            self._heaps += [Heap(*one.mapping, MMAPPED, _walk_large(one, State.FREE)) for one in self.kept]
            if self.guarded is not None:
                self._heaps.append(Heap(*self.guarded.pool, GUARDED, self.guarded.walk))
        return self._heaps

    def _walk(self, one: SizeClass) -> Callable[[Blocks], None]:
        def run(blocks: Blocks) -> None:
            key = ClassKey(one.number, self.cookie, self.algorithm)
            counts = self.states[one.number] = Counter()
            step = max(STEP // one.size, 1) * one.size
            for low in range(one.start, one.carved, step):
                if self.target.is_interrupted():
                    raise Interrupted
                for piece in self.memory.read_whole(low, min(low + step, one.carved), one.size):
                    read = read_blocks(self.engine, piece, one.size, key)
                    self._note_damage(read.chunks, read.states)
                    counts.update({state: read.states.count(state) for state in (ALLOCATED, QUARANTINED, DAMAGED)})
                    blocks.append(read.chunks, read.sizes, read.states.translate(_STATES))

        return run

    def _note_damage(self, chunks: Sequence[int], states: bytearray) -> None:
        """Keep the addresses of the first damaged headers."""
        at = states.find(DAMAGED)
        while at >= 0 and len(self.damaged) < MAX_PROBLEMS:
            self.damaged.append(chunks[at] - HEADER)
            at = states.find(DAMAGED, at + 1)

    def mark_blocks(self, blocks: Blocks) -> None:
        for header in self.damaged:
            what = f"scudo's chunk header at {header:#x} was overwritten: the block counts as in use"
            self.problems.append(Problem(header, what, damaged=Range(header, header + 8)))
        count = sum(counts[DAMAGED] for counts in self.states.values())
        if count > len(self.damaged):
            self.problems.append(Problem(self.damaged[-1], f"and {count - len(self.damaged):,} more such headers"))
        cached = [chunk for one in self.thread_blocks.blocks for chunk in one.chunks]
        used = [chunk for chunk in cached if self._state_at(blocks, chunk) not in (None, State.FREE)]
        wrong = [*blocks.set_state(set(cached).difference(used), State.CACHED), *used]
        if wrong:
            what = f"scudo's thread caches have {len(wrong):,} addresses that are not free blocks, such as {wrong[0]:#x}"
            # A thread that returns a block increments the count before it stores the address.
            last = next((one.cache for one in self.thread_blocks.blocks if [one.chunks[-1]] == wrong), 0)
            self.problems.append(Problem(last or wrong[0], what))
        for chunk in self.batches.chunks:
            one = self._class_at(chunk)
            # Since LLVM 22, a batch has the state of the chunks in it.
            if one is not None and self._state_at(blocks, chunk) == State.FREE:
                self.states[one.number].update({ALLOCATED: 1, QUARANTINED: -1})
        blocks.set_state(self.batches.chunks, State.METADATA)

    @staticmethod
    def _state_at(blocks: Blocks, chunk: int) -> Optional[State]:
        found = blocks.lookup(chunk)
        return State(found[3]) if found is not None else None

    def metadata(self) -> list[Range]:
        """Return the allocator's variables, thread caches, batches of class 0, and records of
        guarded blocks (see Allocator)."""
        own = [Range(self.found.address, max(self.found.records.end, self.list.address + LIST_BYTES if self.list is not None else 0))]
        batches = [Range(one.start, one.mapped) for one in self.found.classes if not one.number]
        guarded = [self.guarded.state, self.guarded.records] if self.guarded is not None else []
        return [*own, *batches, *guarded, *self.ring_buffer, *self.thread_blocks.memory]

    def list_reserved(self) -> list[Range]:
        return [self.found.space]

    def locate(self, address: int) -> str:
        one = self._class_at(address)
        if one is not None and address < one.carved:
            at = one.start + (address - one.start) // one.size * one.size
            return f"header or padding of the {one.size}-byte block {at:#x}"
        for large in (*self.large, *self.kept):
            if address in range(*large.mapping):
                return "header or padding of a large block"
        if any(address in range(*space) for space in self.thread_blocks.memory):
            return "thread cache"
        if address in range(*self.found.records):
            return "records of the size classes"
        return "batches of free blocks" if any(not one.number and one.start <= address < one.mapped for one in self.found.classes) else ""

    @cached_property
    def _ascending(self) -> list[SizeClass]:
        return sorted(self.classes, key=lambda one: one.start)

    def _class_at(self, address: int) -> Optional[SizeClass]:
        """Return the class whose memory contains `address`, or None."""
        at = bisect_right([one.start for one in self._ascending], address) - 1
        return self._ascending[at] if at >= 0 and address < self._ascending[at].mapped else None

    def class_of(self, address: int) -> str:
        one = self._class_at(address)
        if one is not None:
            return str(one.size)
        return GUARDED if self.guarded is not None and address in range(*self.guarded.pool) else LARGE

    def caches(self, blocks: Blocks) -> list[Cache]:
        """Return a row for each class (see Allocator). A class is named by the size of its blocks,
        because the sizes of its chunks vary."""
        rows = []
        for one in self.classes:
            counts = self.states.get(one.number, Counter())
            own = {"mapped": one.mapped - one.start, "popped": one.popped, "pushed": one.pushed}
            own |= {"inuse": one.popped - one.pushed, "total": (one.carved - one.start) // one.size}
            rows.append(_count(blocks, str(one.size), [Range(one.start, one.mapped)], {**own, "quarantined": counts[QUARANTINED]}))
        rows.append(_count(blocks, LARGE, [one.mapping for one in (*self.large, *self.kept)], {}))
        if self.guarded is not None:
            rows.append(_count(blocks, GUARDED, [self.guarded.pool], {}))
        return [row for row in rows if row.total]

    def thread_caches(self, blocks: Blocks) -> list[ThreadCache]:
        threads = sorted((one.thread_pointer, one.tid) for one in self.target.threads() if one.thread_pointer)
        sizes = {one.number: one.size for one in self.classes}
        rows = []
        for one in self.thread_blocks.blocks:
            at = bisect_right(threads, (one.cache, 0))
            thread = threads[at][1] if at < len(threads) and threads[at][0] - one.cache < TLS else 0
            size = sizes.get(one.number, 0)
            owner = "" if thread else "ended threads"
            rows.append(ThreadCache(thread, one.cache, str(size), size - HEADER, len(one.chunks), len(one.chunks) * (size - HEADER), owner))
        return rows

    def arenas(self, blocks: Blocks) -> list[Arena]:
        rows = self.caches(blocks)
        mapped = sum(one.mapped - one.start for one in self.found.classes)
        mapped += sum(one.mapping.end - one.mapping.start for one in (*self.large, *self.kept))
        spare = sum(one.mapped - one.carved for one in self.classes)
        sums = (sum(row.in_use_bytes for row in rows), sum(row.cached_bytes for row in rows), sum(row.free_bytes for row in rows))
        return [Arena("", *sums, mapped, self.read_counters(), spare)]

    def read_counters(self) -> Mapping[str, int]:
        """Return the totals that __scudo_print_stats prints, in bytes or counts."""
        popped, pushed = sum(one.popped for one in self.found.classes), sum(one.pushed for one in self.found.classes)
        counters = {"mapped": sum(one.mapped - one.start for one in self.found.classes), "allocations": popped, "remains": popped - pushed}
        if self.list is not None:
            large = self.list
            counters |= {"large allocations": large.allocations, "large allocated": large.allocated}
            counters |= {"large frees": large.frees, "large freed": large.freed}
        counters |= {"quarantine batches": self.batches.shared, "quarantine chunks": self.batches.quarantined}
        return counters

    def summary(self) -> dict[str, object]:
        quarantined = sum(counts[QUARANTINED] for counts in self.states.values())
        guarded = len(self.guarded.slots) if self.guarded is not None else 0
        return {"quarantined": quarantined, "large": len(self.large), "kept_mappings": len(self.kept), "guarded": guarded}

    def blocks_in_flight(self, words: Sequence[int], blocks: Blocks) -> Iterable[int]:
        """Return the chunks of the blocks whose addresses are among these words. After scudo takes
        a block, and before it passes the chunk to the program, it refers to the block by the
        address of its header."""
        return [word + HEADER for word in words if word < self.memory.arch.mask - HEADER]

    def is_changing(self, problem: Problem, words: Sequence[int], blocks: Blocks) -> bool:
        """Return whether a thread inside scudo is changing the memory that the problem is about.

        A problem about counters has the start of the class's memory as its address. A thread that
        takes or returns a block of the class has, in a register or on its stack, an address in that
        memory, in the class's record, or in a thread cache. A problem about the last address in a
        thread cache has the start of the cache as its address."""
        cache = next((space for space in self.thread_blocks.memory if space.start == problem.address), None)
        if cache is not None:
            return any_within(words, [cache])
        one = next((one for one in self.classes if one.start == problem.address), None)
        if one is None:
            return super().is_changing(problem, words, blocks)
        record = self.found.records.start + one.number * STRIDE
        return any_within(words, [Range(one.start, one.mapped), Range(record, record + STRIDE), *self.thread_blocks.memory])

    def verify(self, blocks: Blocks) -> Iterator[Optional[Problem]]:
        """Compare the counters of each class with the headers of its blocks (see Allocator)."""
        yield from check_classes(self.found, self.states, self.thread_blocks)
        checked = sum((one.carved - one.start) // one.size for one in self.classes)
        self.checked = {"chunk headers": checked + len(self.large), "counters": len(self.classes)}


def _walk_large(one: Large, state: State) -> Callable[[Blocks], None]:
    def run(blocks: Blocks) -> None:
        blocks.append([one.chunk], [one.size], [state])

    return run


def _count(blocks: Blocks, name: str, parts: Sequence[Range], own: Mapping[str, int]) -> Cache:
    used, cached, free = (
        Totals.sum_of(blocks.totals(state, *part) for part in parts) for state in (State.IN_USE, State.CACHED, State.FREE)
    )
    counts = (used.blocks, cached.blocks, free.blocks, used.bytes, cached.bytes, free.bytes)
    return Cache("", name, 0, *counts, sum(end - start for start, end in parts), own=own)
