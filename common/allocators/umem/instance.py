"""One libumem of a process as an Allocator: its caches, arenas, large blocks and totals."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Optional

from findleaks.allocators.base import Allocator, Arena, Cache, Heap, Problem
from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.allocators.umem import arenas as vmem
from findleaks.allocators.umem import caches as slabs
from findleaks.allocators.umem import layout as constants
from findleaks.allocators.umem.arenas import Vmem
from findleaks.allocators.umem.caches import Slab, UmemCache
from findleaks.allocators.umem.layout import CacheLayout, measure_cache, other_counters
from findleaks.allocators.umem.walk import Large, append_slabs, large_blocks
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.errors import Interrupted
from findleaks.target.base import Piece, Range, Target
from findleaks.target.ranges import merge_ranges, range_at

if TYPE_CHECKING:
    from findleaks.allocators.sites import Recording

MAX_FRAMES = 1024  # frames of a buffer's stack, at most
NEAR = 1 << 20
"""Bytes around the static arenas where the library's variables are read: vmem0 and vmem_seg0 are of
one source file, tens of KB; variables of a program linked with it may take gigabytes."""


class Unread(Allocator):
    """A libumem whose structures differ from layout.py: it is reported, and not read."""

    name = "libumem"
    version = "another layout"
    granule = 8

    def __init__(self, image: Image, null: int, counters: int) -> None:
        self.where = image.name
        what = f"libumem in {image.name} has another layout ({counters} counters a cache): its blocks are not seen"
        self.problems = [Problem(null, what, False)]

    def heaps(self) -> list[Heap]:
        return []


def make(target: Target, engine: Engine, image: Image, name: int) -> Optional[Allocator]:
    """The libumem whose umem_null_cache has its name at `name`, or None."""
    memory = Memory(target)
    layout = measure_cache(memory, name)
    if layout is None:
        counters = other_counters(memory, name)
        return Unread(image, name - 8 * counters, counters) if counters else None
    null = name - layout.name
    first = memory.word(null + layout.next)
    if not first or first == null:
        return None  # loaded, but never used
    return Umem(target, engine, image, layout, null)


class Umem(Allocator):
    name = "libumem"
    release_call = "umem_reap()"
    version = "OpenSolaris layout"
    site_settings = ("UMEM_DEBUG=audit",)
    granule = 8

    def __init__(self, target: Target, engine: Engine, image: Image, layout: CacheLayout, null: int) -> None:
        self.target = target
        self.engine = engine
        self.memory = Memory(target)
        self.layout = layout
        self.null = null
        self.where = image.name
        self.problems: list[Problem] = []
        self.umem_caches = slabs.read_caches(self.memory, layout, null, self.problems)
        self.vmem = vmem.find_arenas(self.memory, [cache.arena for cache in self.umem_caches], self.problems)
        self.roots: list[Range] = []
        for arena in self.vmem:
            if arena.heap and not arena.source:
                self.roots += vmem.spans(self.memory, arena, self.problems)
        self.roots = merge_ranges(self.roots)
        self.pieces = self._all_pieces(image)
        self.kept = self._sort_out()
        self.slabs = slabs.read_slabs(engine, self.pieces, self.kept, self.memory.size, self.roots, self.problems)
        users = [cache for cache in self.kept if not cache.own]
        self.rounds = slabs.read_magazines(engine, self.pieces, users, self.memory.size, self.problems)
        slabs.mark_cached(engine, self.rounds, self.slabs, self.problems)
        self.large = self._large()
        self._heaps: Optional[list[Heap]] = None

    def _all_pieces(self, image: Image) -> tuple[Piece, ...]:
        """Memory of the heap, and of the library's variables near its first arenas, where these
        have their first segments; ascending."""
        static = [arena.address for arena in self.vmem if range_at(self.roots, arena.address) is None]
        low, high = min(static, default=0) - NEAR, max(static, default=0) + NEAR
        near = [Range(max(start, low), min(end, high)) for start, end in image.data]
        ranges = merge_ranges([*self.roots, *near])
        return tuple(piece for start, end in ranges for piece in self.target.pieces(start, end))

    def _sort_out(self) -> list[UmemCache]:
        """Mark the caches that are libumem's own, not the program's; returns the readable ones."""
        names = {arena.address: arena for arena in self.vmem}
        kept = []
        if self.target.interrupted():
            raise Interrupted
        for cache in self.umem_caches:
            arena = names.get(cache.arena)
            if arena is None:
                self.problems.append(Problem(cache.address, f"libumem: cache {cache.name} has no arena: its blocks are not seen"))
                continue
            if not arena.heap:
                continue  # it hands out numbers, not memory
            cache.own = arena.name == "umem_internal" or (bool(cache.cflags & constants.QCACHE) and arena.name in vmem.OWN)
            if not cache.own and (cache.chunksize % 8 or cache.chunksize < cache.bufsize):
                odd = "no multiple of 8" if cache.chunksize % 8 else f"less than the {cache.bufsize} that it gives out"
                what = f"libumem: cache {cache.name} has buffers of {cache.chunksize} bytes, {odd}: they are not seen"
                self.problems.append(Problem(cache.address, what, False))
                continue
            kept.append(cache)
        return kept

    def _large(self) -> list[Large]:
        """Blocks that are segments of malloc's arenas, or of the program's over libumem's heap."""
        bases = self.slabs.bases
        found: list[Large] = []
        for arena in self.vmem:
            if not arena.heap or arena.name in vmem.OWN or (arena.source_of and arena.name not in vmem.MALLOC):
                continue
            segments = []
            for segment in vmem.segments(self.engine, self.pieces, arena, self.problems):
                root = range_at(self.roots, segment.start)
                at = bisect_right(bases, segment.end - 1) - 1
                if segment.kind == constants.SEG_SPAN or (at >= 0 and bases[at] >= segment.start):
                    continue  # a slab of a cache over this arena
                if root is None or segment.end > root.end:
                    what = f"libumem: segment {segment.address:#x} of arena {arena.name} is at {segment.start:#x}, outside the heap"
                    self.problems.append(Problem(segment.address, f"{what}: left out"))
                else:
                    segments.append(segment)
            found += large_blocks(self.engine, self.pieces, arena, segments, self.memory.size)
        return self._disjoint(sorted(found, key=lambda one: one.segment.start))

    def _disjoint(self, found: Sequence[Large]) -> list[Large]:
        """Those that overlap neither a slab nor one another."""
        bases, ends = self.slabs.bases, self.slabs.ends
        kept: list[Large] = []
        for one in found:
            at = bisect_right(bases, one.segment.start) - 1
            before = max(kept[-1].segment.end if kept else 0, ends[at] if at >= 0 else 0)
            after = bases[at + 1] if at + 1 < len(bases) else one.segment.end
            if one.segment.start < before or one.segment.end > after:
                what = f"libumem: segment {one.segment.address:#x} of arena {one.arena.name} overlaps other blocks"
                self.problems.append(Problem(one.segment.address, f"{what}, at {one.segment.start:#x}: left out"))
            else:
                kept.append(one)
        return kept

    def heaps(self) -> list[Heap]:
        """A heap is a run of memory that the root arena spans."""
        if self._heaps is None:
            self._heaps = [self._heap(root) for root in self.roots]
        return self._heaps

    def _heap(self, root: Range) -> Heap:
        def walk(blocks: Blocks) -> None:
            large = [one for one in self.large if root.start <= one.segment.start < root.end]
            bases = self.slabs.bases
            at, last = bisect_left(bases, root.start), bisect_left(bases, root.end)
            for place, group in groupby(large, key=lambda one: bisect_right(bases, one.segment.start)):
                append_slabs(self, blocks, at, place)
                between = list(group)
                blocks.append([one.start for one in between], [one.size for one in between], [one.state for one in between])
                at = place
            append_slabs(self, blocks, at, last)

        return Heap(root.start, root.end, "heap", walk)

    def metadata(self) -> list[Range]:
        """umem_null_cache, and the library's static arenas and segments."""
        ranges = [Range(self.null, self.null + self.layout.cpu(1)), *self._static_segments()]
        for arena in self.vmem:
            if range_at(self.roots, arena.address) is None:
                ranges.append(Range(arena.address, arena.address + arena.layout.size))
        return merge_ranges(ranges)

    def _static_segments(self) -> list[Range]:
        """vmem_seg0: the array of segments from before there was any heap, which stay in use."""
        low, high, size = 0, 0, 0
        arenas = [Range(arena.address, arena.address + arena.layout.size) for arena in self.vmem]
        for arena in self.vmem:
            size = arena.layout.seg
            for node in vmem.seg_records(self.engine, self.pieces, arena)[0]:
                if range_at(self.roots, node) is None and not any(start <= node < end for start, end in arenas):
                    low, high = min(low or node, node), max(high, node)
        return [Range(low, high + size)] if low else []

    def summary(self) -> dict[str, object]:
        flags = 0
        for cache in self.umem_caches:
            flags |= cache.flags
        return {
            "caches": len(self.umem_caches),
            "slabs": self.slabs.count,
            "vmem_arenas": len(self.vmem),
            "large": len(self.large),
            "debug": [word for word, bit in _FLAGS if flags & bit],
            "umem_null_cache": hex(self.null),
            "reconciled": not self.problems,
        }

    def caches(self, blocks: Blocks) -> list[Cache]:
        """::umastat's rows of the program's caches and of large blocks' arenas. `size` is the
        class's and includes what precedes malloc's blocks; `*_bytes` are usable bytes."""
        rows = []
        for cache in self.kept:
            sums = self.slabs.sums(cache)
            if not cache.own and any(sums):
                rows.append(_row(cache, sums[::2], sums[1::2]))
        for arena in self.vmem:
            mine = [one for one in self.large if one.arena is arena]
            if mine or (arena.name in vmem.MALLOC and arena.allocs):
                rows.append(_large_row(arena, mine))
        return rows

    def arenas(self, blocks: Blocks) -> list[Arena]:
        """vmem's arenas as vm_kstat counts them: what one imports is also counted in its source."""
        return [Arena(arena.name, arena.inuse, 0, arena.total - arena.inuse, arena.total, arena.counters()) for arena in self.vmem]

    def counted(self) -> Mapping[str, int]:
        """Sums over the caches of the program's blocks, and large blocks' arenas."""
        users = [cache for cache in self.kept if not cache.own]
        large = [arena for arena in self.vmem if arena.name in vmem.MALLOC]
        return {
            "cache_buftotal": sum(cache.counters["buftotal"] for cache in users),
            "cache_memory": sum(memory_of(cache) for cache in users),
            "vk_mem_inuse": sum(arena.inuse for arena in large),
            "vk_segments": sum(arena.allocs - arena.frees for arena in large),
        }

    def sealed(self, blocks: Blocks) -> None:
        """Compare each cache's counters with its slabs."""
        for cache in self.kept:
            found, made = self.slabs.size(cache), cache.counters["slab_create"] - cache.counters["slab_destroy"]
            if found != (made, cache.counters["buftotal"]):
                what = f"libumem: cache {cache.name} counts {made:,} slabs with {cache.counters['buftotal']:,} buffers"
                self.problems.append(Problem(cache.address, f"{what}; found were {found[0]:,} with {found[1]:,}", False))

    def locate(self, address: int) -> str:
        if self.null <= address < self.null + self.layout.cpu(1):
            return "umem_null_cache"
        slab = self.slabs.holding(address)
        if slab is not None:
            index = (address - slab.base) // slab.cache.chunksize
            stack = self.stack(address)
            by = f", last transaction by thread {stack[1]:#x} at {stack[0]}" if stack else ""
            return f"buffer {slab.base + index * slab.cache.chunksize:#x} of {slab.cache.name}{by}"
        for cache in self.umem_caches:
            if cache.address <= address < cache.address + self.layout.cpu(cache.cpus):
                return f"umem_cache {cache.name}"
        for arena in self.vmem:
            if arena.address <= address < arena.address + arena.layout.size:
                return f"vmem arena {arena.name}"
        return ""

    def bufctl(self, slab: Slab, buffer: int) -> int:
        """The bufctl of a buffer in use, 0 where it has none; its cache must have a hash table."""
        cache, word = slab.cache, self.memory.size
        if cache.flags & constants.BUFTAG:
            bufctl = self.memory.word(buffer + cache.buftag + 8) or 0
            return bufctl if self.memory.word(bufctl + word) == buffer else 0
        bucket = cache.hash_table + ((buffer >> min(cache.hash_shift, 64)) & cache.hash_mask) * word
        bufctl = self.memory.word(bucket) or 0
        for _ in range(1 << 16):
            if not bufctl or self.memory.word(bufctl + word) == buffer:
                return bufctl
            bufctl = self.memory.word(bufctl) or 0
        return 0

    def stack(self, address: int) -> Optional[tuple[int, int, list[int]]]:
        """(timestamp, thread, program counters) of the last transaction on the buffer around
        `address`: its allocation if in use. None if its cache is not audited. The timestamp is the
        library's: on Solaris ns since boot, in ports seconds << 32 | microseconds since 1970."""
        slab = self.slabs.holding(address)
        if slab is None or not slab.cache.flags & constants.AUDIT or not slab.cache.hashed:
            return None
        word = self.memory.size
        buffer = address - (address - slab.base) % slab.cache.chunksize
        bufctl = self.bufctl(slab, buffer)
        head = self.memory.words(bufctl, (6 * word + 8) // word + 2) if bufctl else None
        if head is None:
            return None
        stamp = sum(value << (8 * word * number) for number, value in enumerate(head[4 : 4 + 8 // word]))
        at = 4 + 8 // word
        depth = head[at + 3] & 0xFFFFFFFF
        frames = self.memory.words(bufctl + (at + 4) * word, depth) if 0 < depth <= MAX_FRAMES else ()
        return stamp, head[at], list(frames or ())

    def class_of(self, address: int) -> str:
        slab = self.slabs.holding(address)
        return slab.cache.name if slab is not None else ""

    @property
    def recorded(self) -> bool:
        return any(cache.audited and not cache.own for cache in self.kept)

    def recordings(self, blocks: Blocks) -> list[Recording]:
        # few commands ask for stacks
        from findleaks.allocators.umem.sites import recordings

        return recordings(self, blocks)

    def verify(self, blocks: Blocks) -> Iterator[Problem]:
        """What ::umem_verify checks, and the lists around it."""
        from findleaks.allocators.umem.verify import verify

        return verify(self)


_FLAGS = (
    *(("audit", constants.AUDIT), ("deadbeef", constants.DEADBEEF), ("redzone", constants.REDZONE), ("contents", constants.CONTENTS)),
    *(("firewall", constants.FIREWALL), ("lite", constants.LITE)),
)


def memory_of(cache: UmemCache) -> int:
    """Bytes of a cache's slabs, as ::umastat counts them."""
    return (cache.counters["slab_create"] - cache.counters["slab_destroy"]) * cache.slabsize


def _row(cache: UmemCache, counts: Sequence[int], sums: Sequence[int]) -> Cache:
    used, cached, free = ((counts[state], sums[state]) for state in (State.IN_USE, State.CACHED, State.FREE))
    allocs = cache.counters["slab_alloc"] + cache.allocs
    own = {f"cache_{key}": value for key, value in cache.counters.items()}
    own.update(cc_alloc=cache.allocs, cc_free=cache.frees, ml_alloc=cache.full_allocs, cache_slabsize=cache.slabsize)
    fails = cache.counters["alloc_fail"]
    memory = memory_of(cache)
    return Cache("", cache.name, cache.bufsize, used[0], cached[0], free[0], used[1], cached[1], free[1], memory, allocs, fails, own)


def _large_row(arena: Vmem, mine: Sequence[Large]) -> Cache:
    used = [one.size for one in mine if one.state == State.IN_USE]
    free = [one.size for one in mine if one.state == State.FREE]
    own = arena.counters()
    del own["vk_mem_import"]
    return Cache("", arena.name, 0, len(used), 0, len(free), sum(used), 0, sum(free), arena.total, arena.allocs, arena.fails, own)
