"""Account for the memory of a process: each resident byte belongs to exactly one share.

The kernel reports residency by page, but blocks are known by the byte. A page with blocks in use
and free blocks is divided between the two shares. Therefore the shares add up to the resident
total.

Memory is assigned in this order: heaps of allocators, other memory of allocators, managed heaps,
stacks, and the rest by kind of mapping (loaded files, shared memory, mappings of the kernel)."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Optional

from findleaks.allocators.base import Allocator
from findleaks.allocators.retention import ArenaUse
from findleaks.audit.live_stacks import live_stacks
from findleaks.audit.managed import RuntimeHoldings, list_runtime_holdings
from findleaks.audit.mappings import name_mapping_kind, name_shared_memory
from findleaks.audit.unread_memory import is_shared
from findleaks.engine.terms import State
from findleaks.formatting import replace_numbers
from findleaks.formatting import size as human
from findleaks.graph.reserved import Reserved, unowned_reserved
from findleaks.libc.stacks import dead_stacks, unjoined_threads
from findleaks.results.share_sort import ShareSort
from findleaks.session import Session
from findleaks.target.base import Range, Region
from findleaks.target.modules import DELETED
from findleaks.target.ranges import intersection, merge_ranges, region_at, subtract
from findleaks.target.residency.presence import Presence
from findleaks.target.runs import Runs
from findleaks.value_classes import NamedTuple, dataclass, field

STEP, PURE_STEP = 1 << 30, 16 << 20  # bytes of heap per engine call: about 50 ms of small blocks

KERNELS = ("[vdso", "[vvar", "[vsyscall", "[uprobes", "[vectors", "[sigpage")
ALIKE = 10  # fewest files whose names differ only in numbers, and that are listed as one kind
KINDS = 8  # maximum number of kinds of mappings that a share lists; the largest are listed
NAMED = 5  # maximum number of unattributed mappings that are listed, the largest first


@dataclass(frozen=True)
class Store:
    """An allocator, with one entry for each of its arenas."""

    allocator: Allocator
    arenas: list[ArenaUse]
    outside: int  # resident bytes of allocator metadata outside the heaps

    @property
    def name(self) -> str:
        return self.allocator.title

    @property
    def in_use(self) -> int:
        return sum(arena.in_use for arena in self.arenas)

    @property
    def cached(self) -> int:
        return sum(arena.cached for arena in self.arenas)

    @property
    def kept(self) -> int:
        return sum(arena.kept for arena in self.arenas)

    @property
    def own(self) -> int:
        return self.outside + sum(arena.own for arena in self.arenas)

    @property
    def absent(self) -> int:
        """Bytes of the heaps that are mapped but not resident."""
        return sum(arena.mapped - arena.resident for arena in self.arenas)


class NamedMemory(NamedTuple):
    """A range of memory with a name ("libc.so.6", a start function), and its resident bytes."""

    address: int
    name: str
    bytes: int


class MemoryKind(NamedTuple):
    """Mappings of one kind: all mappings of a file, all shared memory with the same name, or
    anonymous mappings of about the same size. The name of a kind stays the same while the process
    runs."""

    name: str
    bytes: int  # resident bytes
    mappings: int


@dataclass(frozen=True)
class Share:
    """One share of the resident memory, such as the blocks in use of one allocator."""

    sort: ShareSort
    of: str  # the owner: "glibc 2.36", or "" if the share has none
    bytes: int
    # Number of blocks, threads, mappings or files; 0 for shares without such a number
    count: int = 0
    detail: str = ""
    parts: tuple[NamedMemory, ...] = ()  # the largest named ranges in the share
    kinds: tuple[MemoryKind, ...] = ()  # mapped memory of the share by kind, the largest first
    are_stacks: bool = False  # stacks of live threads
    unused: int = 0  # bytes of a managed heap that contain no object, whether resident or not


@dataclass(frozen=True)
class Accounting:
    """All shares of the memory, and all reserved address ranges. In both, the largest come first.
    Sizes are in bytes."""

    known: bool  # True: `total` and the shares are resident bytes; False: mapped bytes
    source: str
    total: int
    swapped: int
    rss: Optional[int]  # the resident size that the kernel reported; None if it is unknown
    shares: list[Share]
    stores: list[Store]
    # Stacks of threads that ended and were never joined, named by start function.
    unjoined: list[NamedMemory]
    unjoined_mapped: int  # mapped bytes of these stacks
    warnings: list[str] = field(default_factory=list)
    # Runtimes whose objects retain native blocks in use.
    native: list[RuntimeHoldings] = field(default_factory=list)
    # The shares contain only the resident pages of these reserved ranges.
    reserved: list[Reserved] = field(default_factory=list)

    def share(self, sort: ShareSort) -> Optional[Share]:
        """Return the share of this kind of memory; only for kinds that have a single share."""
        return next((share for share in self.shares if share.sort == sort), None)


class _Counter:
    """Counts resident bytes. If residency is unknown, it counts mapped bytes instead."""

    def __init__(self, session: Session, residency: Presence, ranges: Sequence[Range]) -> None:
        self.session = session
        self.step = PURE_STEP if session.engine.name == "pure" else STEP
        self.whole = residency.resident if residency else Runs.of(ranges)

    def bytes(self, ranges: Iterable[tuple[int, int]]) -> int:
        return sum(self.whole.bytes(start, end) for start, end in ranges)

    def states(self, ranges: Sequence[Range]) -> list[int]:
        sums = [0] * len(State)
        held: array[int] = array("Q")
        size = 0
        for start, end in ranges:
            for low in range(start, end, self.step):
                high = min(end, low + self.step)
                held += clip_runs(self.whole, low, high)
                size += high - low
                if size >= self.step or len(held) >= 1 << 16:
                    self._add(sums, held)
                    held, size = array("Q"), 0
        self._add(sums, held)
        return sums

    def _add(self, sums: list[int], held: array[int]) -> None:
        self.session.report_progress("counting what is resident", 0.0)
        if held:
            for state, count in enumerate(self.session.directory.blocks.bytes_in(held)):
                sums[state] += count


def clip_runs(runs: Runs, start: int, end: int) -> array[int]:
    """Return the parts of the runs inside [start, end), as a flat array of starts and ends
    ("Q")."""
    # `words` holds start, end, start, end … in ascending order. An odd index therefore means that
    # the position lies inside a run, which must be cut there.
    words = runs.words
    first, last = bisect_right(words, start), bisect_left(words, end)
    part = words[first:last]
    if first & 1:
        part.insert(0, start)
    if last & 1:
        part.append(end)
    return part


def account_memory(session: Session, residency: Presence) -> Accounting:
    """Assign each byte of the process to a share.
    Read `residency` before you read any heap memory, because reading the heaps makes pages of files
    resident."""
    target = session.target
    # Inaccessible memory is reserved, not mapped. If residency is known, this memory is examined
    # all the same: pages that were touched before the memory became inaccessible are still
    # resident.
    regions = [region for region in target.regions() if residency or region.readable or region.writable or region.executable]
    reserved = _list_reserved(session, not residency)
    mapped = merge_ranges(Range(region.start, region.end) for region in regions)
    if not residency:
        mapped = subtract(mapped, [part for one in reserved for part in one.ranges])
    counter = _Counter(session, residency, mapped)
    claimed = _UnclaimedMemory(mapped)
    stores = _count_stores(session, counter, claimed)
    shares: list[Share] = []
    for store in stores:
        shares += _split_store(session, store)
    mappings = session.directory.mappings.ranges
    shares += [Share(ShareSort.LEAKED_MAPPINGS, "", counter.bytes(mappings), len(mappings))] if mappings else []
    shares += _count_managed_heaps(session, counter, claimed)
    stacks, left, size = _count_stacks(session, counter, claimed, regions)
    shares += stacks
    shares += _count_mappings(session, counter, claimed, regions)
    shares = sorted((share for share in shares if share.bytes or share.count), key=lambda share: -share.bytes)
    return Accounting(
        bool(residency),
        residency.source,
        sum(share.bytes for share in shares),
        residency.swapped.total if residency else 0,
        residency.rss,
        shares,
        stores,
        left,
        size,
        [*residency.warnings, *_zero_page_warnings(residency)],
        [one for one in list_runtime_holdings(session, session.runtimes, leaked_too=False) if one.native is not None and one.bytes],
        reserved,
    )


def _list_reserved(session: Session, flagged: bool) -> list[Reserved]:
    """Return the reserved address ranges by owner, the largest first. Ranges without an owner ("")
    are last."""
    found = sorted(session.reserved, key=lambda one: -one.bytes)
    others = unowned_reserved(session.target, found, flagged, lambda: session.report_progress("looking for reserved addresses", 0.0))
    return [*found, Reserved("", others)] if others else found


def _zero_page_warnings(residency: Presence) -> list[str]:
    """Yield a warning if pages of the kernel's zero page are counted as resident."""
    over = residency.resident.total - residency.rss if residency.rss is not None else 0
    if over <= 0 or not residency.unsure:
        return []
    return [
        f"{human(over)} of the memory counted as resident is the kernel's zero page: before Linux 6.7, only root can recognise this page"
    ]


class _UnclaimedMemory:
    """The memory that no share contains yet, so that each byte is assigned only once. `left`: the
    ranges that have no owner so far."""

    def __init__(self, mapped: Sequence[Range]) -> None:
        self.left = list(mapped)

    def take(self, ranges: Iterable[Range]) -> list[Range]:
        """Assign these ranges. Returns the parts of them that are mapped and had no owner
        before."""
        rest = subtract(self.left, ranges)
        taken = subtract(self.left, rest)
        self.left = rest
        return taken


def _count_stores(session: Session, counter: _Counter, claimed: _UnclaimedMemory) -> list[Store]:
    """Count each allocator's memory by arena.
    Memory of a heap that is neither in a block nor spare (headers, heap ends, descriptors) is
    allocator metadata."""
    directory = session.directory
    parts: dict[tuple[int, str], list[Range]] = {}
    for owned in directory.heaps:
        pieces = subtract([Range(owned.start, owned.end)], owned.heap.foreign)
        parts.setdefault((id(owned.allocator), owned.heap.arena), []).extend(pieces)
    # These ranges are disjoint, because the memory of other allocators' heaps was subtracted: see
    # allocators/nesting.py.
    claimed.take(part for ranges in parts.values() for part in ranges)
    stores = []
    for allocator in directory.allocators:
        session.report_progress(f"counting the memory of {allocator.name}", 0.0)
        spare: dict[str, dict[str, list[Range]]] = {}
        for one in allocator.spare(directory.blocks):
            spare.setdefault(one.arena, {}).setdefault(one.sort, []).append(Range(one.start, one.end))
        arenas = []
        for (owner, arena), ranges in parts.items():
            if owner == id(allocator):
                ranges = merge_ranges(ranges)
                sums, whole = counter.states(ranges), counter.bytes(ranges)
                own = whole - sums[State.IN_USE] - sums[State.CACHED] - sums[State.FREE]
                kept = {}
                # In a damaged heap, the ranges that the heap reports as spare may overlap its
                # blocks.
                for sort, these in spare.get(arena, {}).items():
                    kept[sort] = min(counter.bytes(intersection(ranges, these)), own)
                    own -= kept[sort]
                mapped = sum(end - start for start, end in ranges)
                arenas.append(ArenaUse(arena, sums[State.IN_USE], sums[State.CACHED], sums[State.FREE], kept, own, mapped))
        stores.append(Store(allocator, arenas, counter.bytes(claimed.take(allocator.metadata()))))
    return stores


def _split_store(session: Session, store: Store) -> Iterator[Share]:
    """Yield the shares of one allocator: in use, in thread caches, free, and metadata."""
    directory = session.directory
    used = directory.totals(store.allocator)[State.IN_USE].blocks
    kept_arenas = [arena for arena in store.arenas if arena.kept and arena.arena != "mmapped"]
    yield Share(ShareSort.IN_USE, store.name, store.in_use, used)
    yield Share(ShareSort.CACHED, store.name, store.cached)
    yield Share(ShareSort.KEPT, store.name, store.kept, len(kept_arenas) if store.kept else 0)
    yield Share(ShareSort.METADATA, store.name, store.own)


def _count_managed_heaps(session: Session, counter: _Counter, claimed: _UnclaimedMemory) -> Iterator[Share]:
    """Yield the shares of managed heaps. Parts that lie inside an allocator's blocks are left out,
    because they count as blocks."""
    for runtime in session.runtimes:
        for part in runtime.parts():
            if not part.inside:
                held = counter.bytes(claimed.take(part.ranges))
                unused = max(held - part.used, 0) if part.used is not None else 0
                name = f"{runtime.name} {part.name}"
                yield Share(ShareSort.RUNTIME, name, held, detail=part.detail, are_stacks=part.are_stacks, unused=unused)


def _count_stacks(
    session: Session, counter: _Counter, claimed: _UnclaimedMemory, regions: Sequence[Region]
) -> tuple[list[Share], list[NamedMemory], int]:
    """Count the stacks of live threads, of threads that ended and were never joined, and those that
    libc caches for new threads.
    Returns the shares, the stacks of the unjoined threads, and the mapped bytes of these stacks."""
    target = session.target
    places = [region for region in regions if region.writable]
    live = list(live_stacks(session).values())
    live += [Range(region.start, region.end) for region in places if region.name.startswith("[stack")]
    ended = unjoined_threads(target, session.engine, places)
    stacks = Runs.of(claimed.take(subtract(merge_ranges(one.stack for one in ended), live)))
    left = [NamedMemory(one.stack.start, _function_name(session, one.routine), counter.bytes(stacks.within(*one.stack))) for one in ended]
    taken = counter.bytes(claimed.take(live))
    cached = counter.bytes(claimed.take(dead_stacks(target, session.engine, places)))
    shares = [
        Share(ShareSort.STACKS, "", taken, len(target.threads()), are_stacks=True),
        Share(ShareSort.UNJOINED, "", sum(one.bytes for one in left), len(left)),
    ]
    return [*shares, Share(ShareSort.CACHED_STACKS, "", cached)], left, sum(one.stack.end - one.stack.start for one in ended)


def _function_name(session: Session, routine: int) -> str:
    """Return the function's name; "module+offset" if it has no name; "" if it is in no module."""
    symbol = session.target.symbolize(routine) if routine else None
    if symbol is not None:
        return symbol.name
    module = region_at(session.target.modules(), routine)
    return f"{os.path.basename(module.path)}+{routine - module.bias:#x}" if module is not None else ""


class _Kinds:
    """Adds up the sizes of mappings by kind."""

    def __init__(self) -> None:
        self._found: dict[str, MemoryKind] = {}

    def add(self, name: str, held: int, mappings: int = 1) -> None:
        before = self._found.get(name, MemoryKind(name, 0, 0))
        self._found[name] = MemoryKind(name, before.bytes + held, before.mappings + mappings)

    def fold(self) -> _Kinds:
        """Return the kinds with numbers replaced by "#" where at least ALIKE names become equal."""
        alike = Counter(replace_numbers(name) for name in self._found)
        folded = _Kinds()
        for name, kind in self._found.items():
            pattern = replace_numbers(name)
            folded.add(pattern if alike[pattern] >= ALIKE else name, kind.bytes, kind.mappings)
        return folded

    def largest(self) -> tuple[MemoryKind, ...]:
        return tuple(sorted(self._found.values(), key=lambda kind: -kind.bytes)[:KINDS])


def _count_mappings(session: Session, counter: _Counter, claimed: _UnclaimedMemory, regions: Sequence[Region]) -> Iterator[Share]:
    """Yield the remaining memory by kind of mapping."""
    modules = session.target.modules()
    left = Runs.of(claimed.left)
    files: Counter[str] = Counter()
    shared: dict[str, NamedMemory] = {}
    shared_mappings = kernel = 0
    unowned: list[NamedMemory] = []
    kinds: dict[ShareSort, _Kinds] = {sort: _Kinds() for sort in (ShareSort.FILES, ShareSort.UNKNOWN, ShareSort.SHARED)}
    for region in regions:
        held = counter.bytes(left.within(region.start, region.end))
        if not held:
            continue
        module = region_at(modules, region.start)
        if region.name.startswith(KERNELS):
            kernel += held
        elif is_shared(region):
            before = shared.get(region.name, NamedMemory(region.start, region.name, 0))
            shared[region.name] = before._replace(bytes=before.bytes + held)
            shared_mappings += 1
            kinds[ShareSort.SHARED].add(name_shared_memory(region), held)
        elif not region.anonymous or module is not None:
            path = region.name if region.name.startswith("/") or module is None else module.path
            files[os.path.basename(path.removesuffix(DELETED))] += held
            kinds[ShareSort.FILES].add(os.path.basename(path.removesuffix(DELETED)), held)
        else:
            unowned.append(NamedMemory(region.start, region.name, held))
            kinds[ShareSort.UNKNOWN].add(name_mapping_kind(region), held)
    largest = sorted((NamedMemory(0, name, size) for name, size in files.items()), key=lambda place: -place.bytes)
    yield Share(ShareSort.FILES, "", sum(files.values()), len(files), parts=tuple(largest), kinds=kinds[ShareSort.FILES].fold().largest())
    unowned.sort(key=lambda place: -place.bytes)
    unknown, total = kinds[ShareSort.UNKNOWN].largest(), sum(place.bytes for place in unowned)
    yield Share(ShareSort.UNKNOWN, "", total, len(unowned), parts=tuple(unowned[:NAMED]), kinds=unknown)
    parts = tuple(sorted(shared.values(), key=lambda place: -place.bytes))
    total = sum(place.bytes for place in parts)
    yield Share(ShareSort.SHARED, "", total, shared_mappings, parts=parts[:NAMED], kinds=kinds[ShareSort.SHARED].largest())
    yield Share(ShareSort.KERNEL, "", kernel)
