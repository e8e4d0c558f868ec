"""Find main_arena and mp_ in a process image without symbols.

main_arena is in .data of libc.so.6 or of a static program. Two properties identify it:

- `next` starts a ring of arenas. A process with one arena has a ring of one.
- Its bins are circular lists, most of them empty. Both words of an empty bin contain the address of
  the pair less two words.

The distance from the bins to `next` is the same in all layouts, so bins alone fit every layout. The
links of the ring refer to the start of the structure, so the ring closes only with the right
layout."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.glibc import arenas
from findleaks.allocators.glibc.arenas import GlibcArena, GlibcSpan
from findleaks.allocators.glibc.layout import HEAP_INFOS, HEAP_MAXES, NBINS, PARS, PREV_INUSE, STATES, ParLayout, StateLayout, align_chunk
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.target.base import Piece, Range, Region, Target
from findleaks.target.ranges import nonzero_pieces, region_at, subtract
from findleaks.value_classes import dataclass

SAMPLE = 16  # if none is expected, every 16th pair of words is tried: 8 of its 127 bins
LONGEST_STATE = max(layout.size for layout in STATES)

# bytes around the thread pointer that are searched for thread_arena, an arena's address
TLS_WINDOW = 16 << 10

MAX_THREADS = 256  # threads whose TLS is searched for thread_arena; more add no evidence
# bytes around main_arena searched for mp_; measured: 2304 to 2400 bytes before it
PAR_WINDOW = 64 << 10


@dataclass(eq=False, repr=False)
class GlibcInstance:
    """One glibc malloc in the process."""

    arenas: list[GlibcArena]
    ring_problem: str  # "", or the reason why not all its arenas are known
    region: Optional[Region]
    par: int = 0  # 0 if mp_ was not found
    par_layout: Optional[ParLayout] = None
    # The main arena's spans if the core lacks main_arena (remains.py). The address of `main` is 0.
    lost_spans: Optional[list[GlibcSpan]] = None

    @property
    def main(self) -> GlibcArena:
        return self.arenas[0]

    @property
    def layout(self) -> StateLayout:
        return self.main.layout


def find_instances(target: Target, engine: Engine, taken: Sequence[Range] = ()) -> list[GlibcInstance]:
    """Find every main_arena by its structure. If none is found, use the symbol. `taken` are heaps
    of other allocators, which contain none."""
    memory = Memory(target)
    layouts = [layout for layout in STATES if layout.word == memory.size]
    regions = [region for region in target.regions() if region.writable and region.readable and region.size]
    with_code = {region.name for region in target.regions() if region.executable}
    named = [region for region in regions if region.name.startswith("/")]
    files = [region for region in named if region.name in with_code or _is_libc_like(region)]
    data_files = [region for region in named if region.name not in with_code and not _is_libc_like(region)]
    others = [region for region in regions if not region.name.startswith("/")]
    unnamed = (one for region in others for one in _search_region(memory, engine, region, layouts, False, taken))
    searches = (
        (one for region in files for one in _search_region(memory, engine, region, layouts, _is_libc_like(region))),
        # For a static program that has not called malloc yet, or only in threads.
        (one for region in files for one in _search_region(memory, engine, region, layouts, True)),
        _find_by_symbol(memory, regions, layouts),
        # Files may be unknown (cores of qemu), or ld.so may have copied .data elsewhere.
        (one for one in unnamed if not _is_in_thread_heap(memory, one.main.address)),
        # A core may lack the code of libc's file. Mapped data may be gigabytes, so it is searched
        # last.
        (one for region in data_files for one in _search_region(memory, engine, region, layouts, False)),
    )
    for search in searches:
        found: dict[int, GlibcInstance] = {}
        for instance in search:
            found.setdefault(instance.main.address, instance)
        if found:
            return [found[address] for address in sorted(found)]
    return []


def _find_by_symbol(memory: Memory, regions: Sequence[Region], layouts: Sequence[StateLayout]) -> Iterator[GlibcInstance]:
    symbol = memory.target.symbol("main_arena")
    if symbol is not None:
        yield from _verify_places(memory, region_at(regions, symbol.address), [(symbol.address, layout) for layout in layouts])


def _is_in_thread_heap(memory: Memory, address: int) -> bool:
    """Whether `address` is in the first page of a thread heap.

    This page contains the arena of the thread heap, whose bins look like those of main_arena. The
    heap's header is checked instead of the arena, because `address` may be wrong if the wrong
    layout was tried."""
    infos = {info.size for info in HEAP_INFOS if info.word == memory.size}
    for most in HEAP_MAXES:
        base = address & -most
        arena = memory.word(base) if address - base < LONGEST_STATE + max(infos) else None
        if arena is not None and arena - base in infos:
            return True
    return False


def _is_libc_like(region: Region) -> bool:
    return os.path.basename(region.name).startswith(("libc.so", "libc-"))


def _search_region(
    memory: Memory, engine: Engine, region: Region, layouts: Sequence[StateLayout], whole: bool, taken: Sequence[Range] = ()
) -> Iterator[GlibcInstance]:
    """Yield the main_arenas in one region, except in `taken`. With `whole`, examine every word, and
    also search for rings of arenas, because bins may still be all 0."""
    for part in subtract([Range(region.start, region.end)], taken):
        for piece in nonzero_pieces(memory.target, *part):
            if memory.target.is_interrupted():
                raise Interrupted
            bins = _find_empty_bins(engine, piece, 1 if whole else SAMPLE)
            if not bins and not whole:
                continue
            skip = -piece.address % memory.size
            base, words = piece.address + skip, memory.arch.unpack(bytes(piece.data[skip:]))
            places = _find_by_ring(memory, base, words, layouts) if whole else []
            places += _find_by_bins(memory, base, words, layouts, bins)
            yield from _verify_places(memory, region, places)


def _verify_places(memory: Memory, region: Optional[Region], places: Sequence[tuple[int, StateLayout]]) -> Iterator[GlibcInstance]:
    """Yield the places with a main_arena. A place with a broken ring is used only if no ring closes
    nearby."""
    done: set[int] = set()
    broken: list[GlibcInstance] = []
    for address, layout in sorted(dict.fromkeys(places), key=lambda place: not _starts_well(memory, *place)):
        main = arenas.read_arena(memory, address, layout)
        if main is None or not arenas.is_plausible(memory, main):
            continue
        known, problem = arenas.follow_ring(memory, main, layout)
        instance = GlibcInstance(known, problem, region)
        if problem:
            broken.append(instance)
        elif address not in done and (not main.is_initialised or _has_memory(memory, main)):
            done.add(address)
            yield instance
    for instance in sorted(broken, key=lambda instance: -_weigh_evidence(memory, instance)):
        main = instance.main
        near = any(abs(main.address - address) < main.layout.size for address in done)
        if not near and main.is_initialised and _has_memory(memory, main) and arenas.count_bins(memory, main)[0] > NBINS // 2:
            done.add(main.address)
            yield instance


def _starts_well(memory: Memory, address: int, layout: StateLayout) -> bool:
    """Return whether the main heap starts with a chunk at the address that follows from this
    layout's alignment. Some 32-bit layouts differ only in the alignment."""
    main = arenas.read_arena(memory, address, layout)
    if main is None or not main.is_initialised:
        return False
    arenas.read_top(memory, main)
    base = main.top + main.top_size - main.system_mem
    head = memory.word(align_chunk(memory, base, layout.align) + memory.size) if main.top_size else None
    return head is not None and head & PREV_INUSE != 0 and head >= 4 * memory.size


def _weigh_evidence(memory: Memory, instance: GlibcInstance) -> int:
    """Weigh the evidence for a main arena whose ring is broken: the number of arenas reached, the
    number of threads that use it, and an mp_ of the same releases. The bins alone do not show where
    the structure starts."""
    find_par(memory, instance)
    used = 0
    for pointer in list(dict.fromkeys(thread.thread_pointer for thread in memory.target.threads() if thread.thread_pointer))[:MAX_THREADS]:
        for _, words in memory.scan(max(pointer - TLS_WINDOW, 1) & -memory.size, pointer + TLS_WINDOW):
            used += instance.main.address in words
    return 100 * (len(instance.arenas) - 1) + 50 * used + (instance.par != 0)


def _has_memory(memory: Memory, main: GlibcArena) -> bool:
    """Return whether an initialised main arena has memory in whole pages, or at least a valid
    top."""
    arenas.read_top(memory, main)
    return main.top_size > 0 or (main.system_mem > 0 and main.system_mem % memory.arch.page == 0)


def _find_by_ring(memory: Memory, base: int, words: Sequence[int], layouts: Sequence[StateLayout]) -> list[tuple[int, StateLayout]]:
    """Return the places whose `next` is the arena itself, or is a thread arena whose ring returns
    to it."""
    size, places = memory.size, []
    low, high = base - LONGEST_STATE, base + len(words) * memory.size
    for index in [i for i, v in enumerate(words) if low <= v < high and 0 < base + i * size - v <= LONGEST_STATE]:
        places += [(words[index], layout) for layout in layouts if words[index] == base + index * size - layout.next]
    infos = {info.size for info in HEAP_INFOS if info.word == size}
    # Selects the offset in a heap. The first malloc_state follows heap_info.
    mask = HEAP_MAXES[-1] - 1
    for index in [i for i, v in enumerate(words) if v & mask in infos]:
        for layout in layouts:
            place = base + index * size - layout.next
            if any(memory.word(words[index] - info) == words[index] for info in infos) and memory.word(place + layout.next) == words[index]:
                places.append((place, layout))
    return places


def _find_by_bins(
    memory: Memory, base: int, words: Sequence[int], layouts: Sequence[StateLayout], bins: Sequence[int]
) -> list[tuple[int, StateLayout]]:
    """Return the places of the arenas of these empty bins. The bins of an arena start at the first
    of these bins, or before it; in the latter case, no word in between is 0."""
    size, places = memory.size, []
    covered = -1
    for index in ((address - base) // size for address in bins):
        if index <= covered:
            continue
        covered = index + 2 * NBINS
        first = index
        for _ in range(NBINS):
            places += [(base + first * size - layout.bins, layout) for layout in layouts]
            first -= 2
            if first < 0 or not words[first] or not words[first + 1]:
                break
    return places


def _find_empty_bins(engine: Engine, piece: Piece, step: int) -> list[int]:
    """Return the addresses of pairs of words that both contain the pair's address less two words.
    With `step`, only every `step`-th pair from an even and from an odd word is returned."""
    size = engine.arch.word
    return [one for one in engine.self_pointers(piece, size, 2 * size) if step == 1 or one // size % (2 * step) < 2]


def find_par(memory: Memory, instance: GlibcInstance) -> None:
    """Find mp_ near main_arena, and fill in `par` and `par_layout`. If several places fit, use the
    one with the highest score."""
    main = instance.main
    start, end = main.address - PAR_WINDOW, main.end + PAR_WINDOW
    if instance.region is not None:
        start, end = max(start, instance.region.start), min(end, instance.region.end)
    best: tuple[int, int, int, Optional[ParLayout]] = (0, 0, 0, None)
    for base, words in memory.scan(start, end):
        for layout in PARS:
            if layout.word == memory.size and layout.since <= main.layout.until and main.layout.since <= layout.until:
                for place in _find_par_places(base, words, layout, main):
                    score = _score_par(memory, place, layout, main)
                    best = max(best, (score, -abs(place - main.address), place, layout), key=lambda b: b[:2])
    if best[3] is not None:
        instance.par, instance.par_layout = best[2], best[3]


def _find_par_places(base: int, words: Sequence[int], layout: ParLayout, main: GlibcArena) -> Iterator[int]:
    """Yield the places whose thread cache fields agree. In layouts without these fields, yield the
    places whose sbrk_base fits the main arena."""
    size = layout.word
    if layout.tcache_bins >= 0:
        align = main.layout.align
        for i in [i for i, v in enumerate(words[:-2]) if 0 < v <= 64]:
            largest = (words[i] - 1) * align + 3 * size + layout.tcache_excess
            most = words[i + 1]
            fits = largest - align < most <= largest or (words[i] == 64 and largest < most <= (4 << 20) + align)
            if fits and words[i + 2] < 1 << 16:
                yield base + i * size - layout.tcache_bins
    elif main.is_initialised and main.top_size:
        wanted = main.top + main.top_size - main.system_mem
        for i in [i for i, v in enumerate(words) if v == wanted]:
            yield base + i * size - layout.sbrk_base


def _score_par(memory: Memory, place: int, layout: ParLayout, main: GlibcArena) -> int:
    """Score how well mp_ fits at `place`: 0 if it does not, up to 18.

    Each property adds points, because no single one is certain: a thread may be in the middle of
    updating the counters. A place whose sbrk_base is the start of the main heap (8 points) needs no
    further evidence."""
    words = memory.words(place, layout.size // layout.word)
    ints = [memory.int32(place + layout.n_mmaps + 4 * i) for i in range(3)]
    if words is None or None in ints:
        return 0

    def at(offset: int) -> int:
        return words[offset // layout.word]

    n_mmaps, n_mmaps_max, max_n_mmaps = (value or 0 for value in ints)
    mapped, max_mapped, base = at(layout.mmapped_mem), at(layout.mmapped_mem + layout.word), at(layout.sbrk_base)
    # The base need not be aligned: ld.so of 2.31 stores a copy of its tunables there.
    if base and memory.word((base & -layout.word) + 4 * layout.word) is None:
        return 0
    if layout.hp_pagesize >= 0 and at(layout.hp_pagesize) & (at(layout.hp_pagesize) - 1):
        return 0
    # The words 2 and 3 are mmap_threshold and arena_test.
    score = 1 + 2 * (at(2 * layout.word) >= memory.arch.page) + (0 < at(3 * layout.word) < 1 << 16)
    score += 2 * (n_mmaps <= max_n_mmaps <= n_mmaps_max)
    score += 2 * (mapped <= max_mapped and mapped % memory.arch.page == 0)
    score += 2 * ((n_mmaps == 0) == (mapped == 0) and (max_n_mmaps == 0) == (max_mapped == 0))
    score += n_mmaps_max == 65536  # DEFAULT_MMAP_MAX
    if main.is_initialised and main.top_size:
        expected = main.top + main.top_size - main.system_mem
        score += 8 if base == expected else 3 if base and not main.is_contiguous else 0
    elif main.is_initialised:  # the size of top is overwritten
        region = region_at(memory.target.regions(), base)
        score += 8 if region is not None and base < main.top < region.end else 4 * (base == 0)
    else:
        score += 4 * (base == 0)
    return score if score >= 6 else 0
