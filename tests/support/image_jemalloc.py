"""A synthetic process image with jemalloc, in the layouts of its releases, for tests of the reader and of damage."""

from __future__ import annotations

import struct

import fake

from findleaks.allocators.directory import Directory, build_directory
from findleaks.allocators.jemalloc import classes, layout
from findleaks.allocators.jemalloc.instance import Jemalloc
from findleaks.engine import load as engine
from findleaks.target.arch import X86_64, Arch
from findleaks.target.base import Module

PAGE = 4096
DATA = 0x555555600000
BASE = 0x7F0000000000
BASE_SIZE = 8 << 20
HEAP = 0x7F0010000000
HEAP_SIZE = 1 << 20
TLS = 0x7F0020000000
TID, POINTER = 77, TLS + 0x8000

INFOS, ARENAS, ROOT = DATA + 0x1000, DATA + 0x8000, DATA + 0x10000
ARENA, DESCRIPTORS = BASE + 0x4000, BASE + 0x80000
NODE, LEAF = BASE + (2 << 20), BASE + (4 << 20)
SMALL = [8, *(16 * n for n in range(1, 9)), *(step << lg for lg in range(5, 12) for step in (5, 6, 7, 8))]
SMALL = [size for size in SMALL if size <= 14336]
SLABS = {8: 1, 16: 1, 32: 1, 48: 3, 64: 1}
SIZES = list(classes._compute_sizes(SMALL[:3]))


def slab_pages(size: int) -> int:
    return SLABS.get(size) or next(pages for pages in range(1, 64) if pages * PAGE % size == 0)


class Image:
    """One arena with slabs of 32 and 64 bytes, a large block, dirty pages, and a thread cache that contains two blocks of 32 bytes."""

    def __init__(
        self, kind: layout.ExtentLayout = layout.EDATA, address_bits: int = 48, arch: Arch = X86_64, row: layout.BinLayout | None = None
    ) -> None:
        self.kind, self.bits, self.arch = kind, address_bits, arch
        self.row = row or next(row for row in layout.BINS if row.extent is kind)
        self.memory = {DATA: bytearray(0x300000), BASE: bytearray(BASE_SIZE), HEAP: bytearray(HEAP_SIZE), TLS: bytearray(0x10000)}
        self.descriptors: list[int] = []
        self.heap = HEAP
        self.slabs: dict[int, list[int]] = {}
        for i, size in enumerate(SMALL):
            count = slab_pages(size) * PAGE // size
            self.put(INFOS + 40 * i, size, slab_pages(size) * PAGE, self.halves(count, 1), count, (count + 63) // 64)
        self.put(BASE, BASE_SIZE, 0, 0, BASE + (1 << 20), 4096)
        base = BASE + 192
        # struct base_t: its list of blocks; then the heaps of unused ranges, and the counters
        blocks, heap = (160, 16) if kind is layout.EDATA else (144, 8)
        self.put(base + blocks, BASE)
        self.put(base + blocks + 8 + heap * len(SIZES), 65536, 131072, BASE_SIZE)
        self.put(ARENAS, ARENA)
        self.put(ARENAS + 64, BASE + 192)  # b0
        self.blocks: dict[str, list[int]] = {"used": [], "free": [], "cached": []}
        # A slab that contains a stack of the thread cache would count as metadata. So the stack is in a separate large extent.
        self.stacks = self.large(16384, 0)
        for _ in range(2):
            self.slab(32, range(0, 128, 2))
        self.slab(64, range(64))
        self.odd = self.large(20480, 192)
        self.dirty = self.extent(8 * PAGE, layout.DIRTY, len(SIZES), 0)
        self.blocks["used"].append(self.odd)
        self.cached = self.blocks["used"][:2]
        self.blocks["cached"] = self.cached
        self.blocks["used"] = self.blocks["used"][2:]
        self.arena()
        self.thread_cache()

    def put(self, address: int, *words: int) -> None:
        for start, memory in self.memory.items():
            if start <= address < start + len(memory):
                struct.pack_into(f"{self.arch.word_format[0]}{len(words)}Q", memory, address - start, *words)
                return
        raise ValueError(hex(address))

    def halves(self, first: int, second: int) -> int:
        """Return the word that consists of these two 32-bit numbers."""
        return first | second << 32 if self.arch.byteorder == "little" else first << 32 | second

    def extent(self, size: int, state: int, szind: int, slab: int, nfree: int = 0, offset: int = 0) -> int:
        """Add a run of pages with its descriptor, in the tree at its first and last page, or at all pages."""
        descriptor, start = DESCRIPTORS + 128 * len(self.descriptors), self.heap
        self.descriptors.append(descriptor)
        kind = self.kind
        bits = slab << kind.slab | 1 << 13 | state << kind.state | szind << kind.szind | nfree << kind.nfree
        self.put(descriptor, bits, start + offset, size)
        pages = size // PAGE
        for page in range(pages) if slab else {0, pages - 1}:
            key = (start >> 12) + page
            if self.bits == 48:
                self.put(ROOT + 8 * (key >> 18), LEAF)
                self.put(LEAF + 8 * (key & (1 << 18) - 1), szind << 48 | descriptor | slab)
            else:
                shape = next(one for one in layout.list_levels(12, 8) if one.address == self.bits)
                self.put(ROOT + 8 * (key >> shape.inner[0] + shape.leaf), NODE)
                self.put(NODE + 8 * (key >> shape.leaf & (1 << shape.inner[0]) - 1), LEAF)
                self.put(LEAF + 16 * (key & (1 << shape.leaf) - 1), descriptor, szind)
        self.heap += size
        return descriptor

    def slab(self, size: int, used: range) -> None:
        pages, szind, start = slab_pages(size), SMALL.index(size), self.heap
        count = pages * PAGE // size
        descriptor = self.extent(pages * PAGE, layout.ACTIVE, szind, 1, count - len(used))
        bitmap = sum(1 << i for i in range(count) if i not in used)
        for word in range((count + 63) // 64):
            self.put(descriptor + 64 + 8 * word, bitmap >> 64 * word & (1 << 64) - 1)
        self.slabs.setdefault(szind, []).append(descriptor)
        self.blocks["used"] += [start + size * i for i in used]
        self.blocks["free"] += [start + size * i for i in range(count) if i not in used]

    def large(self, size: int, offset: int) -> int:
        start = self.heap
        self.extent(size + PAGE, layout.ACTIVE, SIZES.index(size), 0, 0, offset)
        return start + offset

    def arena(self) -> None:
        """Add bins with counters that agree, counters of large classes, and the list of thread caches."""
        row = self.row
        self.bins = ARENA + 78952
        used = {1: 0}
        for szind, size in enumerate(SMALL):
            descriptors = self.slabs.get(szind, [])
            live = [block for block in (*self.blocks["used"], *self.cached) if self.in_slab(block, descriptors)]
            used[szind] = len(live)
            at = self.bins + szind * row.size
            self.put(at + row.stats, len(live) + 5, 5, 9, len(live), 2, 1, len(descriptors), 0, len(descriptors), 0)
            self.put(at + row.slabcur, descriptors[-1] if descriptors else 0)
            del size
        large = ARENA + 976
        for size in (16384, 20480):
            self.put(large + 48 * (SIZES.index(size) - len(SMALL)), 4, 3, 2)
        self.heads = ARENA + 10392

    def in_slab(self, block: int, descriptors: list[int]) -> bool:
        for descriptor in descriptors:
            _, start, size = struct.unpack_from(f"{self.arch.word_format[0]}3Q", self.memory[BASE], descriptor - BASE)
            if start <= block < start + size:
                return True
        return False

    def thread_cache(self) -> None:
        stack = self.stacks + 8
        self.bin_of_32 = 0
        if self.kind is layout.EDATA:
            slow, cache = TLS + 0x1000, TLS + 0x2000
            self.put(self.heads, slow, slow + 16)
            self.put(slow, slow, slow, slow + 16, slow + 16, cache + 8, ARENA)
            self.put(slow + 160, self.stacks, cache)
            self.put(cache, slow)
            for szind in range(41):
                end = stack + 8 * 20
                count = 2 if SIZES[szind] == 32 else 0
                self.put(end - 8 * 20, *[HEAP + 64] * 20)  # stale entries, which must be ignored
                lows = struct.pack(f"{self.arch.word_format[0]}4H", end & 0xFFFF, stack & 0xFFFF, end & 0xFFFF, 0)
                self.put(cache + 8 + 24 * szind, end - 8 * count, 7, *self.arch.unpack(lows))
                if count:
                    self.put(end - 16, *self.cached)
                    self.bin_of_32, self.entries = cache + 8 + 24 * szind, end - 16
                stack = end
        else:
            cache = TLS + 0x2000
            descriptor, large = cache + 920, cache + 1000
            self.put(self.heads, cache, descriptor)
            self.put(descriptor, descriptor, descriptor, cache + 16, large, ARENA)
            for szind in range(41):
                end = stack + 8 * 20
                count = 2 if SIZES[szind] == 32 else 0
                at = cache + 16 + 24 * szind if szind < len(SMALL) else large + 24 * (szind - len(SMALL))
                self.put(at, self.halves(0, count), 7, end)
                if count:
                    self.put(end - 16, *self.cached)
                    self.bin_of_32, self.entries = at, end - 16
                stack = end

    def build(self) -> fake.FakeTarget:
        return fake.FakeTarget(
            {start: bytes(memory) for start, memory in self.memory.items()},
            names={DATA: "/usr/bin/program"},
            modules=[Module("/usr/bin/program", DATA, DATA, DATA + 0x300000)],
            threads=[fake.thread(TID, TLS + 0xF000, thread_pointer=POINTER)],
            arch=self.arch,
        )


def read(target: fake.FakeTarget) -> tuple[Directory, Jemalloc]:
    directory = build_directory(target, engine.load(target.arch))
    (jemalloc,) = [allocator for allocator in directory.allocators if isinstance(allocator, Jemalloc)]
    return directory, jemalloc


def states(directory: Directory, addresses: list[int]) -> set[str]:
    blocks = directory.blocks
    found = set()
    for address in addresses:
        index = blocks.find(address)
        found.add(blocks.state(index).name if index >= 0 and blocks.address(index) == address else "absent")
    return found


def profiler(image: Image, row: layout.ProfileLayout) -> dict[str, int]:
    """Add a profiler in the slab of 64-byte blocks, with three blocks for each structure: a context, a thread's counters for it, the
    thread, another thread without counters, and the tables. Fields that the profiler never wrote contain addresses of the program's
    blocks."""
    start = image.blocks["used"][-64]
    at = {name: start + 256 * i for i, name in enumerate(("context", "count", "thread", "idle", "all", "own", "none", "name"))}
    for address in range(start, start + 2048, 8):
        image.put(address, image.blocks["used"][0])
    for address in (at["all"], at["own"], at["none"]):
        image.put(address, *([0] * 32))
    functions = DATA + 0x100, DATA + 0x200
    table = DATA + 0x9000
    image.put(table, 99, 1, 2 | 2 << 32, *functions, at["all"])
    image.put(at["context"] + 16, at["count"])
    image.put(at["all"] + 32, at["context"] + 104, at["context"])
    image.put(at["count"], at["thread"])
    image.put(at["count"] + row.context, at["context"])
    image.put(at["count"] + row.link, 0, 1)
    for thread, count, cells in (("thread", 1, "own"), ("idle", 0, "none")):
        image.put(at[thread] + row.table, 98, count, 2 | 2 << 32, *functions, at[cells])
        if row.name:
            image.put(at[thread] + row.name, at["name"] if count else 0)
    image.put(at["own"], at["context"] + 104, at["count"])
    image.put(TLS + 0x2000 - 64, at["idle"])
    image.put(table + 8, 1)
    if not row.name:
        del at["name"]
    return at
