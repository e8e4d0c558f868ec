"""Find the pools of one entry of a pool file, and their slabs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from typing import Optional

from findleaks.allocators.base import Problem, add_first_problems
from findleaks.allocators.described.file import Number, Place, PoolForm, decode_number
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.errors import Interrupted
from findleaks.target.ranges import nonzero_pieces
from findleaks.value_classes import NamedTuple

MOST_POOLS = 1 << 16  # pools of an entry
MOST_SLABS = 1 << 20  # slabs of an entry
MOST_SIZE = 1 << 40  # bytes of a slab
MOST_CHUNKS = 1 << 26  # chunks of a slab


class Slab(NamedTuple):
    """A slab [start, end) of the pool at `pool`. Its chunks are in [first, last). `stride` is the
    size of a chunk, or 0 if the chunks differ in size."""

    pool: int
    start: int
    end: int
    first: int
    last: int
    stride: int


class PoolReader:
    """Reads the pools of one entry. Each contradiction between the description and memory becomes a
    problem. Its text begins with `where`, the name of the file and of the entry."""

    def __init__(self, memory: Memory, blocks: Blocks, form: PoolForm, where: str) -> None:
        self.memory, self.blocks, self.form, self.where = memory, blocks, form, where
        self.wrong: list[Problem] = []

    def problems(self) -> list[Problem]:
        """Return the problems so far, the further ones only counted."""
        found: list[Problem] = []
        add_first_problems(found, self.wrong, f"problems of {self.where}")
        return found

    def report(self, address: int, what: str) -> None:
        self.wrong.append(Problem(address, f"{self.where}: {what}", False))

    def value(self, number: Number, bases: dict[str, int]) -> Optional[int]:
        """Return a number, or read it at its place; None if it is unreadable. `bases` has the
        addresses of the pool, slab and chunk."""
        if not isinstance(number, Place):
            return number
        data = self.memory.read(bases[number.base] + number.offset, number.bytes or self.memory.size)
        return decode_number(number, data, self.memory.arch.byteorder) if data else None

    def read_slabs(self) -> list[Slab]:
        """Return the slabs of all pools, ascending and disjoint."""
        found: dict[int, Slab] = {}
        for pool in self._pools():
            found.update({slab.start: slab for slab in self._slabs(pool, found)})
        slabs: list[Slab] = []
        for _, slab in sorted(found.items()):
            if slabs and slab.start < slabs[-1].end:
                self.report(slab.start, f"the slab at {slab.start:#x} overlaps the slab at {slabs[-1].start:#x}: it is not read")
            else:
                slabs.append(slab)
        return slabs

    def _pools(self) -> list[int]:
        """Return the addresses of the pools."""
        starts = list(self._start_pools())
        found = dict.fromkeys(starts)
        for start in starts if self.form.next is not None else ():
            at = start
            while len(found) < MOST_POOLS:
                at = self.memory.word(at + (self.form.next or 0)) or 0
                if not at or at in found:
                    break
                if not self.memory.read(at, self.memory.size):
                    self.report(at, f"the list of pools leads to {at:#x}, which is unreadable: further pools are not read")
                    break
                found[at] = None
        return list(found)

    def _start_pools(self) -> Iterator[int]:
        form = self.form
        if form.symbol:
            symbol = self.memory.target.symbol(form.symbol, form.file)
            if symbol is None:
                file = f"a file named {form.file}*" if form.file else "any loaded file"
                self.report(0, f"no variable {form.symbol} in {file}: no pool was found; check the name, or use magic")
                return
            address = self.memory.word(symbol.address) if form.pointer else symbol.address
            if address is None:
                self.report(symbol.address, f"{form.symbol} at {symbol.address:#x} is unreadable: its blocks are not divided")
            elif address:
                yield address
            return
        count = 0
        for address in self._search_magic():
            if count == MOST_POOLS:
                self.report(address, f"the magic number is at more than {MOST_POOLS:,} addresses: further pools are not read")
                return
            count += 1
            yield address
        if not count:
            self.report(0, "no block in use and no variable contains the magic: no pool was found; check the magic")

    def _search_magic(self) -> Iterator[int]:
        """Yield the addresses of pools with the magic, in blocks in use and outside of heaps."""
        magic, target = self.form.magic, self.memory.target
        if isinstance(magic, int):
            magic = magic.to_bytes(self.form.magic_bytes or self.memory.size, self.memory.arch.byteorder)
        pointers = sorted(thread.sp for thread in target.threads())
        for region in target.regions():
            # Copies of the magic are on stacks.
            is_stack = bisect_left(pointers, region.start) < bisect_left(pointers, region.end)
            if is_stack or not (region.readable and region.writable and region.private):
                continue
            for piece in nonzero_pieces(target, region.start, region.end):
                if target.is_interrupted():
                    raise Interrupted
                data = bytes(piece.data)
                at = data.find(magic)
                while at >= 0:
                    address = piece.address + at - self.form.offset
                    found = self.blocks.lookup(address)
                    if address % 4 == 0 and (found is None or found[3] == State.IN_USE):
                        yield address
                    at = data.find(magic, at + 1)

    def _slabs(self, pool: int, known: Collection[int]) -> Iterator[Slab]:
        """Yield the slabs of a pool. `known` are the starts of slabs that were already read."""
        for at in self._slab_starts(pool, known):
            slab = self._slab(pool, at)
            if slab is None:
                return
            yield slab

    def _slab_starts(self, pool: int, known: Collection[int]) -> Iterator[int]:
        """Yield the addresses of the slabs of a pool. A list of slabs may be a ring."""
        form = self.form.slab
        if form.array is not None:
            yield from self._slab_array(pool, known)
            return
        if form.first is None:
            yield pool
            return
        at = self.memory.word(pool + form.first)
        if at is None:
            self.report(pool, f"the pool at {pool:#x} is unreadable: its blocks are not divided")
            return
        seen: dict[int, None] = {}
        while at and len(known) + len(seen) < MOST_SLABS:
            start = at - form.node
            if start in known or start in seen:
                if start != next(iter(seen), 0):
                    self.report(start, f"the list of slabs of the pool at {pool:#x} comes to {start:#x} twice: further slabs are not read")
                return
            seen[start] = None
            yield start
            at = self.memory.word(at - form.node + form.next) if form.next is not None else 0

    def _slab_array(self, pool: int, known: Collection[int]) -> Iterator[int]:
        """Yield the addresses of slabs in an array. Empty elements are skipped."""
        form = self.form.slab
        array, count = self.memory.word(pool + (form.array or 0)), self.value(form.slabs or 0, {"pool": pool})
        words = self.memory.words(array, count) if array and count and count <= MOST_SLABS else ()
        if array is None or count is None or words is None or count > MOST_SLABS:
            self.report(pool, f"the array of slabs of the pool at {pool:#x} is unreadable or too long: its blocks are not divided")
            return
        for at in dict.fromkeys(words):
            if at in known:
                self.report(at, f"the slab at {at:#x} belongs to two pools: it is read once")
            elif at:
                yield at

    def _slab(self, pool: int, at: int) -> Optional[Slab]:
        """Read the slab at `at`; None if it cannot be one."""
        form, chunk, bases = self.form.slab, self.form.chunk, {"pool": pool, "slab": at, "chunk": at + self.form.slab.header}
        size = self.value(form.size, bases)
        if size is not None and form.is_limit:
            size = max(size - at, 0)
        if size is None or not form.header < size <= MOST_SIZE or at % self.memory.size:
            claim = "is unreadable" if size is None else f"would have {size:,} bytes" if at % self.memory.size == 0 else "is not aligned"
            self.report(at, f"the slab at {at:#x} of the pool at {pool:#x} {claim}: it and the further slabs are not read")
            return None
        if not self._fits(at, at + size):
            self.report(at, f"the slab at {at:#x} ({size:,} bytes) is neither in one block in use nor mapped outside heaps: it is not read")
            return None
        first, end = at + form.header, at + size
        stride = 0
        if not isinstance(chunk.size, Place) or chunk.size.base != "chunk":
            stride = (self.value(chunk.size, bases) or 0) + (0 if chunk.covers_header else chunk.header)
            if not chunk.header < stride or stride % self.memory.size or size // stride > MOST_CHUNKS:
                self.report(at, f"the slab at {at:#x} would have chunks of {stride:,} bytes: it is not read")
                return None
        if first % self.memory.size or chunk.header % self.memory.size:
            self.report(at, f"the chunks of the slab at {at:#x} are not aligned to {self.memory.size} bytes: it is not read")
            return None
        last = self._last(bases, first, end, stride)
        return None if last is None else Slab(pool, at, end, first, last, stride)

    def _fits(self, start: int, end: int) -> bool:
        """Whether [start, end) is inside a block in use, or outside of all heaps and mapped."""
        found = self.blocks.lookup(start)
        if found is not None:
            return found[3] == State.IN_USE and end <= found[1] + found[2]
        at = self.blocks.at_or_after(start)
        apart = at >= len(self.blocks) or self.blocks.address(at) >= end
        return apart and bool(self.memory.read(start, 1)) and bool(self.memory.read(end - 1, 1))

    def _last(self, bases: dict[str, int], first: int, end: int, stride: int) -> Optional[int]:
        """Return the end of the chunks that were handed out; None if it is not in the slab."""
        form = self.form.slab
        most = first + (end - first) // stride * stride if stride else end
        if form.chunks is not None:
            count = self.value(form.chunks, bases)
            last = None if count is None else first + count * stride
        elif form.end is not None:
            last = self.value(form.end, bases)
            if form.end.base == "pool" and last is not None and not first <= last <= end:
                last = most  # the pool hands out chunks of another slab
        else:
            last = most
        if last is None or not first <= last <= end:
            claim = "is unreadable" if last is None else f"would be at {last:#x}"
            self.report(bases["slab"], f"the end of the chunks of the slab at {bases['slab']:#x} {claim}: the slab is not read")
            return None
        last = min(last, most)
        return first + (last - first) // stride * stride if stride else last
