"""Read the queue of cleanups (runtime.AddCleanup) that Go has not run yet. What their functions and
arguments refer to is not garbage, although nothing else refers to it.

Since 1.25, cleanups have a queue of their own. Up to 1.24, they are in the queue of finalizers
(finalizer_queue.py).

Sources: Go 1.25 to 1.27, src/runtime/mcleanup.go (cleanupBlock, cleanupFn, gcCleanups.all;
runCleanups clears each cleanup before it runs it). Up to 1.25, a cleanup in a block is one pointer
to a function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.runtimes.go.finalizer_queue import find_candidates
from findleaks.runtimes.go.types import ARRAY, Types
from findleaks.target.base import Range
from findleaks.target.ranges import range_at
from findleaks.value_classes import NamedTuple

_HEAD = "cleanupBlockHeader"
_MAX_BLOCKS = 1 << 18
_CHECKED = 1 << 8  # blocks between two checks for Ctrl-C


class QueuedCleanup(NamedTuple):
    """A cleanup that has not run: the address of its record, and the words of the record. A record
    has one word, which refers to a function, or three: two that refer to functions, and the
    argument."""

    record: int
    words: Sequence[int]

    def pointers(self) -> list[tuple[int, int]]:
        """Return the address and the value of each pointer of the record."""
        return [(self.record + 8 * at, word) for at, word in enumerate(self.words)]


class _Layout(NamedTuple):
    """The layout of a block. `size`: its bytes. `link`, `counter` and `records`: offsets in bytes.
    `capacity`: the number of records that fit. `words`: the words of a record."""

    size: int
    link: int
    counter: int
    records: int
    capacity: int
    words: int


def read_cleanup_queue(
    memory: Memory, engine: Engine, types: Types, data: Iterable[Range], persistent: Sequence[Range], code: Sequence[Range]
) -> list[QueuedCleanup]:
    """Return the queued cleanups. `data`: the runtime's variables, one of which refers to the first
    block in the list of all blocks. `persistent`: memory that the runtime never frees, which
    contains the blocks. `code`: Go's code, sorted. Raises Interrupted."""
    layout = _read_layout(types)
    if layout is None:
        return []
    found: list[QueuedCleanup] = []
    seen: set[int] = set()
    for address in dict.fromkeys(find_candidates(memory, engine, data, persistent)):
        while address and address not in seen and len(seen) < _MAX_BLOCKS:
            seen.add(address)
            if len(seen) % _CHECKED == 0 and memory.target.is_interrupted():
                raise Interrupted
            block = memory.words(address, layout.size // 8) if _is_inside(persistent, address, layout.size) else None
            records = _read_records(memory, layout, address, block, code) if block is not None else None
            if block is None or records is None:
                break
            found += records
            address = block[layout.link // 8]
    return found


def _read_layout(types: Types) -> Optional[_Layout]:
    structure = types.find("runtime.cleanupBlock")
    block = types.at(structure) if structure is not None else None
    records = types.field(structure, "cleanups") if structure is not None else None
    array = types.at(records.type) if records is not None else None
    record = types.at(array.elem) if array is not None and array.kind == ARRAY else None
    if structure is None or block is None or records is None or array is None or record is None:
        return None
    link, counter = (types.offset(structure, f"{_HEAD}.{name}") for name in ("alllink", "n"))
    if link is None or counter is None or link % 8 or counter % 8 or record.size not in (8, 24) or records.offset + array.size > block.size:
        return None
    return _Layout(block.size, link, counter, records.offset, array.size // record.size, record.size // 8)


def _is_inside(persistent: Sequence[Range], address: int, size: int) -> bool:
    place = range_at(persistent, address)
    return address % 8 == 0 and place is not None and address + size <= place.end


def _read_records(
    memory: Memory, layout: _Layout, address: int, block: Sequence[int], code: Sequence[Range]
) -> Optional[list[QueuedCleanup]]:
    """Return the cleanups of a block that have not run; None if there is no block at `address`."""
    count = block[layout.counter // 8] & 0xFFFFFFFF
    if count > layout.capacity:
        return None
    found = []
    for number in range(count):
        at = layout.records + 8 * layout.words * number
        words = block[at // 8 : at // 8 + layout.words]
        if not any(words):
            continue
        if not all(words) or any(range_at(code, memory.word(word) or 0) is None for word in words[:2]):
            return None
        found.append(QueuedCleanup(address + at, words))
    return found
