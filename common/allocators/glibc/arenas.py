"""Arenas (struct malloc_state) and thread arenas' heaps (malloc/arena.c); all may be corrupt."""

from __future__ import annotations

from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.glibc.layout import FLAG_BITS, HEAP_INFOS, HEAP_MAXES, NBINS, NONCONTIGUOUS, HeapInfoLayout, StateLayout
from findleaks.allocators.memory import Memory
from findleaks.target.base import Range
from findleaks.value_classes import NamedTuple, dataclass, field

MAX_ARENAS = 1 << 16
MAX_HEAPS = 1 << 20  # heaps of one arena: more would exceed the address space


class HeapInfo(NamedTuple):
    """A thread arena's heap, [start, end) (arena.c, new_heap and grow_heap)."""

    start: int
    end: int
    limit: int  # memory up to here was once used and may hold old content
    reserve_end: int  # addresses up to here are reserved; mprotect has not opened them yet


@dataclass(eq=False, repr=False)
class Arena:
    """The fields of one malloc_state."""

    number: int
    address: int
    layout: StateLayout
    held: bool  # a thread was inside malloc with this arena's lock
    flags: int
    fastbins: tuple[int, ...]
    top: int
    bins: tuple[int, ...]  # fd and bk of each bin
    next: int
    attached: int
    system_mem: int
    max_system_mem: int
    top_size: int = 0  # 0 when there is no valid top chunk
    heaps: list[HeapInfo] = field(default_factory=list)  # thread arenas only, oldest first
    heap_info: Optional[HeapInfoLayout] = None

    @property
    def name(self) -> str:
        return "main" if self.number == 0 else f"arena {self.number}"

    @property
    def end(self) -> int:
        """The address after this malloc_state."""
        return self.address + self.layout.size

    @property
    def contiguous(self) -> bool:
        return not self.flags & NONCONTIGUOUS

    @property
    def initialised(self) -> bool:
        """Whether it ever got system memory; before, top is 0 or the head of the unsorted bin."""
        return self.top not in (0, self.bin_head(0))

    def bin_head(self, index: int) -> int:
        """A bin as fd and bk refer to it: two words before its pair (malloc.c, bin_at)."""
        return self.address + self.layout.bins + (2 * index - 2) * self.layout.word


@dataclass(eq=False, repr=False)
class Span:
    """A contiguous run of an arena's memory, [start, end): chunks from `first` up to `stop`, where
    top, a fencepost or nothing follows. The walk fills in the last three fields. `unsure`: headers
    that call the chunk before free, but whose copy of its size differs."""

    arena: Arena
    start: int
    first: int
    stop: int
    end: int
    system: int  # bytes that count in system_mem (a thread heap's stale tail does not)
    top_unknown: bool = False  # the last chunk before `stop` is the top
    metadata: list[Range] = field(default_factory=list)
    foreign: list[Range] = field(default_factory=list)  # not the arena's, or corrupt: root memory
    last_free: list[int] = field(default_factory=list)  # fenceposts behind a free chunk
    unsure: list[int] = field(default_factory=list)


def parse(memory: Memory, address: int, layout: StateLayout) -> Optional[Arena]:
    """The malloc_state at `address` read by `layout`, not validated; None if incomplete."""
    words = memory.words(address, layout.size // layout.word)
    mutex, flags = memory.int32(address), memory.int32(address + layout.flags)
    if words is None or mutex is None or flags is None:
        return None

    def at(offset: int) -> int:
        return words[offset // layout.word]

    first, bins = layout.fastbin // layout.word, layout.bins // layout.word
    return Arena(
        number=0,
        address=address,
        layout=layout,
        held=mutex != 0,
        flags=flags,
        fastbins=words[first : first + layout.fastbins],
        top=at(layout.top),
        bins=words[bins : bins + 2 * NBINS],
        next=at(layout.next),
        attached=at(layout.attached) if layout.attached >= 0 else 0,
        system_mem=at(layout.system_mem),
        max_system_mem=at(layout.system_mem + layout.word),
    )


def circular(memory: Memory, arena: Arena) -> tuple[int, int]:
    """(empty, broken): bins that are empty, and others that do not link back to their head."""
    word, empty, broken = memory.size, 0, 0
    for index in range(NBINS):
        head = arena.bin_head(index)
        fd, bk = arena.bins[2 * index], arena.bins[2 * index + 1]
        if fd == head and bk == head:
            empty += 1
        elif memory.word(fd + 3 * word) != head or memory.word(bk + 2 * word) != head:
            broken += 1
    return empty, broken


def first_heap(memory: Memory, arena: Arena) -> Optional[HeapInfoLayout]:
    """The layout of the heap_info right before the arena: ar_ptr is the arena, prev is 0."""
    for info in HEAP_INFOS:
        if info.word == memory.size:
            start = arena.address - info.size
            if start % memory.arch.page == 0 and memory.word(start) == arena.address and memory.word(start + memory.size) == 0:
                return info
    return None


MAX_GROWN = 128 << 20  # bytes by which an arena may grow at once: above DEFAULT_MMAP_THRESHOLD_MAX


def plausible(memory: Memory, arena: Arena) -> bool:
    """Whether this may be an arena: sane counters; bins circular (a few may be bad) or all 0."""
    # sysmalloc adds to system_mem first: for some instructions it may exceed its own maximum
    page = memory.arch.page
    grown = arena.system_mem - arena.max_system_mem
    growing = grown <= MAX_GROWN and arena.system_mem % page == 0 and arena.max_system_mem % page == 0 and arena.max_system_mem > 0
    if (arena.system_mem > arena.max_system_mem and not growing) or arena.attached >= 1 << 22:
        return False
    if not any(arena.bins):
        return arena.top == 0 and arena.system_mem == 0
    empty, broken = circular(memory, arena)
    return empty > 0 and broken <= NBINS // 8


def read_top(memory: Memory, arena: Arena) -> None:
    """Fill in `top_size` where top is a chunk of a plausible size."""
    if not arena.initialised or (arena.top + 2 * memory.size) % arena.layout.align:
        return
    head = memory.word(arena.top + memory.size)
    if head is not None:
        size = head & ~FLAG_BITS
        if 2 * memory.size <= size <= max(arena.system_mem, arena.max_system_mem) and size % (2 * memory.size) == 0:
            arena.top_size = size


def ring(memory: Memory, main: Arena, layout: StateLayout) -> tuple[list[Arena], str]:
    """The arenas from `main` along `next`, and "" or why the ring does not close."""
    arenas, seen, address = [main], {main.address}, main.next
    while address != main.address:
        if address in seen:
            return arenas, f"the arenas' ring runs into {address:#x} again without coming back to main_arena at {main.address:#x}"
        arena = parse(memory, address, layout) if address % memory.size == 0 else None
        if arena is None:
            return arenas, f"next of {arenas[-1].name} at {arenas[-1].address:#x} is {address:#x}, where nothing can be read"
        arena.heap_info = first_heap(memory, arena)
        if arena.heap_info is None or not plausible(memory, arena):
            return arenas, f"next of {arenas[-1].name} at {arenas[-1].address:#x} is {address:#x}, where no arena is"
        arena.number = len(arenas)
        arenas.append(arena)
        seen.add(address)
        if len(arenas) > MAX_ARENAS:
            return arenas, f"more than {MAX_ARENAS} arenas"
        address = arena.next
    return arenas, ""


def find_heaps(memory: Memory, arena: Arena, hint: int, problems: list[Problem]) -> None:
    """Fill in a thread arena's `heaps`: from the one that holds top back along `prev` to the first.
    A heap's reserve, and so the mask that leads from top to its heap, is stored nowhere: `hint` (4
    huge pages, or 0) and then HEAP_MAXES are tried until the chain is complete."""
    info = arena.heap_info
    if info is None:
        return
    first = arena.address - info.size
    candidates = ([hint] if hint else []) + [size for size in HEAP_MAXES if first % size == 0 and size != hint]
    for reserve in candidates:
        chain = _chain(memory, arena, first, arena.top & -reserve, reserve)
        if chain:
            arena.heaps = chain
            return
    only = _heap(memory, arena, first, HEAP_MAXES[0] if first % HEAP_MAXES[0] == 0 else first & -first)
    if only is None:
        problems.append(Problem(first, f"heap of {arena.name} at {first:#x}: heap_info is corrupt; nothing of it is used"))
        return
    arena.heaps = [only]
    if not only.start <= arena.top < only.end:
        arena.top_size = 0
        what = f"top of {arena.name} is {arena.top:#x}, which is in none of its heaps: only its first heap, at {first:#x}, is used"
        problems.append(Problem(arena.address, what))


def _chain(memory: Memory, arena: Arena, first: int, heap: int, reserve: int) -> list[HeapInfo]:
    """The heaps from `heap` back to `first`, oldest first; [] unless the whole chain is sound."""
    chain: list[HeapInfo] = []
    seen: set[int] = set()
    while heap not in seen and len(chain) < MAX_HEAPS:
        seen.add(heap)
        info = _heap(memory, arena, heap, reserve)
        if info is None:
            return []
        chain.append(info)
        if heap == first:
            inside = chain[0].start < arena.top < chain[0].end
            return chain[::-1] if inside else []
        previous = memory.word(heap + memory.size)
        if not previous or previous % reserve:
            return []
        heap = previous
    return []


def _heap(memory: Memory, arena: Arena, start: int, reserve: int) -> Optional[HeapInfo]:
    """The heap_info at `start`, if it belongs to this arena and its sizes are consistent."""
    words = memory.words(start, 4)
    if words is None or words[0] != arena.address:
        return None
    size, touched = words[2], words[3]
    if not 4 * memory.size <= size <= reserve or size % memory.arch.page:
        return None
    return HeapInfo(start, start + size, start + (touched if size <= touched <= reserve else size), start + reserve)
