"""PartitionAlloc as an Allocator: slot spans, direct maps, thread caches, quarantine."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.base import Allocator, Arena, Cache, Heap, Problem, ThreadCache, add_first_problems, any_within
from findleaks.allocators.memory import Memory
from findleaks.allocators.partitionalloc import layout as at
from findleaks.allocators.partitionalloc.engine import OUTCOME, read_slots
from findleaks.allocators.partitionalloc.layout import METADATA, PAGE, PARTITION_PAGE, SUPER_PAGE
from findleaks.allocators.partitionalloc.quarantine import Quarantine, read_quarantine
from findleaks.allocators.partitionalloc.roots import Anchor, DirectMap, Root, RootLayout, find_anchors, find_layout, find_others, read_root
from findleaks.allocators.partitionalloc.spans import Partition, Span, Spans, read_spans
from findleaks.allocators.partitionalloc.tallies import DIRECT, Tally, count_row
from findleaks.allocators.partitionalloc.thread_caches import SlotCache, follow_slots, read_thread_caches
from findleaks.allocators.partitionalloc.verify import check_partition
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State, run_states
from findleaks.errors import Interrupted
from findleaks.target.arch import X86_64
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges, subtract

STEP = 32  # super pages whose slots are read at once
TLS = 1 << 16  # bytes below a thread pointer in which a thread has the addresses of its caches

OTHER_LAYOUT = "an unknown layout: its blocks are not read (supported: Chromium 121 to 156)"
OTHER_MACHINE = "blocks that are not read: findleaks reads PartitionAlloc only on x86-64"

_FREE_OR_USED = run_states(State.IN_USE, State.FREE)


class Unread(Allocator):
    """A PartitionAlloc that is reported, but not read."""

    name = "PartitionAlloc"
    version = ""
    granule = at.SMALLEST

    def __init__(self, where: str, address: int, what: str) -> None:
        self.where = where
        self.problems = [Problem(address, f"PartitionAlloc in {where} has {what}", False)]

    def heaps(self) -> list[Heap]:
        return []


def make(target: Target, engine: Engine) -> list[Allocator]:
    """Return the PartitionAlloc of each loaded file that has partitions."""
    memory = Memory(target)
    anchors = find_anchors(target, engine)
    others = find_others(memory, anchors) if anchors else []
    found: list[Allocator] = []
    for file in dict.fromkeys(one.file for one in anchors):
        inside = [one for one in anchors if one.file == file]
        inverted = {one.inverted for one in inside}
        inside += [one for one in others if one.inverted in inverted]
        others = [one for one in others if one.inverted not in inverted]
        found.append(_make_one(target, engine, memory, file, inside))
    return found


def _make_one(target: Target, engine: Engine, memory: Memory, file: str, anchors: Sequence[Anchor]) -> Allocator:
    if target.arch.name != X86_64.name:
        return Unread(file, anchors[0].root, OTHER_MACHINE)
    layout = find_layout(memory, anchors)
    if layout is None:
        return Unread(file, anchors[0].root, OTHER_LAYOUT)
    problems: list[Problem] = []
    if len(anchors) > at.MOST_ROOTS:
        what = f"PartitionAlloc in {file} has more than {at.MOST_ROOTS} partitions: the blocks of further ones are not read"
        problems.append(Problem(anchors[at.MOST_ROOTS].root, what, False))
    taken: set[int] = set()
    read = (read_root(memory, one.root, number, layout, taken, problems) for number, one in enumerate(anchors[: at.MOST_ROOTS], 1))
    roots = [root for root in read if root is not None]
    spans = read_spans(memory, roots)
    if spans is None:
        return Unread(file, anchors[0].root, OTHER_LAYOUT)
    return PartitionAlloc(target, engine, file, anchors, layout, spans, [*problems, *spans.problems])


class PartitionAlloc(Allocator):
    """All partitions of one file; see Allocator. Blocks that BackupRefPtr quarantines are free.
    Blocks in thread caches are cached."""

    name = "PartitionAlloc"
    granule = at.SMALLEST
    retention_note = "PartitionAlloc returns empty spans after some seconds, and unused pages under memory pressure"

    def __init__(
        self,
        target: Target,
        engine: Engine,
        where: str,
        anchors: Sequence[Anchor],
        layout: RootLayout,
        spans: Spans,
        problems: list[Problem],
    ) -> None:
        self.target = target
        self.engine = engine
        self.memory = Memory(target)
        self.where = where
        self.version = _name_version(layout, spans.width)
        self.anchors = anchors
        self.problems = problems
        self.partitions = spans.partitions
        self.slot_caches: Sequence[SlotCache] = read_thread_caches(self.memory, engine, self.partitions, problems)
        self.cached = array("Q", sorted(slot for one in self.slot_caches for bucket in one.buckets for slot in bucket.slots))
        self.quarantined = [slot for one in self.partitions for slot in self._read_quarantine(one.root).slots]
        self.tallies: dict[int, dict[int, Tally]] = defaultdict(lambda: defaultdict(Tally))
        self.damaged: list[Problem] = []
        self.uneven: list[Span] = []  # spans with damaged free lists
        self._heaps: list[Heap] = []
        for one in self.partitions:
            count = one.root.counters.get(at.BRP_COUNTERS[1], 0)
            if count and not one.has_counters:
                what = f"PartitionAlloc's BackupRefPtr quarantines {count:,} slots, which are not found: they count as in use"
                self.problems.append(Problem(one.root.address, what, False))

    def _read_quarantine(self, root: Root) -> Quarantine:
        inverted = next(one.inverted for one in self.anchors if one.root == root.address)
        after_caches = [one.end for one in self.slot_caches if one.root == root.address]
        return read_quarantine(self.memory, root, root.address + inverted + self.memory.size, after_caches, self.problems)

    def heaps(self) -> list[Heap]:
        if not self._heaps:
            for one in self.partitions:
                name = _name_partition(one.root)
                for extent in one.root.extents:
                    heap = Heap(extent.start, extent.end, name, self._walk(one, extent.start, extent.end))
                    for page in range(extent.start, extent.end, SUPER_PAGE):
                        heap.metadata += [Range(page, page + PARTITION_PAGE), Range(page + SUPER_PAGE - PARTITION_PAGE, page + SUPER_PAGE)]
                    self._heaps.append(heap)
                for large in one.root.direct_maps:
                    heap = Heap(large.start, large.end, name, _walk_direct(large, one.root.extras))
                    heap.metadata = [Range(large.start, large.slot), Range(large.slot + large.slot_size, large.end)]
                    self._heaps.append(heap)
        return self._heaps

    def _walk(self, one: Partition, start: int, end: int) -> Callable[[Blocks], None]:
        """Return the function that appends the blocks of adjacent super pages."""
        tallies = self.tallies[one.root.address]

        def run(blocks: Blocks) -> None:
            spans = one.between(start, end)
            for first in range(start, end, STEP * SUPER_PAGE):
                if self.target.is_interrupted():
                    raise Interrupted
                last = min(first + STEP * SUPER_PAGE, end)
                self._read_spans(blocks, one, [span for span in spans if first <= span.start < last], Range(first, last), tallies)

        return run

    def _read_spans(self, blocks: Blocks, one: Partition, spans: Sequence[Span], part: Range, tallies: Mapping[int, Tally]) -> None:
        """Append the blocks of `spans`. All of these spans are in the range `part`."""
        extras, words, runs, bit = one.root.extras, array("Q"), array("Q"), 0
        used = [span for span in spans if not span.is_decommitted]
        for span in used:
            words.extend((span.start, span.slot_size, span.slots, span.head, bit))
            runs.extend((span.start, span.slot_size, usable_size(span, extras), span.slots, bit, _FREE_OR_USED))
            bit += span.slots
        pieces = list(self.target.pieces(*part))
        read = read_slots(self.engine, pieces, words, one.links, one.has_counters, self.cached, bit)
        blocks.append_runs(runs, bytes(read.bits))
        for number, span in enumerate(used):
            freed, quarantined, damaged = read.outcomes[number * OUTCOME : (number + 1) * OUTCOME]
            tallies[span.bucket].add(span, freed, quarantined)
            if damaged or freed != span.slots - span.allocated:
                self.uneven.append(span)
                self.damaged.append(_describe_list(span, freed, damaged))
        for span in spans:
            if span.is_decommitted:
                tallies[span.bucket].add(span, 0, 0)

    def mark_blocks(self, blocks: Blocks) -> None:
        add_first_problems(self.problems, self.damaged, "damaged free lists of PartitionAlloc")
        for slots, state, place in ((self.cached, State.CACHED, "thread caches have"), (self.quarantined, State.FREE, "quarantine has")):
            wrong = {slot for slot in slots if self._state_at(blocks, slot) != State.IN_USE}
            if wrong:
                what = f"PartitionAlloc's {place} {len(wrong):,} addresses that are not allocated slots, such as {min(wrong):#x}"
                self.problems.append(Problem(min(wrong), what))
            blocks.set_state(set(slots).difference(wrong), state)
        for slot in self.quarantined:
            self._tally_at(slot).delayed += 1
        for cache in self.slot_caches:
            found = blocks.lookup(cache.address)
            if found is not None and found[3] == State.IN_USE:
                blocks.set_state([found[1]], State.METADATA)

    @staticmethod
    def _state_at(blocks: Blocks, slot: int) -> Optional[State]:
        found = blocks.lookup(slot)
        return State(found[3]) if found is not None and found[1] == slot else None

    def _tally_at(self, address: int) -> Tally:
        """Return the tally of the span that contains `address`."""
        found = self._find_span(address)
        return self.tallies[found[0].root.address][found[1].bucket] if found is not None else Tally()

    @cached_property
    def _spans(self) -> list[tuple[int, Span, Partition]]:
        return sorted((span.start, span, one) for one in self.partitions for span in one.spans)

    @cached_property
    def _starts(self) -> list[int]:
        return [start for start, _, _ in self._spans]

    def _find_span(self, address: int) -> Optional[tuple[Partition, Span]]:
        number = bisect_right(self._starts, address) - 1
        if number < 0 or address >= self._spans[number][1].end:
            return None
        _, span, one = self._spans[number]
        return one, span

    def metadata(self) -> list[Range]:
        """Return the roots, and the metadata that is not in super pages (see Allocator)."""
        ranges = [Range(one.root, one.root + one.inverted + self.memory.size) for one in self.anchors]
        for one in self.partitions:
            if one.root.metadata != PAGE:
                ranges += self._list_metadata(one.root)
        return ranges

    @staticmethod
    def _list_metadata(root: Root) -> list[Range]:
        """Return the metadata of the super pages and direct maps of a partition."""
        places = [page + root.metadata for page in root.super_pages()] + [large.entry & -METADATA for large in root.direct_maps]
        return [Range(place, place + METADATA) for place in places]

    def list_reserved(self) -> list[Range]:
        pools = {(one.root.pool, one.root.metadata) for one in self.partitions}
        separate = [Range(max(pool.start + distance, 0), max(pool.end + distance, 0)) for pool, distance in pools if distance != PAGE]
        return merge_ranges([*(pool for pool, _ in pools), *separate])

    def locate(self, address: int) -> str:
        found = self._find_span(address)
        if found is not None:
            _, span = found
            slot = find_slot(span, address)
            if span.is_decommitted or slot >= span.start + span.slots * span.slot_size:
                return f"unused slots of {span.slot_size} bytes"
            return f"reference counter or padding of the {span.slot_size}-byte block {slot:#x}"
        if any(address in range(*one) for one in self.metadata()):
            return "metadata"
        for heap in self.heaps():
            if heap.start <= address < heap.end:
                return "guard pages and metadata" if any(address in range(*one) for one in heap.metadata) else "unused pages"
        return ""

    def class_of(self, address: int) -> str:
        found = self._find_span(address)
        return str(found[1].slot_size) if found is not None else DIRECT

    def caches(self, blocks: Blocks) -> list[Cache]:
        inner = [part for heap in self.heaps() for part in heap.inner_ranges()]
        rows = []
        for one in self.partitions:
            name, maps = _name_partition(one.root), one.root.direct_maps
            for _, tally in sorted(self.tallies[one.root.address].items()):
                rows.append(tally.row(blocks, name, one.root.extras, subtract(merge_ranges(tally.parts), inner)))
            if maps:
                size = sum(large.slot_size for large in maps)
                own = {"allocated_objects_size": size, "reserved": sum(large.end - large.start for large in maps)}
                parts = subtract(sorted(Range(large.start, large.end) for large in maps), inner)
                rows.append(count_row(blocks, name, DIRECT, 0, parts, size, own))
        return [row for row in rows if row.total]

    def arenas(self, blocks: Blocks) -> list[Arena]:
        arenas = []
        rows = self.caches(blocks)
        for one in self.partitions:
            name, counters = _name_partition(one.root), one.root.counters
            inside = [row for row in rows if row.arena == name]
            sums = (sum(row.in_use_bytes for row in inside), sum(row.cached_bytes for row in inside), sum(row.free_bytes for row in inside))
            committed = max(counters["total_size_of_committed_pages"], 0)
            metadata = METADATA * (sum(1 for _ in one.root.super_pages()) + len(one.root.direct_maps))
            spare = max(committed - sum(row.memory for row in inside), 0)
            arenas.append(Arena(name, *sums, committed + metadata, counters, spare))
        return arenas

    def read_counters(self) -> Mapping[str, int]:
        names = (*at.COUNTERS, *at.BRP_COUNTERS)
        return {name: sum(one.root.counters.get(name, 0) for one in self.partitions) for name in names}

    def thread_caches(self, blocks: Blocks) -> list[ThreadCache]:
        owners = self._find_owners()
        rows = []
        for one in self.slot_caches:
            thread = owners.get(one.address, 0)
            extras = next(each.root.extras for each in self.partitions if each.root.address == one.root)
            for size, slots in one.buckets:
                usable = size - extras
                owner = "" if thread else f"thread {one.tid}"
                rows.append(ThreadCache(thread, one.address, str(size), usable, len(slots), len(slots) * usable, owner))
        return rows

    def _find_owners(self) -> dict[int, int]:
        """Return the tid of the thread that owns each thread cache, by address of the cache. The
        thread has this address in a thread-local variable, below its thread pointer."""
        caches = {one.address for one in self.slot_caches}
        owners: dict[int, int] = {}
        for thread in self.target.threads():
            if thread.thread_pointer and caches:
                for piece in self.target.pieces(max(thread.thread_pointer - TLS, 0), thread.thread_pointer):
                    for place in self.engine.search(piece, min(caches), max(caches) + 1):
                        value = self.memory.word(place)
                        if value in caches:
                            owners[value] = thread.tid
        return owners

    def summary(self) -> dict[str, object]:
        tallies = [tally for inside in self.tallies.values() for tally in inside.values()]
        quarantined = sum(tally.quarantined + tally.delayed for tally in tallies)
        direct = sum(len(one.root.direct_maps) for one in self.partitions)
        pages = sum(1 for one in self.partitions for _ in one.root.super_pages())
        return {"partitions": len(self.partitions), "super_pages": pages, "direct_maps": direct, "quarantined": quarantined}

    def blocks_in_flight(self, words: Sequence[int], blocks: Blocks) -> Iterator[int]:
        """Yield the slots of each list whose first slot is one of `words`. When a thread cache
        returns many slots at once, it first removes their list from its bucket. Then only registers
        or the stack refer to the list. Also yield all slots of a span whose new slots are not
        linked yet."""
        for span in self.uneven:
            if any_within(words, [Range(span.start, span.end + 1)]):
                yield from range(span.start, span.start + span.slots * span.slot_size, span.slot_size)
        for word in words:
            found = self._find_span(word)
            if found is not None and find_slot(found[1], word) == word:
                yield from follow_slots(self.memory, word, at.MOST_CACHED_SLOTS, found[0].links, set())

    def is_changing(self, problem: Problem, words: Sequence[int], blocks: Blocks) -> bool:
        """Return whether a thread inside PartitionAlloc is changing the memory that `problem` is
        about. `words` are the words of the thread. If the problem is about counters or lists, its
        address is in a root or in metadata. A thread that changes these has an address in the root,
        the metadata or the super pages of the partition."""
        for one in self.partitions:
            own = [Range(one.root.address, one.root.address + at.ROOT_BYTES), *self._list_metadata(one.root)]
            if any(problem.address in range(*part) for part in own):
                return any_within(words, [*own, *(Range(extent.start, extent.end) for extent in one.root.extents)])
        return super().is_changing(problem, words, blocks)

    def verify(self, blocks: Blocks) -> Iterator[Optional[Problem]]:
        """Compare the counters and lists of each partition with its spans (see Allocator)."""
        for one in self.partitions:
            yield from check_partition(self.memory, one, self.tallies[one.root.address])
        for cache in self.slot_caches:
            total = sum(bucket.slot_size * len(bucket.slots) for bucket in cache.buckets)
            if total != cache.counted:
                what = f"PartitionAlloc's thread cache at {cache.address:#x} counts {cache.counted:,} cached bytes, but has {total:,}"
                yield Problem(cache.address, what)
        free = sum(tally.free for inside in self.tallies.values() for tally in inside.values())
        self.checked = {
            "slot spans": sum(len(one.spans) for one in self.partitions),
            "free slots": free + len(self.cached),
            "counters": 4 * len(self.partitions) + len(self.slot_caches),
        }


def usable_size(span: Span, extras: int) -> int:
    """Return the bytes of a slot that the program may use (malloc_usable_size)."""
    return max((span.raw_size or span.slot_size) - extras, 1)


def find_slot(span: Span, address: int) -> int:
    """Return the start of the slot of a span that contains `address`."""
    return span.start + (address - span.start) // span.slot_size * span.slot_size


def _usable(large: DirectMap, extras: int) -> int:
    raw = large.raw_size if 0 < large.raw_size <= large.slot_size else large.slot_size
    return max(raw - extras, 1)


def _walk_direct(large: DirectMap, extras: int) -> Callable[[Blocks], None]:
    def run(blocks: Blocks) -> None:
        blocks.append([large.slot], [_usable(large, extras)], [State.IN_USE])

    return run


def _describe_list(span: Span, freed: int, damaged: int) -> Problem:
    expected = span.slots - span.allocated
    if damaged:
        what = (
            f"PartitionAlloc's free list of the span {span.start:#x} is damaged at {damaged:#x}, after {freed:,} of {expected:,} slots: "
            "the others count as in use"
        )
        return Problem(damaged, what, damaged=Range(damaged, damaged + 16))
    what = (
        f"PartitionAlloc counts {expected:,} free slots in the span {span.start:#x}, but its free list has {freed:,}: "
        "some blocks are counted wrongly"
    )
    return Problem(span.entry, what, damaged=Range(span.entry, span.entry + at.ENTRY))


def _name_partition(root: Root) -> str:
    return f"partition {root.number}"


def _name_version(layout: RootLayout, width: int) -> str:
    """Return the Chromium versions that use a layout, such as "of Chromium 127"."""
    if layout.bucket.stride == at.BUCKETS[0].stride:
        return "of Chromium 156"
    if layout.bucket.stride == at.BUCKETS[1].stride:
        return "of Chromium 128-153" if width == at.WIDE else "of Chromium 127"
    return "of Chromium 126 or older"
