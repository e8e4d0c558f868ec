"""Read arenas (struct malloc_state) and the heaps of thread arenas (malloc/arena.c). Any of these
may be corrupt."""

from __future__ import annotations

from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.glibc.layout import FLAG_BITS, HEAP_INFOS, HEAP_MAXES, NBINS, NONCONTIGUOUS, HeapInfoLayout, StateLayout
from findleaks.allocators.memory import Memory
from findleaks.target.base import Range
from findleaks.value_classes import NamedTuple, dataclass, field

MAX_ARENAS = 1 << 16
MAX_HEAPS = 1 << 20  # heaps of one arena; more would exceed the address space


class HeapInfo(NamedTuple):
    """One heap [start, end) of a thread arena (arena.c, new_heap and grow_heap)."""

    start: int
    end: int
    limit: int  # memory up to this address was once in use and may have old content
    reserve_end: int  # addresses up to this one are reserved; mprotect has not made them accessible


@dataclass(eq=False, repr=False)
class GlibcArena:
    """The fields of one malloc_state. `number` is 0 for the main arena; others are in ring
    order."""

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
    top_size: int = 0  # bytes; 0 if there is no valid top chunk
    heaps: list[HeapInfo] = field(default_factory=list)  # thread arenas only, oldest first
    heap_info: Optional[HeapInfoLayout] = None

    @property
    def name(self) -> str:
        return "main" if self.number == 0 else f"arena {self.number}"

    @property
    def end(self) -> int:
        """The address behind this malloc_state."""
        return self.address + self.layout.size

    @property
    def is_contiguous(self) -> bool:
        return not self.flags & NONCONTIGUOUS

    @property
    def is_initialised(self) -> bool:
        """Whether the arena ever got memory from the system. Before that, top is 0 or the address
        of the unsorted bin."""
        return self.top not in (0, self.bin_head(0))

    def bin_head(self, index: int) -> int:
        """Return the address by which fd and bk refer to a bin: two words below its pair of words
        (malloc.c, bin_at)."""
        return self.address + self.layout.bins + (2 * index - 2) * self.layout.word


@dataclass(eq=False, repr=False)
class GlibcSpan:
    """A contiguous run [start, end) of an arena's memory. Chunks extend from `first` to `stop`,
    where top, a fencepost or nothing follows.

    The walk fills in the last four fields. `unsure` are headers that mark the chunk before them
    free, although that chunk's copy of its size is wrong."""

    arena: GlibcArena
    start: int
    first: int
    stop: int
    end: int
    system: int  # bytes that count in system_mem; the unused tail of a thread heap does not
    top_unknown: bool = False  # the last chunk before `stop` is the top
    metadata: list[Range] = field(default_factory=list)
    # parts that belong to others or are corrupt; they are root memory
    foreign: list[Range] = field(default_factory=list)
    last_free: list[int] = field(default_factory=list)  # fenceposts that follow a free chunk
    unsure: list[int] = field(default_factory=list)


def read_arena(memory: Memory, address: int, layout: StateLayout) -> Optional[GlibcArena]:
    """Read the malloc_state at `address` by `layout`, without checks. None if it is unreadable."""
    words = memory.words(address, layout.size // layout.word)
    mutex, flags = memory.int32(address), memory.int32(address + layout.flags)
    if words is None or mutex is None or flags is None:
        return None

    def at(offset: int) -> int:
        return words[offset // layout.word]

    first, bins = layout.fastbin // layout.word, layout.bins // layout.word
    return GlibcArena(
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


def count_bins(memory: Memory, arena: GlibcArena) -> tuple[int, int]:
    """Return two numbers: the bins that are empty, and the bins that do not link back to their
    head."""
    word, empty, broken = memory.size, 0, 0
    for index in range(NBINS):
        head = arena.bin_head(index)
        fd, bk = arena.bins[2 * index], arena.bins[2 * index + 1]
        if fd == head and bk == head:
            empty += 1
        elif memory.word(fd + 3 * word) != head or memory.word(bk + 2 * word) != head:
            broken += 1
    return empty, broken


def find_heap_info(memory: Memory, arena: GlibcArena) -> Optional[HeapInfoLayout]:
    """Return the layout of the heap_info right before the arena, or None. In this heap_info, ar_ptr
    is the arena and prev is 0."""
    for info in HEAP_INFOS:
        if info.word == memory.size:
            start = arena.address - info.size
            if start % memory.arch.page == 0 and memory.word(start) == arena.address and memory.word(start + memory.size) == 0:
                return info
    return None


MAX_GROWN = 128 << 20  # bytes by which an arena may grow at once; above DEFAULT_MMAP_THRESHOLD_MAX


def is_plausible(memory: Memory, arena: GlibcArena) -> bool:
    """Return whether this may be an arena: its counters agree, and its bins are circular lists, or
    are all 0. A few bins may be damaged."""
    # sysmalloc updates system_mem first, so for some instructions it may be larger than
    # max_system_mem.
    page = memory.arch.page
    grown = arena.system_mem - arena.max_system_mem
    growing = grown <= MAX_GROWN and arena.system_mem % page == 0 and arena.max_system_mem % page == 0 and arena.max_system_mem > 0
    if (arena.system_mem > arena.max_system_mem and not growing) or arena.attached >= 1 << 22:
        return False
    if not any(arena.bins):
        return arena.top == 0 and arena.system_mem == 0
    empty, broken = count_bins(memory, arena)
    return empty > 0 and broken <= NBINS // 8


def read_top(memory: Memory, arena: GlibcArena) -> None:
    """Fill in `top_size` if top is a chunk of a plausible size."""
    if not arena.is_initialised or (arena.top + 2 * memory.size) % arena.layout.align:
        return
    head = memory.word(arena.top + memory.size)
    if head is not None:
        size = head & ~FLAG_BITS
        if 2 * memory.size <= size <= max(arena.system_mem, arena.max_system_mem) and size % (2 * memory.size) == 0:
            arena.top_size = size


def follow_ring(memory: Memory, main: GlibcArena, layout: StateLayout) -> tuple[list[GlibcArena], str]:
    """Return the arenas from `main` along `next`, and "" or the reason why the ring does not
    close."""
    arenas, seen, address = [main], {main.address}, main.next
    while address != main.address:
        if address in seen:
            return arenas, f"the ring of arenas reaches {address:#x} again, but not main_arena at {main.address:#x}"
        arena = read_arena(memory, address, layout) if address % memory.size == 0 else None
        if arena is None:
            return arenas, f"next of {arenas[-1].name} at {arenas[-1].address:#x} is {address:#x}, which cannot be read"
        arena.heap_info = find_heap_info(memory, arena)
        if arena.heap_info is None or not is_plausible(memory, arena):
            return arenas, f"next of {arenas[-1].name} at {arenas[-1].address:#x} is {address:#x}, which is not an arena"
        arena.number = len(arenas)
        arenas.append(arena)
        seen.add(address)
        if len(arenas) > MAX_ARENAS:
            return arenas, f"more than {MAX_ARENAS} arenas"
        address = arena.next
    return arenas, ""


def find_heaps(memory: Memory, arena: GlibcArena, hint: int, problems: list[Problem]) -> None:
    """Fill in `heaps` of a thread arena: from the heap that contains top, along `prev`, to the
    first.

    No word has the size of a heap's reserved range, but if the size is known, `top & -size` is the
    heap that contains top. So `hint` (4 huge pages, or 0) and then the sizes of HEAP_MAXES are
    tried until the chain is complete."""
    info = arena.heap_info
    if info is None:
        return
    first = arena.address - info.size
    candidates = ([hint] if hint else []) + [size for size in HEAP_MAXES if first % size == 0 and size != hint]
    for reserve in candidates:
        chain = _follow_chain(memory, arena, first, arena.top & -reserve, reserve)
        if chain:
            arena.heaps = chain
            return
    only = _read_heap(memory, arena, first, HEAP_MAXES[0] if first % HEAP_MAXES[0] == 0 else first & -first)
    if only is None:
        problems.append(Problem(first, f"heap of {arena.name} at {first:#x}: heap_info is corrupt; none of its blocks are read"))
        return
    arena.heaps = [only]
    if not only.start <= arena.top < only.end:
        arena.top_size = 0
        what = f"top of {arena.name} is {arena.top:#x}, which is in none of its heaps: only its first heap, at {first:#x}, is read"
        problems.append(Problem(arena.address, what))


def _follow_chain(memory: Memory, arena: GlibcArena, first: int, heap: int, reserve: int) -> list[HeapInfo]:
    """Return the heaps from `heap` back to `first`, oldest first. [] if one of them is damaged."""
    chain: list[HeapInfo] = []
    seen: set[int] = set()
    while heap not in seen and len(chain) < MAX_HEAPS:
        seen.add(heap)
        info = _read_heap(memory, arena, heap, reserve)
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


def _read_heap(memory: Memory, arena: GlibcArena, start: int, reserve: int) -> Optional[HeapInfo]:
    """Return the heap whose heap_info is at `start`. None if it does not belong to this arena, or
    its sizes do not agree."""
    words = memory.words(start, 4)
    if words is None or words[0] != arena.address:
        return None
    size, touched = words[2], words[3]
    if not 4 * memory.size <= size <= reserve or size % memory.arch.page:
        return None
    return HeapInfo(start, start + size, start + (touched if size <= touched <= reserve else size), start + reserve)
