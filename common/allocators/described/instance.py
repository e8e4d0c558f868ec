"""The pools of one entry of a pool file as an Allocator."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Optional

from findleaks.allocators.base import Allocator, Heap, Problem
from findleaks.allocators.described.file import Number, Place, PoolFile, PoolForm, decode_number
from findleaks.allocators.described.pools import MOST_CHUNKS, PoolReader, Slab
from findleaks.allocators.free_lists import follow_free_list
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State, run_states
from findleaks.errors import Interrupted
from findleaks.target.base import Target

MOST_AT_ONCE = 64 << 20  # bytes of a slab that are read at once
CHUNKS_A_LOOK = 1 << 16  # chunks of different sizes between two looks for Ctrl-C


def read_pools(target: Target, blocks: Blocks, file: PoolFile) -> list[DescribedPool]:
    """Return an allocator for each entry of the file. `blocks` are those of the other allocators.
    Raises Interrupted."""
    return [DescribedPool(target, blocks, file, form) for form in file.pools]


class DescribedPool(Allocator):
    """The pools of one entry. `where` is the name of the pool file. See Allocator."""

    version = ""
    nested = True

    def __init__(self, target: Target, outer: Blocks, file: PoolFile, form: PoolForm) -> None:
        self.name, self.where, self.form = form.name, file.title, form
        self.target, self.memory = target, Memory(target)
        self.granule = target.arch.word
        self.reader = PoolReader(self.memory, outer, form, f"{file.title}: {form.name}")
        self.slabs = self.reader.read_slabs()
        self.problems: list[Problem] = self.reader.problems()
        self._heaps = [Heap(slab.start, slab.end, f"pool {slab.pool:#x}", partial(self._walk, slab)) for slab in self.slabs]
        self._reported = len(self.reader.wrong)

    def heaps(self) -> Sequence[Heap]:
        return self._heaps

    def _walk(self, slab: Slab, blocks: Blocks) -> None:
        if not slab.stride:
            self._walk_sizes(slab, blocks)
            return
        chunk, count = self.form.chunk, (slab.last - slab.first) // slab.stride
        if chunk.state.endswith("-if"):
            states = list(self._read_states(range(slab.first, slab.last, slab.stride), self._chunk_value(slab)))
            starts = list(range(slab.first + chunk.header, slab.last, slab.stride))
            blocks.append(starts, [slab.stride - chunk.header] * count, states)
            return
        bits = b""
        clear = marked = State.IN_USE
        if chunk.where is not None and chunk.state.endswith("-bits"):
            base = slab.pool if chunk.where.base == "pool" else slab.start
            bits = self.memory.read(base + chunk.where.offset, -(-count // 8))
            if bits or not count:
                clear, marked = (State.FREE, State.IN_USE) if chunk.state == "used-bits" else (State.IN_USE, State.FREE)
            else:
                self.reader.report(slab.start, f"the bits of the slab at {slab.start:#x} are unreadable: all its chunks count as in use")
        if count:
            run = [slab.first + chunk.header, slab.stride, slab.stride - chunk.header, count, 0, run_states(clear, marked)]
            blocks.append_runs(array("Q", run), bits)

    def _chunk_value(self, slab: Slab) -> Callable[[Number, int], Optional[int]]:
        """Return a function that reads a number at its place in the chunk at an address. The memory
        of the slab is read once, because that takes a fifth of the time."""
        data = self.memory.read(slab.start, slab.end - slab.start) if slab.end - slab.start <= MOST_AT_ONCE else b""
        order, word = self.memory.arch.byteorder, self.memory.size

        def read(number: Number, chunk: int) -> Optional[int]:
            if isinstance(number, Place) and data:
                at = chunk - slab.start + number.offset
                part = data[at : at + (number.bytes or word)]
                if len(part) == (number.bytes or word):
                    return decode_number(number, part, order)
            return self.reader.value(number, {"pool": slab.pool, "slab": slab.start, "chunk": chunk})

        return read

    def _read_states(self, chunks: Iterable[int], value: Callable[[Number, int], Optional[int]]) -> Iterator[State]:
        """Yield the states of chunks that have their state in themselves, or are all in use."""
        where, free = self.form.chunk.where, self.form.chunk.state == "free-if"
        if where is None or not self.form.chunk.state.endswith("-if"):
            yield from (State.IN_USE for _ in chunks)
            return
        for at in chunks:
            number = value(where, at)
            yield State.FREE if number is not None and (number != 0) == free else State.IN_USE

    def _walk_sizes(self, slab: Slab, blocks: Blocks) -> None:
        """Append chunks that have their size in themselves."""
        chunk, at, value = self.form.chunk, slab.first, self._chunk_value(slab)
        starts: list[int] = []
        sizes: list[int] = []
        while at < slab.last and len(starts) < MOST_CHUNKS:
            if len(starts) % CHUNKS_A_LOOK == 0 and self.target.is_interrupted():
                raise Interrupted
            size = value(chunk.size, at)
            whole = (size or 0) + (0 if chunk.covers_header else chunk.header)
            if size is None or not chunk.header < whole <= slab.last - at or whole % self.memory.size:
                claim = "is unreadable" if size is None else f"would have {whole:,} bytes"
                self.reader.report(at, f"the chunk at {at:#x} {claim}: the rest of the slab at {slab.start:#x} is not divided")
                break
            starts.append(at)
            sizes.append(whole)
            at += whole
        states = list(self._read_states(starts, value))
        blocks.append([start + chunk.header for start in starts], [size - chunk.header for size in sizes], states)
        if at < slab.last:  # What is not divided is one block in use, so that its references count.
            blocks.append([at], [slab.last - at], [State.IN_USE])

    def mark_blocks(self, blocks: Blocks) -> None:
        """Mark the chunks in lists of free chunks."""
        if self.form.chunk.state == "free":
            free = array("Q", sorted(self._list_free(blocks)))
            blocks.set_state(free, State.FREE)
        self.problems += self.reader.wrong[self._reported :][:20]
        self._reported = len(self.reader.wrong)

    def _list_free(self, blocks: Blocks) -> set[int]:
        """Return the starts of the blocks in lists of free chunks."""
        where = self.form.chunk.where
        assert where is not None
        bases = {slab.pool if where.base == "pool" else slab.start: slab for slab in self.slabs}
        found: set[int] = set()
        for base, slab in bases.items():
            at = self.reader.value(where, {"pool": base, "slab": base})
            if at is None:
                self.reader.report(base, f"the list of free chunks of {base:#x} is unreadable: all its chunks count as in use")
            wrong = follow_free_list(self.memory, at or 0, self.form.chunk.link, lambda one: self._block_of(one, blocks), found)
            start = self._block_of(wrong, blocks) if wrong else None
            if start is not None:
                self.reader.report(slab.start, f"the chunk {start:#x} is free twice: the rest of the list counts as in use")
            elif wrong:
                self.reader.report(
                    slab.start, f"a list of free chunks leads to {wrong:#x}, which is in no chunk: the rest counts as in use"
                )
        return found

    def _block_of(self, address: int, blocks: Blocks) -> Optional[int]:
        """Return the start of the block of the chunk that contains `address`, or None."""
        slab = self._slab_at(address)
        if slab is None or not slab.first <= address < slab.last:
            return None
        if slab.stride:
            return slab.first + (address - slab.first) // slab.stride * slab.stride + self.form.chunk.header
        found = blocks.lookup(address) or blocks.lookup(address + self.form.chunk.header)
        return found[1] if found is not None and slab.first <= found[1] < slab.last else None

    @cached_property
    def _starts(self) -> list[int]:
        return [slab.start for slab in self.slabs]

    def _slab_at(self, address: int) -> Optional[Slab]:
        at = bisect_right(self._starts, address) - 1
        return self.slabs[at] if at >= 0 and address < self.slabs[at].end else None

    def summary(self) -> dict[str, object]:
        return {"pools": len({slab.pool for slab in self.slabs}), "slabs": len(self.slabs)}

    def locate(self, address: int) -> str:
        slab = self._slab_at(address)
        if slab is None:
            return ""
        if address < slab.first:
            return f"header of the slab {slab.start:#x} of {self.name}"
        return f"header of a chunk of {self.name}" if address < slab.last else f"unused part of the slab {slab.start:#x} of {self.name}"
