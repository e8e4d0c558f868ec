"""A synthetic process with Google's tcmalloc, in every supported layout, for tests to damage."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from fake import FakeTarget, thread

from findleaks.allocators.tcmalloc_google.layout import (
    COUNTER,
    FREELIST,
    LAYOUTS,
    LIST,
    LIST_END,
    LISTS,
    NUM_LISTS,
    OBJECT_SIZE,
    REQUESTED,
    SHARD_TRANSFER,
    SIZE_CLASS,
    SLOT_INFO,
    SLOTS,
    Layout,
)
from findleaks.target.base import Module

SIZES = [0, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192]
LISTED, MAPPED = SIZES.index(16), SIZES.index(2048)  # in every layout, LISTED has lists of free blocks, and MAPPED has bitmaps
IMAGE, HEAP, METADATA, STACK = 0x7F0000000000, 0x100000000000, 0xC0000000000, 0x7FFF00000000
CPUS, HEADS, SHARDS, ROOT = IMAGE + 0x80000, IMAGE + 0x81000, IMAGE + 0x82000, IMAGE + 0x90000
SHIFT = 14
POINTER = STACK + 0x1000
USUAL, SMALL = Layout(18, 89), LAYOUTS[-1]


@dataclass
class Image:
    """A synthetic tcmalloc, with the addresses that tests damage. `words` are written last, after the bytes of tables."""

    layout: Layout
    words: dict[int, int] = field(default_factory=dict)
    parts: dict[int, bytes] = field(default_factory=dict)
    spans: dict[str, int] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    leaves: dict[int, int] = field(default_factory=dict)
    top: int = METADATA
    slab: int = 0
    sample: int = 0
    cache: int = 0

    def __post_init__(self) -> None:
        self.size_map, self.transfers = IMAGE + 0x1000, IMAGE + 0x20000
        base = SIZES + ([] if not self.layout.transfer else [262144])
        base += [0] * (self.layout.base - len(base))
        self.sizes = base * self.layout.partitions + (base if self.layout.expanded else [])
        self.pages = [max(-(-size >> self.layout.shift), size > 0) for size in self.sizes]
        self.page = HEAP >> self.layout.shift

    def allocate(self, size: int) -> int:
        at, self.top = self.top, (self.top + size + 63) // 64 * 64
        return at

    def central(self, number: int) -> int:
        return self.transfers + number * self.layout.stride + self.layout.central_at

    def leaf(self, page: int) -> int:
        """Return the leaf of the page map that has the entry of a page."""
        layout, number = self.layout, page >> self.layout.leaf_bits
        if number not in self.leaves:
            at = ROOT + 8 * (number >> layout.interior_bits)
            if layout.levels == 3:
                node = self.words.setdefault(at, self.words.get(at) or self.allocate(8 << layout.interior_bits))
                at = node + 8 * (number & (1 << layout.interior_bits) - 1)
            self.leaves[number] = self.words[at] = self.allocate(layout.leaf)
        return self.leaves[number]

    def enter(self, page: int, word: int, number: int) -> None:
        leaf, index = self.leaf(page), page & (1 << self.layout.leaf_bits) - 1
        self.words[leaf + self.layout.spans_at + 8 * index] = word
        self.parts[leaf + self.layout.compact * index] = number.to_bytes(self.layout.compact, "little")

    def span(self, name: str, number: int = 0, pages: int = 0, free: tuple[int, ...] = (), sample: int = 0) -> int:
        """Add a span behind the last one, with these blocks free; return the address of its memory."""
        layout, at, size = self.layout, self.allocate(64), self.sizes[number]
        pages = pages or self.pages[number]
        start = self.page << layout.shift
        self.spans[name], self.starts[name] = at, start
        count = (pages << layout.shift) // size if number else 1
        counts = LIST_END << 16 | (count - len(free)) << 32
        if number and size < layout.least_bitmap:
            # The span stores eight free blocks. The next block stores as many others as fit, and so on.
            units = [index * size // 8 for index in free]
            self.parts[at + 40] = struct.pack(f"<{len(units[:8])}H", *units[:8])
            counts |= len(units[:8]) << 48
            most, rest, following = size // 2 - 1, units[8:], LIST_END
            hosts = [rest[index : index + most + 1] for index in range(0, len(rest), most + 1)][::-1]
            hosts.sort(key=len, reverse=True)  # only the first is not full
            for host in hosts:
                self.parts[start + host[0] * 8] = struct.pack(f"<{len(host)}H", following, *host[1:])
                following = host[0]
                counts = counts & ~0xFFFFFFFF | following << 16 | len(host) - 1
        elif number:
            bits = sum(1 << index for index in free)
            self.words[at + 40], self.words[at + 48] = bits & (1 << 64) - 1, bits >> 64
        large = pages > 63
        self.words[at + 16], self.words[at + 32] = counts, pages
        self.words[at + 24] = self.page | large << layout.large_bit | bool(sample) << layout.large_bit + 1
        if sample:
            self.words[at + 40] = sample
        for page in range(self.page, self.page + pages) if number else (self.page,):
            self.enter(page, at | number << 48, number)
        self.page += pages
        if number and count > 1:
            central = self.central(number)
            self.words[central + COUNTER] = self.words.get(central + COUNTER, 0) + len(free)
            self.words[central + REQUESTED] = self.words.get(central + REQUESTED, 0) + 1
            if free:
                head = central + LISTS
                after = self.words.get(head, head)
                self.words.update({head: at, at: after, at + 8: head, after + 8: at})
        return start

    def slots(self, cache: int, blocks: list[int]) -> None:
        at = self.allocate(8 * 64)
        self.words[cache + SLOTS], self.words[cache + SLOT_INFO] = at, len(blocks) | 64 << 32
        self.words.update({at + 8 * number: block for number, block in enumerate(blocks)})

    def cpu(self, blocks: dict[int, dict[int, list[int]]]) -> None:
        """Add the slabs of CPUs, each with blocks by size class and space for four blocks of each."""
        layout, count = self.layout, 4
        self.top = self.top + 4095 & -4096
        self.slab = self.allocate(count << SHIFT)
        stopped, begins = self.allocate(count), self.allocate(2 * layout.classes)
        numbers = [0] + [layout.first_begin + 5 * number for number in range(layout.classes - 1)]
        self.parts[begins] = struct.pack(f"<{layout.classes}H", *numbers)
        self.words.update({CPUS: self.slab | SHIFT, CPUS + 8: stopped, CPUS + 16: begins})
        for cpu, held in blocks.items():
            slab = self.slab + (cpu << SHIFT)
            headers = [(begin + len(held.get(number, [])), begin + 4) for number, begin in enumerate(numbers)]
            self.parts[slab] = b"".join(struct.pack("<2H", *header) for header in headers)
            for number, addresses in held.items():
                for index, address in enumerate(addresses):
                    self.words[slab + 8 * (numbers[number] + index)] = address

    def thread(self, lists: dict[int, list[int]], pointer: int = 0) -> int:
        """Add a thread cache at the front of the list of thread caches."""
        layout = self.layout
        at = self.allocate(layout.thread_cache)
        for number in range(layout.classes):
            blocks = lists.get(number, [])
            self.words[at + number * LIST] = blocks[0] if blocks else 0
            self.words[at + number * LIST + 8] = len(blocks)
            self.words[at + number * LIST + 16] = 1
            self.words.update(zip(blocks, [*blocks[1:], 0]))
        end, links = at + layout.classes * LIST, at + layout.cache_links
        self.words[end] = sum(self.sizes[number] * len(blocks) for number, blocks in lists.items())
        self.words[end + 16] = pointer
        after = self.words.get(HEADS, 0)
        self.words[links] = after
        if after:
            self.words[after + layout.cache_links + 8] = at
        self.words[HEADS] = at
        return at

    def shard(self, number: int, blocks: list[int]) -> None:
        """Make two shards of caches. The one with this number contains these free blocks."""
        shards, caches = self.allocate(32), self.allocate(self.layout.classes * SHARD_TRANSFER)
        self.words.update({SHARDS: shards, SHARDS + 8: 2 | 1 << 32, shards + 16: caches, shards + 24: 1 << 32})
        for index in range(self.layout.classes):
            self.words[caches + index * SHARD_TRANSFER + FREELIST] = index
        self.slots(caches + number * SHARD_TRANSFER, blocks)

    def target(self) -> FakeTarget:
        """Return the process, after all parts were added."""
        layout = self.layout
        self.parts[self.size_map + layout.sizes_at] = struct.pack(f"<{layout.classes}I", *self.sizes)
        self.parts[self.size_map + layout.pages_at] = bytes(self.pages)
        for number, size in enumerate(self.sizes):
            central = self.central(number)
            self.words[central + SIZE_CLASS], self.words[central + OBJECT_SIZE] = number, size
            for which in range(NUM_LISTS):
                head = central + LISTS + 16 * which
                self.words.setdefault(head, head)
                self.words.setdefault(head + 8, head)
        memory = {
            IMAGE: bytearray((ROOT - IMAGE + (8 << layout.root_bits) + (1 << 20)) // 4096 * 4096),
            METADATA: bytearray((self.top - METADATA + 4095) // 4096 * 4096),
            HEAP: bytearray((self.page << layout.shift) + 4096 - HEAP),
            STACK: bytearray(0x4000),
        }
        everything = {**self.parts, **{address: value.to_bytes(8, "little") for address, value in self.words.items()}}
        for address, data in everything.items():
            base = max(start for start in memory if start <= address)
            memory[base][address - base : address - base + len(data)] = data
        module = Module("/bin/any", IMAGE, IMAGE, IMAGE + len(memory[IMAGE]))
        threads = [thread(42, STACK + 0x800, thread_pointer=POINTER)]
        whole = {start: bytes(data) for start, data in memory.items()}
        return FakeTarget(whole, names={IMAGE: "/bin/any"}, modules=[module], threads=threads)


FREE = tuple(range(40, 70))


def make_image(layout: Layout = USUAL) -> Image:
    """Fill the image: 16-byte blocks of which thirty are free; 2-KiB blocks of which one is free; blocks of both sizes in every kind of
    cache; a large block; and a sampled block with the block that is kept in its place."""
    image = Image(layout)
    listed = image.span("listed", LISTED, free=FREE)
    mapped = image.span("mapped", MAPPED, free=(1,))
    image.span("full", MAPPED)
    image.span("large", pages=70)
    sample = image.allocate(104)
    image.words.update({sample + 32: listed + 16 * 9, sample + 56: 512})
    image.span("sampled", pages=1, sample=sample)
    image.sample = sample
    image.cpu({0: {LISTED: [listed, listed + 16]}, 2: {LISTED: [listed + 32]}})
    image.thread({})
    image.cache = image.thread({LISTED: [listed + 48, listed + 64], MAPPED: [mapped]}, POINTER)
    if layout.transfer:
        image.slots(image.transfers + LISTED * layout.stride, [listed + 80])
        image.shard(LISTED, [listed + 96])
    return image
