"""gperftools' tcmalloc in handmade images: every layout, and every kind of damage."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Optional

import pytest
from fake import FakeTarget, thread
from hypothesis import given, settings
from hypothesis import strategies as st

from findleaks.allocators import tcmalloc
from findleaks.allocators.tcmalloc import spans
from findleaks.allocators.tcmalloc.instance import Tcmalloc
from findleaks.allocators.tcmalloc.layout import (
    CACHE,
    CACHE_LINKS,
    CACHE_SIZE,
    COUNTER,
    EMPTY,
    IN_USE,
    LIST,
    MOVES,
    NONEMPTY,
    NORMAL,
    NUM_SPANS,
    RETURNED,
    SLOTS,
    Layout,
    pages_table,
)
from findleaks.engine import load as engine
from findleaks.engine.contract import Blocks
from findleaks.target.arch import X86_64
from findleaks.target.base import Module

SIZES = [0, 8, 16, 32, 48, 64, 80, 96, 128, 256, 512, 1024, 2048, 4096, 8192, 32768, 262144]
CLASS_64 = SIZES.index(64)
CLASS_256 = SIZES.index(256)
IMAGE, HEAP, METADATA, STACK = 0x7F0000000000, 0x10000000000, 0x20000000000, 0x7FFF00000000
USUAL = Layout(13, 2, 64)
ENGINES = [engine.load(X86_64), engine.load(X86_64, pure=True)]


@dataclass
class Image:
    """A handmade tcmalloc, with the addresses that tests damage."""

    layout: Layout
    links: int = CACHE_LINKS[0][0]
    words: dict[int, int] = field(default_factory=dict)
    regions: list[tuple[int, int]] = field(default_factory=list)
    table: int = IMAGE + 0x1000 + 4
    central: int = IMAGE + 0x4000
    top: int = METADATA
    page: int = 0
    spans: dict[str, int] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    stats: dict[int, int] = field(default_factory=dict)
    leaves: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root = self.central + 128 * self.layout.stride + self.layout.cached_pages
        self.heads = IMAGE + 0x400
        self.page = HEAP >> self.layout.shift

    def allocate(self, size: int) -> int:
        at, self.top = self.top, (self.top + size + 63) // 64 * 64
        return at

    def entry(self, page: int) -> int:
        """Return the address of a page's word in the page map."""
        layout = self.layout
        node, shift = self.root, layout.leaf_bits + layout.interior_bits
        for bits in [layout.interior_bits] * (layout.levels == 3) + [layout.leaf_bits]:
            at = node + 8 * (page >> shift)
            page &= (1 << shift) - 1
            if at not in self.words:
                self.words[at] = self.allocate(8 << bits)
            node, shift = self.words[at], shift - bits
            shift = max(shift, 0)
        return node + 8 * page

    def span(self, name: str, pages: int, number: int = 0, location: int = IN_USE, used: int = 0, objects: int = 0, more: int = 0) -> int:
        """Add a span after the last one. Return the address of its memory."""
        at = self.allocate(48)
        self.spans[name], self.starts[name] = at, self.page << self.layout.shift
        flags = used | number << 16 | location << 24 | more << 26
        for offset, value in ((0, self.page), (8, pages), (32, objects), (40, flags)):
            self.words[at + offset] = value
        for page in range(self.page, self.page + pages) if number else (self.page, self.page + pages - 1):
            self.words[self.entry(page)] = at
        self.page += pages
        size = pages << self.layout.shift
        self.stats[location] = self.stats.get(location, 0) + size
        if number:
            central = self.of_class(number)
            count = size // SIZES[number]
            self.words[central + NUM_SPANS] = self.words.get(central + NUM_SPANS, 0) + 1
            self.words[central + COUNTER] = self.words.get(central + COUNTER, 0) + count - used
            self.join(central + (NONEMPTY if objects else EMPTY), at)
        elif location != IN_USE:
            ring = self.root + self.layout.lists + (pages - 1) * 96 + (48 if location == RETURNED else 0)
            self.join(ring, at)
        return self.starts[name]

    def of_class(self, number: int) -> int:
        return self.central + number * self.layout.stride

    def join(self, header: int, at: int) -> None:
        """Insert a span at the front of a ring."""
        after = self.words.get(header + 16, header)
        self.words.update({header + 16: at, after + 24: at, at + 16: after, at + 24: header})

    def chain(self, blocks: list[int]) -> int:
        """Link freed blocks. Return the first."""
        for block, following in zip(blocks, [*blocks[1:], 0]):
            self.words[block] = following
        return blocks[0]

    def int32(self, address: int, value: int) -> None:
        word = address & -8
        shift = 32 * (address >> 2 & 1)
        self.words[word] = self.words.get(word, 0) & ~(0xFFFFFFFF << shift) | value << shift

    def target(self, tid: Optional[int] = 42) -> FakeTarget:
        """Return the process after everything is written."""
        layout = self.layout
        for number, size in enumerate(SIZES):
            self.int32(self.table + 4 * number, size)
            self.int32(self.table + MOVES + 4 * number, 2)
            self.words[pages_table(self.table) + 8 * number] = max(size >> layout.shift, 1)
        for number in range(128):
            central = self.of_class(number)
            self.words[central + 8] = number
            for ring in (EMPTY, NONEMPTY):
                self.words.setdefault(central + ring + 16, central + ring)
                self.words.setdefault(central + ring + 24, central + ring)
        for number in range(2 * layout.most_pages):
            ring = self.root + layout.lists + 48 * number
            self.words.setdefault(ring + 16, ring)
            self.words.setdefault(ring + 24, ring)
        at = self.root + layout.stats
        for offset, value in enumerate((sum(self.stats.values()), self.stats.get(NORMAL, 0), self.stats.get(RETURNED, 0))):
            self.words[at + 8 * offset] = value
        memory = {IMAGE: bytearray(self.root + layout.heap_end + 4096 - IMAGE & -4096)}
        memory[METADATA] = bytearray(self.top - METADATA + 4095 & -4096)
        memory[HEAP] = bytearray((self.page << layout.shift) - HEAP)
        memory[STACK] = bytearray(0x8000)
        self.words[STACK + 0x6000 - 64] = self.words.get(self.heads, 0)
        for address, value in self.words.items():
            base = max(start for start in memory if start <= address)
            struct.pack_into("<Q", memory[base], address - base, value)
        threads = [thread(tid, STACK + 0x1000, thread_pointer=STACK + 0x6000)] if tid else []
        module = Module("/lib/libany.so", IMAGE, IMAGE, IMAGE + len(memory[IMAGE]))
        names = {IMAGE: "/lib/libany.so"}
        return FakeTarget({start: bytes(data) for start, data in memory.items()}, names=names, modules=[module], threads=threads)

    def cache(self, lists: dict[int, list[int]]) -> int:
        """Add a thread cache at the front of the list of all thread caches."""
        at = self.allocate(CACHE)
        for number, size in enumerate(SIZES):
            blocks = lists.get(number, [])
            self.words[at + number * LIST] = self.chain(blocks) if blocks else 0
            self.words[at + number * LIST + 8] = len(blocks)
            self.words[at + number * LIST + 24] = size
        self.words[at + CACHE_SIZE] = sum(SIZES[number] * len(blocks) for number, blocks in lists.items())
        after = self.words.get(self.heads, 0)
        self.words[at + self.links], self.words[at + self.links + 8] = after, 0
        if after:
            self.words[after + self.links + 8] = at
        self.words[self.heads] = at
        return at


def make_image(layout: Layout = USUAL, links: int = CACHE_LINKS[0][0]) -> Image:
    """Return an image with blocks of 64 bytes (three are free, two in a thread cache, and two in a transfer cache if
    the layout has one), a full span of 256-byte blocks, a large block, a sampled block, and free pages."""
    image = Image(layout, links)
    page = layout.page
    start = image.page << layout.shift
    free = [start + 64 * number for number in (5, 2, 9)]
    image.span("mixed", 1, CLASS_64, used=page // 64 - 3, objects=image.chain(free))
    image.span("full", 1, CLASS_256, used=page // 256)
    image.span("large", 3)
    trace = image.allocate(33 * 8)
    image.words[trace] = 100
    image.span("sampled", 1, objects=trace, more=1)
    image.span("normal", 2, location=NORMAL)
    image.span("returned", 1, location=RETURNED)
    image.span("last", 1, CLASS_64, used=page // 64)
    if layout.slots:
        central = image.of_class(CLASS_64)
        slot = [start + 64 * 20, start + 64 * 21]
        image.words[central + SLOTS], image.words[central + SLOTS + 8] = image.chain(slot), slot[-1]
        image.int32(central + layout.used_slots, 1)
    image.other = image.cache({})
    image.mine = image.cache({CLASS_64: [start + 64 * 30, start + 64 * 31]})
    return image


def read(target: FakeTarget, which: int = 0) -> tuple[Tcmalloc, Blocks]:
    """Find the only tcmalloc of the target, walk its heaps, and return it."""
    (found,) = tcmalloc.find(target, ENGINES[which])
    assert isinstance(found, Tcmalloc)
    return found, walk(found, which)


def walk(found: Tcmalloc, which: int = 0) -> Blocks:
    blocks = ENGINES[which].blocks(X86_64, found.granule)
    for heap in sorted(found.heaps(), key=lambda heap: heap.start):
        heap.walk(blocks)
    blocks.seal()
    found.mark_blocks(blocks)
    return blocks


def list_states(blocks: Blocks) -> dict[int, str]:
    return {blocks.address(i): blocks.state(i).name for i in range(len(blocks))}


LAYOUTS = [
    Layout(13, 2, 64),
    Layout(15, 2, 64),
    Layout(16, 2, 64),
    Layout(12, 2, 64),
    Layout(18, 2, 64),
    Layout(13, 3, 0),
    Layout(16, 3, 0),
]


@pytest.mark.parametrize("which", [0, 1], ids=["native", "pure"])
@pytest.mark.parametrize("links", [offset for offset, _ in CACHE_LINKS])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_layout(layout: Layout, links: int, which: int) -> None:
    image = make_image(layout, links)
    found, blocks = read(image.target(), which)
    assert found.problems == []
    assert (found.place.layout, found.place.root, found.place.central) == (layout, image.root, image.central)
    start, page = image.starts["mixed"], layout.page
    seen = list_states(blocks)
    assert len(seen) == page // 64 * 2 + page // 256 + 2
    assert [at for at, state in seen.items() if state == "FREE"] == [start + 64 * n for n in (2, 5, 9)]
    cached = [20, 21, 30, 31] if layout.slots else [30, 31]
    assert [at for at, state in seen.items() if state == "CACHED"] == [start + 64 * n for n in cached]
    assert blocks.size(blocks.find(image.starts["large"])) == 3 * page
    assert blocks.size(blocks.find(image.starts["sampled"])) == 128  # the program requested 100 bytes
    assert blocks.find(image.starts["normal"]) == blocks.find(image.starts["returned"]) == -1
    assert [(cache.thread, cache.size, cache.blocks) for cache in found.thread_caches(blocks)] == [(42, 64, 2)]
    assert list(filter(None, found.verify(blocks))) == []
    rows = {cache.name: cache for cache in found.caches(blocks)}
    assert (rows["64"].in_use, rows["64"].cached, rows["64"].free) == (page // 64 * 2 - 3 - len(cached), len(cached), 3)
    assert (rows["large"].in_use, rows["large"].in_use_bytes) == (2, 3 * page + 128)
    assert found.read_counters()["tcmalloc.pageheap_free_bytes"] == 2 * page
    assert [(heap.start, heap.end) for heap in found.heaps()] == [(HEAP, HEAP + 10 * page)]


def test_allocator_metadata() -> None:
    """The metadata must not be roots, because they contain stale pointers to blocks."""
    image = make_image()
    found, _ = read(image.target())
    own = found.metadata()
    central = image.of_class(CLASS_64)
    trace = image.words[image.spans["sampled"] + 32]
    stale = [central + SLOTS + 16 * 63, image.spans["full"] + 32, image.mine + LIST, image.entry(HEAP >> 13), image.root, trace + 200]
    for address in stale:
        assert any(start <= address < end for start, end in own), hex(address)
    assert not any(start <= image.heads < end for start, end in own)  # other variables of the image stay roots
    assert not any(start < HEAP + 10 * 8192 and end > HEAP for start, end in own)


def test_a_leftover_pointer_to_a_cache_makes_no_thread_its_owner() -> None:
    """The variable of each thread is at the same distance from its thread pointer. The first thread also has pointers
    to the other threads' caches, at lower addresses of its stack."""
    image = make_image()
    caches = [image.mine, *(image.cache({CLASS_64: []}) for _ in range(3))]
    for number, cache in enumerate(caches):
        image.words[STACK + 0x3000 + 0x800 * number + 0x40] = cache
        image.words[STACK + 0x2000 + 8 * number] = cache
    target = image.target(tid=None)
    target._threads = [thread(50 + n, STACK + 0x1000, thread_pointer=STACK + 0x3000 + 0x800 * n) for n in range(4)]
    found, _ = read(target)
    assert {heap.address: heap.tid for heap in found.threads if heap.tid} == {cache: 50 + number for number, cache in enumerate(caches)}


def test_descriptions_of_addresses() -> None:
    image = make_image()
    found, _ = read(image.target())
    assert found.locate(image.starts["mixed"] + 70).startswith("span of 64-byte blocks")
    assert found.locate(image.starts["normal"] + 70).startswith("free pages of the page heap")
    assert "returned" in found.locate(image.starts["returned"])
    assert found.locate(image.mine + 64) == "thread cache of thread 42"
    assert found.locate(image.of_class(3) + 8) == "central list of size class 3"
    assert found.locate(image.entry(HEAP >> 13)) == "page map"
    assert found.locate(STACK) == ""


def test_memory_without_tcmalloc() -> None:
    """Two kinds of memory are not tcmalloc: its table of size classes alone, and data that look like the beginning of a tcmalloc."""
    image = make_image()
    target = image.target()
    target.write(image.of_class(3) + 8, bytes(8))
    assert list(tcmalloc.find(target, ENGINES[0])) == []
    data = struct.pack("<4Q", 8 << 32, 32 << 32 | 16, 16 << 32 | 8, 7) * 4096
    module = Module("/bin/any", 0x400000, 0x400000, 0x400000 + len(data))
    assert list(tcmalloc.find(FakeTarget({0x400000: data}, modules=[module]), ENGINES[0])) == []


def link(block: int) -> int:
    """Return the address of the link in a block of the first span."""
    return HEAP + 64 * block


M = make_image()
TARGET = M.target()
DAMAGE = {
    "a span that lost its pages": (M.spans["mixed"], 0x4141414141414141, "has other pages", "full"),
    "a span that claims to be huge": (M.spans["mixed"] + 8, 1 << 40, "has other pages", "full"),
    "a span that claims a page more": (M.spans["mixed"] + 8, 2, "has other pages", "full"),
    "a size class there is none of": (M.spans["full"] + 40, 200 << 16 | 32, "size class 200, which does not exist", "mixed"),
    "a page map's entry to nowhere": (M.entry(HEAP >> 13), 0x4141414141414140, "cannot be read", "full"),
    "a free list that leaves its span": (link(2), HEAP + 8192 + 256, "2 on its free list, 125 in use by its count; ", "full"),
    "a free list with a cycle": (link(9), HEAP + 5 * 64, "free list", "full"),
    "a free list to nowhere": (link(2), 0x6161616161616161, "free list", "full"),
    "a free list that ends early": (link(5), 0, "1 on its free list, 125 in use", "full"),
    "a thread cache to nowhere": (
        M.mine + CLASS_64 * LIST,
        0x6161616161616161,
        "blocks of 64: 0 on the list, 2 by",
        "full",
    ),
    "a thread cache into a block": (M.mine + CLASS_64 * LIST, HEAP + 64 * 40 + 8, "where no block starts", "full"),
    "a thread cache freed twice": (link(31), HEAP + 64 * 30, "thread 42's cache, blocks of 64: 2 on the list, 2 by its count; ", "full"),
    "a transfer cache too full": (M.of_class(CLASS_64) + M.layout.used_slots, 1000, "more than its slots", "full"),
    "thread caches that end in nothing": (M.mine + M.links, 0x6161616161616160, "", "full"),
    "counts that are off": (M.root + M.layout.stats, 4096, "the page heap counts system_bytes 4,096", "full"),
    "a central count that is off": (M.of_class(CLASS_64) + COUNTER, 77, "counts 77 free blocks", "full"),
    "a sampled block without its stack": (M.spans["sampled"] + 32, 0x6161616161616160, "", "full"),
}


@pytest.mark.parametrize("which", [0, 1], ids=["native", "pure"])
@pytest.mark.parametrize(("address", "value", "says", "kept"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_reported_and_the_rest_is_read(address: int, value: int, says: str, kept: str, which: int) -> None:
    image = make_image()
    target = image.target()
    target.write_word(address, value)
    found, blocks = read(target, which)
    assert [problem.what for problem in found.problems if says in problem.what] or not says, found.problems
    seen = list_states(blocks)
    size = SIZES[{"full": CLASS_256, "mixed": CLASS_64}[kept]]
    assert all(image.starts[kept] + size * number in seen for number in range(8192 // size))
    list(found.verify(blocks))
    found.caches(blocks)


CHECKS = {
    "a page that names another span": (M.entry((HEAP >> 13) + 9), M.spans["full"], None),
    "a ring that does not link back": (M.spans["full"] + 24, 0x6161616161616160, "before it, the list has"),
    "a ring to nowhere": (M.spans["full"] + 16, 0x6161616161616160, "which cannot be read"),
    "a ring that ends elsewhere": (M.of_class(CLASS_256) + EMPTY + 24, M.spans["mixed"], "ends with"),
    "a span on no ring": (M.of_class(CLASS_256) + EMPTY + 16, M.of_class(CLASS_256) + EMPTY, "ends with"),
    "a count of spans": (M.of_class(CLASS_256) + NUM_SPANS, 5, "counts 5 spans, 1 are on its lists"),
    "a ring of free spans": (M.spans["normal"] + 24, 16, "before it, the list has"),
    "a set of large spans": (M.root + M.layout.lists - 96 + 40, 3, "set of large spans has 3, the page map 0"),
    "a block on two lists": (link(9), HEAP + 64 * 20, "2 times on lists of freed blocks: it was freed twice"),
    "a block on the list of another size": (link(31), HEAP + 8192, "which is a block of 256 bytes"),
    "the tail of a chain": (M.of_class(CLASS_64) + SLOTS + 8, HEAP, "the end in the slot is"),
}


@pytest.mark.parametrize(("address", "value", "says"), CHECKS.values(), ids=CHECKS)
def test_verify_reports_damage(address: int, value: int, says: Optional[str]) -> None:
    target = make_image().target()
    target.write_word(address, value)
    found, blocks = read(target)
    reported = [problem.what for problem in [*found.problems, *filter(None, found.verify(blocks))]]
    assert [what for what in reported if (says or "page") in what], reported


def test_verify_of_a_list_into_free_pages_with_an_invalid_size_class() -> None:
    """A list leads into free pages. They keep their last size class, which may be damaged."""
    target = make_image().target()
    target.write_word(M.spans["normal"] + 40, NORMAL << 24 | 200 << 16)
    target.write_word(link(31), M.starts["normal"])
    found, blocks = read(target)
    assert any("which is a block of a span of its own" in problem.what for problem in filter(None, found.verify(blocks)))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(sorted(M.words)), st.integers(0, 1 << 64)), min_size=1, max_size=8))
def test_any_damage_is_handled(writes: list[tuple[int, int]]) -> None:
    """Words get random values or the values of other words: no exception, no endless loop."""
    words = sorted(M.words)
    for address, value in writes:
        TARGET.write_word(address, value % (1 << 64) if value & 1 else M.words[words[value % len(words)]])
    for found in tcmalloc.find(TARGET, ENGINES[0]):
        assert isinstance(found, Tcmalloc)
        blocks = walk(found)
        list(found.verify(blocks))
        found.caches(blocks)
        found.metadata()
        found.read_counters()
    for address, _ in writes:
        TARGET.write_word(address, M.words[address])


def test_a_sampled_block_ends_in_its_span() -> None:
    """The requested size is a word of the target. Its size class may be larger than the span."""
    target = FakeTarget({0x1000: (90_000).to_bytes(8, "little")})
    span = spans.Span(0x5000, 0x100000, 0x100000 + 11 * 8192, 0, spans.IN_USE, 1, 0x1000, True)
    place = SimpleNamespace(sizes=[0, 8, 65536, 98304])
    assert spans.sampled_sizes(target, engine.load(X86_64), place, [span]) == {0x100000: 11 * 8192}  # type: ignore[arg-type]
