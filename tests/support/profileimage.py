"""A synthetic heap profiler of gperftools: its table of stacks, and its map of blocks in separate memory, for tests to damage."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from fake import FakeTarget

from findleaks.allocators.images import Image
from findleaks.allocators.tcmalloc.heap_profile import BUCKETS, HEADER, LAYOUTS, MAGIC, Layout
from findleaks.target.base import Module, Range

IMAGE, TABLE, HEADS, OWN, HEAP = 0x7F0000000000, 0x200000000000, 0x210000000000, 0x220000000000, 0x230000000000
CODE = IMAGE + 0x1000
FUNCTIONS = (IMAGE + 0x1000, IMAGE + 0x2000)
STACKS = [tuple(IMAGE + 0x3000 + 0x100 * number + frame for frame in range(3 + number)) for number in range(4)]
BLOCK = 64


@dataclass
class Profile:
    """48 blocks with four stacks, in three clusters of the map, two of which have the same hash. `at`: the addresses of words by their
    meaning."""

    layout: Layout = LAYOUTS[0]
    words: dict[int, int] = field(default_factory=dict)
    at: dict[str, int] = field(default_factory=dict)
    stack_of: dict[int, int] = field(default_factory=dict)
    top: int = OWN + 64
    last: int = 0

    def __post_init__(self) -> None:
        layout, words = self.layout, self.words
        words[IMAGE + 0x800] = TABLE
        words.update({TABLE: FUNCTIONS[0], TABLE + 8: FUNCTIONS[1], TABLE + layout.table: HEADS, TABLE + layout.map: TABLE + 0x1000})
        hashes = self.piece("hashes", 8 << 12)
        clusters = [self.piece(f"cluster {number}", 16 + (8 << 13)) for number in range(3)]
        words.update({hashes + 8 * 5: clusters[0], clusters[0]: clusters[1], hashes + 8 * 900: clusters[2]})
        self.at.update({"hash": hashes + 8 * 5, "link of a cluster": clusters[0]})
        self._buckets()
        for first in range(0, 48, 8):
            entries = self.piece(f"entries {first}", 32 * 8)
            for number in range(first, first + 8):
                self._entry(entries + 32 * (number - first), number, clusters[number // 16])
        self.at["memory"] = TABLE + 0x1000 + 32
        words.update({TABLE + 0x1000: hashes, TABLE + 0x1010: FUNCTIONS[0], TABLE + 0x1018: FUNCTIONS[1], TABLE + 0x1020: self.last})

    def piece(self, name: str, size: int) -> int:
        """Allocate memory for the map, with a link to the previous allocation."""
        header, at = self.top, self.top + HEADER
        self.words.update({header: HEADER + 8 + size, header + 8: MAGIC ^ header, at: self.last})
        self.at[f"magic of {name}"], self.at[f"link of {name}"] = header + 8, at
        self.top, self.last = at + 8 + size + 63 & -64, at
        return at + 8

    def _buckets(self) -> None:
        """Make the buckets: two in the same list, two in lists of their own."""
        where, width = TABLE + 0x2000, self.layout.width
        places = [where + 0x400 * number for number in range(4)]
        for number, (at, stack) in enumerate(zip(places, STACKS)):
            counts = {at: 20, at + 8: 8, at + 16: 2000, at + 24: 800} if width == 8 else {at: 8 << 32 | 20, at + 8: 2000, at + 16: 800}
            self.words.update(counts)
            frames = at + 0x100
            self.words.update({at + self.layout.depth: len(stack), at + self.layout.depth + 8: frames})
            self.words.update({frames + 8 * place: frame for place, frame in enumerate(stack)})
            self.at[f"bucket {number}"] = at
        self.words.update({HEADS + 8 * 17: places[0], places[0] + self.layout.depth + 16: places[1]})
        self.words.update({HEADS + 8 * 90000: places[2], HEADS + 8 * (BUCKETS - 1): places[3]})
        self.at["bucket's link"] = places[0] + self.layout.depth + 16

    def _entry(self, at: int, number: int, cluster: int) -> None:
        """Make the entry of a block, at the front of a list that has every fourth entry."""
        head, block = cluster + 16 + 8 * (1000 + number % 4), HEAP + BLOCK * number
        bucket = self.at[f"bucket {number % 4}"]
        self.words.update({at: self.words.get(head, 0), at + 8: block, at + 16: 50, at + 24: bucket | 1, head: at})
        self.stack_of[block] = number % 4
        self.at[f"entry {number}"], self.at[f"list of {number}"] = at, head

    def target(self) -> FakeTarget:
        sizes = {
            IMAGE: 0x1000,
            CODE: 0x7000,
            TABLE: 0x8000,
            HEADS: 8 * BUCKETS + 4095 & -4096,
            OWN: self.top - OWN + 4095 & -4096,
            HEAP: 0x4000,
        }
        memory = {start: bytearray(size) for start, size in sizes.items()}
        for address, value in self.words.items():
            base = max(start for start in memory if start <= address)
            struct.pack_into("<Q", memory[base], address - base, value)
        module = Module("/lib/libtcmalloc.so.4", IMAGE, IMAGE, IMAGE + 0x8000)
        names, whole = dict.fromkeys((IMAGE, CODE), module.path), {start: bytes(data) for start, data in memory.items()}
        return FakeTarget(whole, names=names, permissions={CODE: "r-x"}, modules=[module])

    def image(self, target: FakeTarget) -> Image:
        (module,) = target.modules()
        return Image("libtcmalloc.so.4", module, [Range(IMAGE, IMAGE + 0x1000)])
