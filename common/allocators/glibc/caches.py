"""Statistics of glibc's malloc by chunk size, arena and thread, and its own counters.

Sources: malloc/malloc.c of 2.31 to 2.43 (int_mallinfo, __malloc_info, csize2tidx). The counters are
those that mallinfo2 and malloc_info print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import add
from typing import TYPE_CHECKING

from findleaks.allocators import base
from findleaks.allocators.base import Cache, Problem, ThreadCache
from findleaks.allocators.glibc import lists as free_lists
from findleaks.allocators.glibc.layout import FLAG_BITS, NBINS, SMALL_TCACHE_BINS
from findleaks.allocators.mappings import MMAPPED
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.allocators.glibc.arenas import GlibcArena
    from findleaks.allocators.glibc.view import GlibcView

# number of chunks of a bin that are followed in Python; for more, the engine is faster, although it
# reads the whole heap
SHORT = 1024


class Classes(NamedTuple):
    """Size classes. Each list of a thread cache has one size, which is one class (up to 1,032
    usable bytes on x86-64). Larger sizes form one class for each power of two, named "1033-2047",
    "2048-4095" …"""

    word: int
    align: int

    @property
    def small(self) -> int:
        """The largest usable size that has a size class of its own (malloc.c, MAX_TCACHE_SIZE)."""
        return self.list_size(SMALL_TCACHE_BINS - 1)

    def list_size(self, index: int) -> int:
        """Return the usable size of the blocks in list `index` of a thread cache (malloc.c,
        tidx2usize)."""
        return 4 * self.word + index * self.align - self.word

    def chunk(self, usable: int) -> int:
        """Return the size of a chunk with this usable size: one word more, or two words if it is
        free. The last word of a free chunk is the next chunk's prev_size."""
        return usable + self.word if (usable + self.word) % self.align == 0 else usable + 2 * self.word

    def name(self, usable: int) -> tuple[str, int]:
        """Return (name, size) of the class for blocks of this usable size. If the class is a range
        of sizes, the size is 0."""
        if usable <= self.small:
            return str(usable), usable
        low = 1 << usable.bit_length() - 1
        return f"{max(low, self.small + 1)}-{2 * low - 1}", 0


def list_caches(glibc: GlibcView, blocks: Blocks) -> list[Cache]:
    """Return the size classes of each arena, ascending, then the class of mmapped chunks."""
    classes = Classes(glibc.memory.size, glibc.granule)
    rows: dict[str, list[Cache]] = {arena.name: [] for arena in glibc.instance.arenas}
    for row in base.count_by_size(glibc.name, glibc.heaps(), blocks):
        rows.setdefault(row.arena, []).append(row)
    mapped = rows.pop(MMAPPED, [])
    found = [cache for arena, sizes in rows.items() for cache in _sum_classes(arena, sizes, classes)]
    if mapped:
        used, size = sum(row.in_use for row in mapped), sum(row.in_use_bytes for row in mapped)
        nested = any(heap.inner for heap in glibc.heaps() if heap.arena == MMAPPED)
        memory = size + used * 2 * classes.word if nested else sum(one.end - one.start for one in glibc.mapped)
        found.append(Cache(MMAPPED, MMAPPED, 0, used, 0, 0, size, 0, 0, memory))
    return found


def _sum_classes(arena: str, sizes: Sequence[Cache], classes: Classes) -> Iterator[Cache]:
    """Yield the classes of one arena. `sizes` has a row for each usable size. The size of a free
    chunk is one word less than that of a block in use."""
    groups: dict[tuple[str, int], list[int]] = {}
    for row in sizes:
        chunk = classes.chunk(row.size)
        more = (row.in_use, row.cached, row.free, row.in_use_bytes, row.cached_bytes, row.free_bytes, row.total * chunk)
        sums = groups.setdefault(classes.name(chunk - classes.word), [0] * len(more))
        sums[:] = map(add, sums, more)
    for (name, size), (used, cached, free, used_bytes, cached_bytes, free_bytes, memory) in groups.items():
        yield Cache(arena, name, size, used, cached, free, used_bytes, cached_bytes, free_bytes, memory)


def list_arenas(glibc: GlibcView, listed: Sequence[FreeLists], blocks: Blocks) -> list[base.Arena]:
    """Return the arenas in the order of their ring, then the mmapped chunks. `own` has the figures
    that malloc_info prints for the arena."""
    made = []
    for arena, held, kept in zip(glibc.instance.arenas, glibc.balances, listed):
        sums = (held.in_use.bytes, held.cached.bytes, held.free.bytes)
        made.append(base.Arena(arena.name, *sums, arena.system_mem, kept.own(arena), arena.top_size))
    if glibc.mapped:
        parts = [part for heap in glibc.heaps() if heap.arena == MMAPPED for part in heap.parts()]
        used = sum(blocks.totals(State.IN_USE, start, end).bytes for start, end in parts)
        own = {"hblks": glibc.par("n_mmaps") or 0, "hblkhd": glibc.par("mmapped_mem") or 0}
        made.append(base.Arena(MMAPPED, used, 0, 0, sum(one.end - one.start for one in glibc.mapped), own))
    return made


def list_thread_caches(glibc: GlibcView, blocks: Blocks) -> list[ThreadCache]:
    """Return the lists of each thread by size. Lists of large chunks (2.42) contain several sizes,
    which are counted in the classes of ranges."""
    classes = Classes(glibc.memory.size, glibc.granule)
    made = []
    for cache, index, entries in glibc.kept:
        groups: dict[tuple[str, int], list[int]] = {}
        if index < SMALL_TCACHE_BINS:
            usable = classes.list_size(index)
            groups[classes.name(usable)] = [len(entries), len(entries) * usable]
        else:
            for entry in entries:
                at = blocks.find(entry)
                usable = blocks.size(at) if at >= 0 else 0
                sums = groups.setdefault(classes.name(max(usable, 1)), [0, 0])
                sums[0] += 1
                sums[1] += usable
        made += [ThreadCache(cache.tid, cache.address, *key, count, held) for key, (count, held) in sorted(groups.items()) if count]
    return made


def sum_counters(glibc: GlibcView, listed: Sequence[FreeLists]) -> dict[str, int]:
    """Return the figures of mallinfo2 (its usmblks is always 0), and the sums that malloc_info
    prints."""
    known = glibc.instance.arenas
    system = sum(arena.system_mem for arena in known)
    fast, fast_bytes = sum(one.fast for one in listed), sum(one.fast_bytes for one in listed)
    free = sum(one.free_bytes for one in listed)
    aspaces = [_sum_address_space(arena) for arena in known]
    return {
        "arena": system,
        "ordblks": sum(one.rest for one in listed),
        "smblks": fast,
        "hblks": glibc.par("n_mmaps") or 0,
        "hblkhd": glibc.par("mmapped_mem") or 0,
        "usmblks": 0,
        "fsmblks": fast_bytes,
        "uordblks": system - free,
        "fordblks": free,
        "keepcost": listed[0].top if listed else 0,
        "system max": sum(arena.max_system_mem for arena in known),
        "aspace total": sum(total for total, _ in aspaces),
        "aspace mprotect": sum(reached for _, reached in aspaces),
    }


class Bin(NamedTuple):
    """A fastbin or bin that is not empty, as malloc_info prints it. Sizes are in bytes."""

    sort: str  # name of its XML element
    # in bins, size words with flag bits (chunksize_nomask); in fastbins, the smallest size is
    # rounded up to `most`
    least: int
    most: int
    total: int
    chunks: int


class FreeLists(NamedTuple):
    """The contents of an arena's fastbins, bins and top, according to its lists."""

    bins: list[Bin]
    fast: int
    fast_bytes: int
    rest: int
    rest_bytes: int  # as malloc_info counts: with the flag bits of each size word
    free_bytes: int  # as mallinfo counts: without flag bits
    top: int

    def own(self, arena: GlibcArena) -> dict[str, int]:
        """Return the figures under malloc_info's names, without fastbins if the release has none
        (2.43)."""
        total, reached = _sum_address_space(arena)
        made = {}
        for one in self.bins:
            made[f"{one.sort} {one.least}-{one.most} total"] = one.total
            made[f"{one.sort} {one.least}-{one.most} count"] = one.chunks
        if arena.layout.fastbins:
            made.update({"fast count": self.fast, "fast size": self.fast_bytes})
        made.update({"rest count": self.rest, "rest size": self.rest_bytes})
        made.update({"system current": arena.system_mem, "system max": arena.max_system_mem})
        made.update({"aspace total": total, "aspace mprotect": reached})
        if arena.number:
            made["aspace subheaps"] = len(arena.heaps)
        return made


def _sum_address_space(arena: GlibcArena) -> tuple[int, int]:
    """Return the bytes of an arena's heaps, and the bytes that were ever writable
    (__malloc_info)."""
    if not arena.number:
        return arena.system_mem, arena.system_mem
    return sum(heap.end - heap.start for heap in arena.heaps), sum(heap.limit - heap.start for heap in arena.heaps)


def follow_lists(glibc: GlibcView) -> list[FreeLists]:
    """Read the contents of every arena's lists. Report arenas whose lists and heaps have different
    numbers of free chunks."""
    found = [_read_free_lists(glibc, arena) for arena in glibc.instance.arenas]
    for arena, held, kept in zip(glibc.instance.arenas, glibc.balances, found):
        listed = kept.fast + kept.rest - 1
        if held.reconciled and listed != held.free.blocks:
            what = f"{arena.name}: its lists hold {listed:,} free blocks, its heaps {held.free.blocks:,}"
            inside = "; a thread in malloc was changing it" if arena.held else ""
            glibc.problems.append(Problem(arena.address, what + inside, False))
    return found


def _read_free_lists(glibc: GlibcView, arena: GlibcArena) -> FreeLists:
    """Count as int_mallinfo and __malloc_info do. `rest` includes top, which is in no bin."""
    memory = glibc.memory
    top = (memory.word(arena.top + memory.size) or 0) & ~FLAG_BITS
    fast = []
    # The walk has already reported damaged fastbins.
    for number, chunks, _ in free_lists.follow_fastbins(glibc, arena):
        size = (memory.word(arena.fastbins[number] + memory.size) or 0) & ~FLAG_BITS
        fast.append(Bin("size", size - glibc.granule + 1, size, len(chunks) * size, len(chunks)))
    bins = []
    rest, rest_bytes, free_bytes = 1, top, top + sum(one.total for one in fast)
    for index in (*range(1, NBINS), 0) if any(arena.bins) else ():
        sizes = _read_sizes(glibc, arena, index)
        if sizes:
            bins.append(Bin("size" if index else "unsorted", min(sizes), max(sizes), sum(sizes), len(sizes)))
            rest += len(sizes)
            rest_bytes += sum(sizes)
            free_bytes += sum(size & ~FLAG_BITS for size in sizes)
    return FreeLists([*fast, *bins], sum(one.chunks for one in fast), sum(one.total for one in fast), rest, rest_bytes, free_bytes, top)


def _read_sizes(glibc: GlibcView, arena: GlibcArena, index: int) -> Sequence[int]:
    """Return the size words of the chunks in a bin, along `fd`."""
    word, head, chunk = glibc.memory.size, arena.bin_head(index), arena.bins[2 * index]
    sizes: list[int] = []
    while chunk != head:
        if len(sizes) == SHORT:
            return _read_many_sizes(glibc, head)
        words = glibc.memory.words(chunk + word, 2)
        if words is None or not glibc.owns(chunk + 2 * word):
            break
        sizes.append(words[0])
        chunk = words[1]
    return sizes


def _read_many_sizes(glibc: GlibcView, head: int) -> Sequence[int]:
    """Return the result of `_read_sizes`. This reads in bulk, for a list that is long or
    circular."""
    word, engine, pieces = glibc.memory.size, glibc.engine, glibc.chunk_pieces
    nodes, _ = engine.follow(pieces, glibc.memory.word(head + 2 * word) or 0, 2 * word, False, free_lists.LONGEST)
    if nodes and nodes[-1] == head:  # the head of the bin may be in one of the pieces
        nodes.pop()
    records, _ = engine.gather(pieces, free_lists.add_to_each(nodes, word), word)
    return glibc.memory.arch.unpack(bytes(records))
