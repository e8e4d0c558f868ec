"""Synthetic images of processes with glibc's malloc, in any supported layout, for tests that damage them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import fake

from findleaks.allocators.glibc import layout
from findleaks.allocators.glibc.layout import (
    IS_MMAPPED,
    NBINS,
    NON_MAIN_ARENA,
    NONCONTIGUOUS,
    PREV_INUSE,
    HeapInfoLayout,
    ParLayout,
    StateLayout,
    TcacheLayout,
)
from findleaks.target.arch import X86_64, Arch

BITS_32 = X86_64._replace(name="made up, 32-bit", machine=3, word=4)
TCACHE_OFFSET = -0x48
SIZE = 0x21000
"""Bytes of each heap."""


class Places(NamedTuple):
    """The addresses of the image's parts."""

    data: int  # of libc
    heap: int
    mapped: int
    tls: int
    arena: int  # the heap of the thread arena

    @property
    def pointer(self) -> int:
        """Return the thread pointer."""
        return self.tls + 0x8C0


WIDE = Places(0x7F0000200000, 0x555500010000, 0x7F0000900000, 0x7F0000800000, 0x7F1000000000)
NARROW = Places(0xF7200000, 0x56010000, 0xF7900000, 0xF7800000, 0xF0000000)


@dataclass
class Image:
    """`chunks` of (size, state) fill the main heap and, with `heap_info`, also the heap of a thread arena. States: "used", "free",
    "cached", "fast".

    After `build`, `blocks` has the user pointers by state, and `main` and `thread` are the arenas' addresses.
    """

    state: StateLayout
    par: ParLayout
    tcache: TcacheLayout | None
    heap_info: HeapInfoLayout | None = None
    mangled: bool = True
    arch: Arch = X86_64
    chunks: Sequence[tuple[int, str]] = (
        (0x40, "used"),
        (0x60, "free"),
        (0x30, "cached"),
        (0x30, "cached"),
        (0x50, "fast"),
        (0x800, "used"),
    )
    mapped: Sequence[int] = (0x41000, 0x22000)
    blocks: dict[str, list[int]] = field(default_factory=dict)
    thread: int = 0

    @property
    def places(self) -> Places:
        return WIDE if self.arch.word == 8 else NARROW

    @property
    def main(self) -> int:
        return self.places.data + 0x1C60

    def first(self, address: int) -> int:
        """Return the first aligned address for a chunk at or after this address."""
        return address + -(address + 2 * self.arch.word) % self.state.align

    @property
    def cached(self) -> list[int]:
        """Return the cached blocks of the main heap, which are in the only thread's cache."""
        start = self.places.heap
        return [block for block in self.blocks.get("cached", ()) if start <= block < start + SIZE]

    def build(self) -> fake.FakeTarget:
        word, places = self.arch.word, self.places
        heap, top = self._heap(places.heap, self.first(places.heap), 0)
        mapped = b"".join(self._mapping(size) for size in self.mapped)
        memory = {places.data: bytes(0x4000), places.heap: heap, places.tls: bytes(0x1000), places.mapped: mapped}
        if self.heap_info is not None:
            self.thread = places.arena + self.heap_info.size
            memory[places.arena], thread_top = self._heap(places.arena, self.first(self.thread + self.state.size), NON_MAIN_ARENA)
        threads = [fake.thread(7, places.tls + 0x100, {}, places.pointer, self.arch)]
        target = fake.FakeTarget(memory, names={places.data: "/lib/libc.so.6"}, threads=threads, arch=self.arch)
        self._arena(target, self.main, top, self.thread or self.main, 0, places.heap)
        if self.heap_info is not None:
            self._arena(target, self.thread, thread_top, self.main, NONCONTIGUOUS, places.arena)
            for index, value in enumerate((self.thread, 0, SIZE, SIZE)):
                target.write_word(places.arena + index * word, value)
        self._par(target)
        if self.tcache is not None:
            target.write_word(places.pointer + TCACHE_OFFSET, self.blocks["tcache"][0])
            target.write_word(places.pointer + TCACHE_OFFSET - 2 * word, self.main)
            self._tcache(target, self.blocks["tcache"][0])
        self.blocks["mapped"] = []
        at = places.mapped
        for size in self.mapped:
            self.blocks["mapped"].append(self.first(at) + 2 * word)
            at += size
        return target

    def _heap(self, base: int, first: int, flags: int) -> tuple[bytes, int]:
        """Return the bytes of a heap that begins at `base`, and its top."""
        word, data, at, inuse = self.arch.word, bytearray(SIZE), first, PREV_INUSE
        plan = list(self.chunks)
        if self.tcache is not None and not flags:
            plan.insert(0, (self.tcache.chunk_size(self.state.align), "tcache"))
        for length, state in plan:
            self._put(data, at - base + word, length | inuse | flags)
            self.blocks.setdefault(state, []).append(at + 2 * word)
            inuse = 0 if state == "free" else PREV_INUSE
            if state == "free":
                self._put(data, at - base + length, length)
            at += length
        self._put(data, at - base + word, (base + SIZE - at) | inuse)
        return bytes(data), at

    def _mapping(self, size: int) -> bytes:
        data, lead = bytearray(size), -2 * self.arch.word % self.state.align
        spare = 2 * self.arch.word if self.state.since >= (2, 43) else 0
        self._put(data, lead, lead)
        self._put(data, lead + self.arch.word, (size - lead - spare) | IS_MMAPPED)
        return bytes(data)

    def _put(self, data: bytearray, offset: int, value: int) -> None:
        data[offset : offset + self.arch.word] = value.to_bytes(self.arch.word, self.arch.byteorder)  # type: ignore[arg-type]

    def _arena(self, target: fake.FakeTarget, address: int, top: int, after: int, flags: int, base: int) -> None:
        word, row = self.arch.word, self.state
        target.write(address + row.flags, flags.to_bytes(4, self.arch.byteorder))  # type: ignore[arg-type]
        target.write_word(address + row.top, top)
        target.write_word(address + row.next, after)
        if row.attached >= 0:
            target.write_word(address + row.attached, 1)
        target.write_word(address + row.system_mem, SIZE)
        target.write_word(address + row.system_mem + word, SIZE)
        inside = [block for block in self.blocks.get("free", ()) if base <= block < base + SIZE]
        for index in range(NBINS):
            head = address + row.bins + (2 * index - 2) * word
            ring = [head, *([block - 2 * word for block in inside] if index == 4 else [])]
            for chunk, following in zip(ring, [*ring[1:], ring[0]]):
                target.write_word(chunk + 2 * word, following)
                target.write_word(following + 3 * word, chunk)
        fast = [block for block in self.blocks.get("fast", ()) if base <= block < base + SIZE]
        if row.fastbins:
            self._chain(target, address + row.fastbin + 3 * word, fast, -2 * word)

    def _chain(self, target: fake.FakeTarget, head: int, blocks: Sequence[int], shift: int) -> None:
        """Write a list of blocks that begins at the word `head`."""
        target.write_word(head, blocks[0] + shift if blocks else 0)
        for block, following in zip(blocks, [*blocks[1:], 0]):
            link = following + shift if following else 0
            target.write_word(block, link ^ block >> 12 if self.mangled else link)

    def _par(self, target: fake.FakeTarget) -> None:
        row, word, at = self.par, self.arch.word, self.main - 0x920
        for offset, value in ((0, 0x20000), (word, 0x20000), (2 * word, 0x20000), (3 * word, 8)):
            target.write_word(at + offset, value)
        for offset, count in ((0, len(self.mapped)), (4, 65536), (8, len(self.mapped))):
            target.write(at + row.n_mmaps + offset, count.to_bytes(4, self.arch.byteorder))  # type: ignore[arg-type]
        target.write_word(at + row.mmapped_mem, sum(self.mapped))
        target.write_word(at + row.mmapped_mem + word, sum(self.mapped))
        target.write_word(at + row.sbrk_base, self.places.heap)
        if row.tcache_bins >= 0:
            most = 63 * self.state.align + (4 * word + 1 if row.since >= (2, 43) else 3 * word)
            for offset, value in ((0, 64), (word, most), (2 * word, 7)):
                target.write_word(at + row.tcache_bins + offset, value)

    def _tcache(self, target: fake.FakeTarget, address: int) -> None:
        row = self.tcache
        assert row is not None
        if row.slots:
            target.write(address, (7).to_bytes(row.counter, self.arch.byteorder) * row.bins)  # type: ignore[arg-type]
        cached = self.cached
        index = (0x30 - 4 * self.arch.word) // self.state.align
        count = 7 - len(cached) if row.slots else len(cached)
        target.write(address + index * row.counter, count.to_bytes(row.counter, self.arch.byteorder))  # type: ignore[arg-type]
        self._chain(target, address + row.entries + index * row.word, cached, 0)


def of_release(release: layout.Version, align: int = 16, arch: Arch = X86_64) -> Image:
    """Return the image of a release, with the layouts of the tables for that release."""

    def covers(row: object) -> bool:
        return row.since <= release <= row.until and row.word == arch.word  # type: ignore[attr-defined]

    return Image(
        next(row for row in layout.STATES if covers(row) and row.align == align),
        next(row for row in layout.PARS if covers(row)),
        next((row for row in layout.TCACHES if covers(row)), None),
        next(row for row in layout.HEAP_INFOS if covers(row) and (row.size + 2 * arch.word) % align in (0, 8 * (arch.word == 4))),
        mangled=release >= layout.SAFE_LINKING,
        arch=arch,
    )
