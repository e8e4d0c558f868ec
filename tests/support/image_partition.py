"""A synthetic process image with a PartitionAlloc heap, in any of the supported layouts of
Chromium's sources."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import NamedTuple

import fake

from findleaks.allocators import directory
from findleaks.allocators.directory import Directory
from findleaks.allocators.partitionalloc import layout as at
from findleaks.allocators.partitionalloc.instance import PartitionAlloc
from findleaks.allocators.partitionalloc.layout import COUNTERS, ENTRY, PAGE, PARTITION_PAGE, SUPER_PAGE, Bucket
from findleaks.engine import load
from findleaks.target.arch import X86_64, Arch
from findleaks.target.base import Module

FILE, DATA = 0x555500000000, 0x555500010000  # a loaded file, and its variables
ROOT = DATA + 0x40
POOL = 0x10400000000
SEPARATE = 0x7F1000000000  # address of metadata that is not in super pages
STACK = 0x7FFF00000000
THREAD_POINTER = STACK + 0x1800
TID = 4242
FIRST_SPAN = 1  # partition page


class Kind(NamedTuple):
    """The layout of PartitionAlloc in a version of Chromium."""

    name: str
    bucket: Bucket
    width: int
    settings: int  # bytes before the buckets
    relative: bool  # links are offsets in the pool
    has_shadow: bool
    separate: bool  # metadata is outside of super pages
    buckets: int  # offset of the buckets in a thread cache


KINDS = (
    Kind("of Chromium 156", at.BUCKETS[0], at.WIDE, 200, True, True, True, 136),
    Kind("of Chromium 128-153", at.BUCKETS[1], at.WIDE, 136, True, True, False, 136),
    Kind("of Chromium 127", at.BUCKETS[1], at.NARROW, 72, False, True, False, 120),
    Kind("of Chromium 126 or older", at.BUCKETS[2], at.NARROW, 72, False, True, False, 120),
)

SIZES = [*range(16, 272, 16), *(base + base // 4 * step for base in (256 << power for power in range(12)) for step in range(1, 5))]
SIZES = [size for size in SIZES if size <= at.LARGEST]
RING = 128  # words of the ring of empty spans


class Image:
    """One partition with reference counters, one thread cache and one direct map. `used`, `free`, `cached` and `quarantined` are the
    addresses of slots. `usable`: for each slot in use, the number of bytes that the program may use."""

    def __init__(self, kind: Kind = KINDS[0], seed: int = 1) -> None:
        self.kind = kind
        self.random = random.Random(seed)
        self.memory: dict[int, bytearray] = {DATA: bytearray(0x8000), STACK: bytearray(0x2000)}
        self.used: list[int] = []
        self.free: list[int] = []
        self.cached: list[int] = []
        self.quarantined: list[int] = []
        self.usable: dict[int, int] = {}
        self.entries: dict[int, int] = {}  # metadata of each span, by its first slot size
        self.page = POOL
        self.distance = SEPARATE - POOL if kind.separate else PAGE
        self.next_page = FIRST_SPAN
        self.allocated = 0
        self.extent = ROOT + kind.settings + kind.bucket.stride * (len(SIZES) + 1) + 8 * (1 + len(COUNTERS) + 4 + at.AFTER_COUNTERS)
        self.inverted = self.extent + 8 * 3 + 8 * RING + 8
        self.memory[self.page + self.distance] = bytearray(PAGE)
        self.memory[self.page + at.TABLE] = bytearray(PAGE)
        self.memory[self.page + PARTITION_PAGE] = bytearray(40 * PARTITION_PAGE)
        self._fill()

    def put(self, address: int, *words: int) -> None:
        """Write words of 8 bytes."""
        self.write(address, struct.pack(f"<{len(words)}Q", *words))

    def write(self, address: int, data: bytes) -> None:
        start = next(start for start, memory in self.memory.items() if start <= address < start + len(memory))
        self.memory[start][address - start : address - start + len(data)] = data

    def link(self, slot: int, following: int) -> None:
        """Link the free slot `slot` to the free slot `following`. If `following` is 0, `slot` is
        the last one of the list."""
        value = following - POOL if following and self.kind.relative else following
        word = int.from_bytes(value.to_bytes(8, "big"), "little")
        self.write(slot, struct.pack("<2Q" if self.kind.has_shadow else "<Q", *(word, word ^ (1 << 64) - 1)[: 1 + self.kind.has_shadow]))

    def chain(self, slots: Sequence[int]) -> int:
        """Link these free slots in this order. Return the first slot; 0 if there are none."""
        for slot, following in zip(slots, [*slots[1:], 0]):
            self.link(slot, following)
        return slots[0] if slots else 0

    def count(self, slot: int, size: int, value: int) -> None:
        """Set the reference counter of a slot."""
        place = slot + size - at.COUNTER
        if slot % PAGE == 0:
            place = self.page + at.TABLE + (slot - self.page) // PAGE * at.TABLE_STRIDE
        self.write(place, struct.pack("<I", value))

    def pack(self, allocated: int, unprovisioned: int, raw: bool = False) -> int:
        if self.kind.width == at.WIDE:
            return allocated | unprovisioned << 15 | raw << 31
        return allocated << 1 | unprovisioned << 14 | raw << 27

    def bucket(self, size: int) -> int:
        return ROOT + self.kind.settings + SIZES.index(size) * self.kind.bucket.stride

    def span(self, size: int, states: str, raw: int = 0) -> list[int]:
        """Add a span whose first slots have these states: used, free, cached, quarantined. The other slots were never used."""
        pages = self.pages(size)
        start, slots = self.page + self.next_page * PARTITION_PAGE, pages * PAGE // size
        entry = self.page + self.distance + self.next_page * ENTRY
        addresses = [start + number * size for number in range(len(states))]
        by_state = {"u": self.used, "f": self.free, "c": self.cached, "q": self.quarantined}
        for slot, state in zip(addresses, states):
            by_state[state].append(slot)
            if state in "uq":
                self.count(slot, size, at.HELD | 6 if state == "u" else 6)
            if state == "u":
                self.usable[slot] = (raw or size) - at.COUNTER
        free = [slot for slot, state in zip(addresses, states) if state == "f"]
        self.random.shuffle(free)
        used = len(states) - len(free)
        head = self.chain(free)
        self.put(entry, head, 0, self.bucket(size))
        self.write(entry + 24, struct.pack("<IHBB", self.pack(used, slots - len(states), bool(raw)), 0, at.VALID, 0))
        for number in range(1, -(-pages // 4)):
            self.put(entry + number * ENTRY, raw if number == 1 else 0)
            self.write(entry + number * ENTRY + 30, bytes([at.VALID | number]))
        self.next_page += -(-pages // 4)
        self.allocated += used * size
        self.entries[size] = entry
        return addresses

    @staticmethod
    def pages(size: int) -> int:
        """Return the number of pages of a span. It has at least four, and enough for one slot."""
        return max(4, -(-size // PAGE))

    def cache(self, size: int, slots: Sequence[int]) -> int:
        """Add a thread cache that contains these slots of one size. The cache itself is in a slot
        of 2 KiB."""
        (address,) = self.span(2048, "u")
        own = (ROOT, address) if self.kind.buckets == KINDS[0].buckets else ()
        self.used.remove(address)
        del self.usable[address]
        sizes = [one for one in SIZES if one <= at.LARGEST_CACHED]
        for number, one in enumerate(sizes):
            chosen = slots if one == size else ()
            bucket = address + self.kind.buckets + number * at.CACHE_BUCKET
            self.write(bucket, struct.pack("<QBBH", self.chain(chosen), len(chosen), 64, one))
        self.put(address + self.kind.buckets + len(sizes) * at.CACHE_BUCKET, ROOT, TID, 0, 0, *own)
        self.write(address, struct.pack("<I", size * len(slots)))
        self.put(THREAD_POINTER - 0x100, address)
        return address

    def direct_map(self, raw: int) -> int:
        """Add a direct map for a block of `raw` bytes."""
        page, slot_size = POOL + 4 * SUPER_PAGE, -(-raw // PAGE) * PAGE
        entry, slot = page + self.distance + ENTRY, page + PARTITION_PAGE
        self.memory[page + self.distance] = bytearray(PAGE)
        self.memory[slot] = bytearray(slot_size)
        bucket = entry + 2 * ENTRY
        place = bucket + self.kind.bucket.stride
        self.put(entry, 0, 0, bucket)
        self.put(entry + ENTRY, raw)
        self.write(bucket + at.SLOT_SIZE, struct.pack("<I", slot_size))
        self.put(place, 0, 0, bucket, 2 * SUPER_PAGE, 0)
        self.put(self.extent + 8 * at.DIRECT_MAPS, place)
        self.put(self.counters + 24, 2 * SUPER_PAGE)
        self.allocated += slot_size
        self.used.append(slot)
        self.usable[slot] = raw - at.COUNTER
        return slot

    @property
    def counters(self) -> int:
        return self.extent - 8 * (at.AFTER_COUNTERS + 4 + len(COUNTERS))

    def _fill(self) -> None:
        """Write the root and the extent."""
        self.write(ROOT + self.kind.settings - 56, struct.pack("<2I", at.NO_KEY, at.COUNTER))
        if self.kind.relative:
            self.put(ROOT + 24, POOL, (1 << 64) - (16 << 30))
        for size in SIZES:
            self.write(self.bucket(size) + at.SLOT_SIZE, struct.pack("<I", size))
            self.write(self.bucket(size) + self.kind.bucket.pages, struct.pack("<I", self.pages(size)))
        self.put(self.counters - 8, 1, 40 * PARTITION_PAGE, 40 * PARTITION_PAGE, SUPER_PAGE)
        self.put(self.extent - 24, self.page + SUPER_PAGE, 0, 0, self.page + self.distance, self.page + self.distance)
        self.put(self.inverted, ~ROOT & (1 << 64) - 1)
        self.put(self.page + self.distance, ROOT, 0, 1)

    def build(self, arch: Arch = X86_64) -> fake.FakeTarget:
        """Write the counters of the partition root, and return the target."""
        self.put(self.counters + 32, self.allocated, self.allocated)
        self.put(self.counters + 8 * len(COUNTERS), 0, len(self.quarantined))
        return fake.FakeTarget(
            {start: bytes(data) for start, data in self.memory.items()},
            names={DATA: "/opt/chromium"},
            threads=[fake.thread(TID, STACK, thread_pointer=THREAD_POINTER)],
            modules=[Module("/opt/chromium", FILE, FILE, DATA + 0x8000)],
            arch=arch,
        )


def full(kind: Kind = KINDS[0], seed: int = 1) -> Image:
    """Return an image with slots of every state."""
    image = Image(kind, seed)
    image.span(16, "ufufuffu")
    image.span(64, "u" * 30 + "f" * 20 + "qcuq" + "f" * 100)
    image.span(96, "f" * 10)
    image.span(4096, "ufu")
    image.span(24576, "u", raw=20000)
    image.cache(64, image.cached)

    image.direct_map(1_500_000)
    return image


def read(target: fake.FakeTarget) -> tuple[Directory, PartitionAlloc]:
    made = directory.build_directory(target, load.load(target.arch))
    (one,) = made.allocators
    assert isinstance(one, PartitionAlloc)
    return made, one
