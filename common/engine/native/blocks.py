"""The directory of blocks in the C engine (common/native/blocks.c)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from ctypes import byref, c_uint64
from typing import TYPE_CHECKING, Optional

from findleaks.engine import shared
from findleaks.engine.native.declarations import CWords
from findleaks.engine.native.library import DISORDER, NONE, CLibrary, Handle
from findleaks.engine.native.memory import c_array, c_buffer, pack, zeros
from findleaks.engine.sampling import COLUMNS, NO_SAMPLE, Sample
from findleaks.engine.terms import RUN, Size, State, Totals
from findleaks.target.base import Range

if TYPE_CHECKING:
    from findleaks.engine.columns import BlockColumns
    from findleaks.engine.contract import Blocks
    from findleaks.engine.native.pointer_runs import NativePointerRuns
    from findleaks.engine.pages import PageLists, PageRead
    from findleaks.engine.pointer_runs import Bounds
    from findleaks.target.arch import Arch
    from findleaks.target.base import Piece

# Modules that few commands need are imported where they are used: each module slows every start.

STEPS = 1 << 22  # blocks whose columns one call produces: about 50 ms


class NativeBlocks:
    """See contract.Blocks. Takes about 5 bytes for each block, and 16 bytes for each 64 granules of
    heap. If all sizes are multiples of the granule, a block takes 3 bytes; if all blocks are in use
    as well, it takes 2."""

    def __init__(self, library: CLibrary, arch: Arch, granule: int, threads: int = 1, heap_bytes: int = 0) -> None:
        """Create an empty directory. `threads` is the number of threads that calls of the C engine
        may use; for `heap_bytes` see Engine.blocks."""
        shared.check_granule(granule)
        self.arch = arch
        self.granule = granule
        self.library = library
        self._sealed = False
        self._count = 0  # number of blocks, once the directory is sealed
        self._found = (c_uint64 * 3)()
        self._totals: dict[tuple[int, int | None], list[Totals]] = {}  # by state
        self._ranges: Optional[array[int]] = None  # the last argument of totals_in
        self._totals_in: list[Totals] = []
        made = library.fl_blocks_new(granule.bit_length() - 1, threads)
        self.handle = Handle(made, library.fl_blocks_free, "for the directory of blocks")
        library.fl_reserve(self.handle, heap_bytes)

    def append(self, starts: Sequence[int], sizes: Sequence[int], states: Sequence[int]) -> None:
        self._open()
        code = DISORDER
        if len(starts) == len(sizes) == len(states):
            try:
                columns = pack("Q", starts), pack("Q", sizes), pack("B", states)
            except OverflowError:
                pass
            else:
                code = self.library.fl_append(self.handle, *map(c_array, columns), len(starts))
        if code == DISORDER:
            floor = self.library.fl_floor(self.handle)
            raise ValueError(shared.check_ascending(starts, sizes, states, self.granule, floor, self.arch.mask))

    def append_runs(self, runs: array[int], bits: bytes = b"") -> None:
        self._open()
        code = DISORDER
        if len(runs) % RUN == 0:
            code = self.library.fl_append_runs(self.handle, c_array(runs), len(runs) // RUN, bits, len(bits) * 8)
        if code == DISORDER:
            raise ValueError(shared.check_runs(runs, len(bits) * 8, self.granule, self.library.fl_floor(self.handle), self.arch.mask))

    def append_blocks(self, other: Blocks, first: int, last: int) -> None:
        self._open()
        if not isinstance(other, NativeBlocks):
            raise TypeError("blocks of another engine")
        last = min(last, len(other))
        if first < last and self.library.fl_append_blocks(self.handle, other.handle, first, last) == DISORDER:
            raise ValueError(f"blocks {first} to {last} of another directory are not above the previous blocks, or not on a granule")

    def append_nested(self, other: Blocks, first: int, last: int, slabs: array[int], runs: array[int]) -> array[int]:
        self._open()
        if not isinstance(other, NativeBlocks):
            raise TypeError("blocks of another engine")
        left_out, some = CWords(), (first, min(last, len(other)))
        passed = (c_array(slabs), len(slabs) // 2, c_array(runs), len(runs) // RUN)
        code = self.library.fl_append_nested(self.handle, other.handle, *some, *passed, byref(left_out))
        numbers = self.library.take(left_out)
        if code == DISORDER:
            raise ValueError(shared.NOT_NESTED)
        return numbers

    def open_handle(self) -> Handle:
        """Handle for calls of the C engine that append blocks; RuntimeError once sealed."""
        self._open()
        return self.handle

    def seal(self) -> None:
        if not self._sealed:
            self._sealed = True
            self.library.fl_seal(self.handle)
            self._count = int(self.library.fl_count(self.handle))

    def __len__(self) -> int:
        return self._count if self._sealed else int(self.library.fl_count(self.handle))

    def find(self, address: int) -> int:
        self._ready()
        index = self.library.fl_find(self.handle, address) if 0 <= address <= self.arch.mask else NONE
        return -1 if index == NONE else int(index)

    def lookup(self, address: int) -> Optional[tuple[int, int, int, int]]:
        self._ready()
        if not 0 <= address <= self.arch.mask:
            return None
        found = self._found
        index = self.library.fl_lookup(self.handle, address, found)
        return None if index == NONE else (index, found[0], found[1], found[2])

    def find_all(self, addresses: Sequence[int]) -> tuple[array[int], array[int]]:
        self._ready()
        wanted, indices, sizes = pack("Q", addresses), zeros("I", len(addresses)), zeros("Q", len(addresses))
        self.library.fl_holding(self.handle, c_array(wanted), len(wanted), c_array(indices), c_array(sizes))
        return indices, sizes

    def pointer_runs(self, bounds: Bounds) -> NativePointerRuns:
        from findleaks.engine.native.pointer_runs import NativePointerRuns

        self._ready()
        return NativePointerRuns(self.library, self, bounds)

    def claim(self, labels: array[int], indices: array[int], label: int) -> bool:
        return bool(self.library.fl_claim(c_array(labels), len(labels), c_array(indices), len(indices), label))

    def at_or_after(self, address: int) -> int:
        self._ready()
        if address > self.arch.mask:
            return len(self)
        return int(self.library.fl_at_or_after(self.handle, max(address, 0)))

    def address(self, index: int) -> int:
        return int(self.library.fl_address(self.handle, self._index(index)))

    def size(self, index: int) -> int:
        return int(self.library.fl_size(self.handle, self._index(index)))

    def state(self, index: int) -> State:
        return State(self.library.fl_state(self.handle, self._index(index)))

    def columns(self, first: int = 0, last: Optional[int] = None) -> BlockColumns:
        self._ready()
        first, last = shared.clip(first, last, len(self))
        addresses, sizes, states = (bytearray(size * (last - first)) for size in (8, 8, 1))
        for low in range(first, last, STEPS):
            high = min(low + STEPS, last)
            out = (c_buffer(one, code, low - first) for one, code in ((addresses, "Q"), (sizes, "Q"), (states, "B")))
            self.library.fl_block_columns(self.handle, low, high, *out)
        return _block_columns(addresses, sizes, states)

    def indices_with(self, states: int, marks: bytearray, wanted: int) -> array[int]:
        self._ready()
        found, count = array("I"), len(self)
        step = array("I", bytes(4 * min(count, STEPS)))
        for low in range(0, count, STEPS):
            passing = self.library.fl_block_indices(
                self.handle, low, min(low + STEPS, count), states, c_array(marks), wanted, c_array(step)
            )
            found += step if passing == len(step) else step[:passing]
        return found

    def columns_of(self, indices: array[int]) -> BlockColumns:
        self._ready()
        addresses, sizes, states = (bytearray(size * len(indices)) for size in (8, 8, 1))
        for low in range(0, len(indices), STEPS):
            part = indices[low : low + STEPS]
            out = (c_buffer(one, code, low) for one, code in ((addresses, "Q"), (sizes, "Q"), (states, "B")))
            self.library.fl_block_columns_of(self.handle, c_array(part), len(part), *out)
        return _block_columns(addresses, sizes, states)

    def set_state(self, addresses: Iterable[int], state: State) -> list[int]:
        self._ready()
        self._forget_totals()
        wanted = array("Q", addresses)
        unknown = self.library.fl_set_state(self.handle, c_array(wanted), len(wanted), int(state))
        return wanted[:unknown].tolist()

    def resize(self, index: int, size: int) -> None:
        self._ready()
        self._forget_totals()
        index = self._index(index)
        code = self.library.fl_resize(self.handle, index, size) if 0 <= size <= self.arch.mask else DISORDER
        if code == DISORDER:
            raise ValueError(f"block {self.address(index):#x} cannot have {size} bytes")

    def totals(self, state: State, start: int = 0, end: int | None = None) -> Totals:
        self._ready()
        if (start, end) not in self._totals:
            found = (c_uint64 * (2 * len(State)))()
            self.library.fl_totals(self.handle, *self._between(start, end), found)
            self._totals[start, end] = list(map(Totals, found[::2], found[1::2]))
        return self._totals[start, end][state]

    def totals_in(self, ranges: array[int]) -> list[Totals]:
        self._ready()
        if ranges is not self._ranges:
            found = (c_uint64 * (2 * len(State)))()
            self.library.fl_totals_in(self.handle, c_array(ranges), len(ranges) // 2, found)
            self._ranges, self._totals_in = ranges, list(map(Totals, found[::2], found[1::2]))
        return self._totals_in

    def by_size(self, ranges: Optional[array[int]] = None) -> list[Size]:
        self._ready()
        wanted = array("Q", [0, self.arch.mask]) if ranges is None else ranges
        found = self.library.words(self.library.fl_by_size, self.handle, c_array(wanted), len(wanted) // 2)
        return [Size(key >> 2, State(key & 3), blocks) for key, blocks in sorted(zip(found[::2], found[1::2]))]

    def of_sizes(self, least: int, greatest: int, most: int) -> array[int]:
        self._ready()
        return self.library.words(self.library.fl_of_sizes, self.handle, max(least, 0), greatest, most)

    def sample(self, most: int, first: int = 0, last: Optional[int] = None, before: Sample = NO_SAMPLE) -> Sample:
        self._ready()
        first, last = max(first, 0), min(len(self) if last is None else last, len(self))
        level, rows = before
        words = CWords()
        level = self.library.fl_sample(self.handle, most, first, last, level, c_array(rows), len(rows) // COLUMNS, byref(words))
        return level, self.library.take(words)

    def bytes_in(self, ranges: array[int]) -> list[int]:
        self._ready()
        sums = (c_uint64 * len(State))()
        self.library.fl_bytes_in(self.handle, c_array(ranges), len(ranges) // 2, sums)
        return list(sums)

    def gaps(self, start: int, end: int, least: int) -> list[Range]:
        self._ready()
        found = self.library.words(self.library.fl_gaps, self.handle, start, end, max(least, 1))
        return [Range(low, high) for low, high in zip(found[::2], found[1::2])]

    def by_page(self, ranges: array[int], page: int, lists: PageLists) -> PageRead:
        from findleaks.engine.native.pages import by_page

        self._ready()
        return by_page(self.library, self.handle, ranges, page, lists)

    def free_runs(self, where: Range, least: int) -> array[int]:
        from findleaks.engine.native.pages import free_runs

        self._ready()
        return free_runs(self.library, self.handle, where, least)

    def page_words(self, piece: Piece, types: Sequence[Range], where: Range, page: int, found: array[int], weights: array[int]) -> None:
        from findleaks.engine.native.pages import page_words

        self._ready()
        page_words(self.library, self.handle, piece, types, where, page, (found, weights))

    def _between(self, start: int, end: int | None) -> tuple[int, int]:
        """Return indices of the blocks that start in [start, end)."""
        first = self.at_or_after(start)
        return first, max(first, len(self) if end is None else self.at_or_after(end))

    def _forget_totals(self) -> None:
        self._totals.clear()
        self._ranges = None

    def _index(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"no block {index}")
        return index

    def _open(self) -> None:
        if self._sealed:
            raise RuntimeError("the directory of blocks is sealed")

    def _ready(self) -> None:
        if not self._sealed:
            raise RuntimeError("the directory of blocks is not sealed yet")


def _block_columns(addresses: bytearray, sizes: bytearray, states: bytearray) -> BlockColumns:
    from findleaks.engine.columns import BlockColumns  # few commands need it

    starts, lengths = (memoryview(one).cast("Q").toreadonly() for one in (addresses, sizes))
    return BlockColumns(starts, lengths, memoryview(states).toreadonly())
