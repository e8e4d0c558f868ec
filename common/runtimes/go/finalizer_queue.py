"""Read the queue of finalizers that Go has not run yet. Their objects are not garbage, although
nothing else refers to them. In 1.24, the queue also has cleanups (runtime.AddCleanup). Later
versions have another queue for these (cleanup_queue.py).

Sources: Go 1.18 to 1.27, src/runtime/mfinal.go (finBlock: alllink, next, cnt, and 101 records of
five words; allfin, finq; runFinalizers decreases cnt after each finalizer; in 1.24, runfinq: a
cleanup has no object)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Optional

from findleaks.allocators.bulk import find_pointers
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.runtimes.go.types import POINTER, Types
from findleaks.target.base import Range
from findleaks.target.ranges import nonzero_pieces, range_at
from findleaks.value_classes import NamedTuple

_HEAD, _RECORD, _RECORDS = 3, 5, 101  # words of a block's head and of a record; records of a block
_MAX_BLOCKS = 1 << 16
_CHECKED = 1 << 8  # blocks between two checks for Ctrl-C


class QueuedFinalizer(NamedTuple):
    """A finalizer that has not run: the addresses of its record, of its closure, of its object, and
    of the type of the pointer to the object. The last two are 0 for a cleanup."""

    record: int
    closure: int
    object: int
    pointer_type: int

    def pointers(self) -> list[tuple[int, int]]:
        """Return the address and the value of each pointer of the record."""
        return [(self.record, self.closure), (self.record + 8, self.object), (self.record + 32, self.pointer_type)]


class _Block(NamedTuple):
    links: Sequence[int]
    finalizers: Sequence[QueuedFinalizer]


def read_finalizer_queue(
    memory: Memory, engine: Engine, types: Types, data: Iterable[Range], persistent: Sequence[Range], code: Sequence[Range] = ()
) -> list[QueuedFinalizer]:
    """Return the queued finalizers. `data`: the runtime's variables, one of which refers to a block
    of the queue. `persistent`: memory that the runtime never frees, which contains the blocks.
    `code`: Go's code, sorted. Without it, no cleanups are read. Raises Interrupted."""
    found: dict[int, _Block] = {}
    waiting = list(find_candidates(memory, engine, data, persistent))
    while waiting and len(found) < _MAX_BLOCKS:
        address = waiting.pop()
        block = _read_block(memory, types, address, persistent, code) if address not in found else None
        if block is not None:
            found[address] = block
            waiting += block.links
            if len(found) % _CHECKED == 0 and memory.target.is_interrupted():
                raise Interrupted
    return [one for block in found.values() for one in block.finalizers]


def find_candidates(memory: Memory, engine: Engine, data: Iterable[Range], persistent: Sequence[Range]) -> Iterator[int]:
    """Yield the values of variables that refer to memory which the runtime never frees."""
    if not persistent:
        return
    for start, end in data:
        for piece in nonzero_pieces(memory.target, start, end):
            values = find_pointers(engine, piece, persistent[0].start, persistent[-1].end)[1]
            yield from {value for value in values if range_at(persistent, value) is not None}


def _read_block(memory: Memory, types: Types, address: int, persistent: Sequence[Range], code: Sequence[Range]) -> Optional[_Block]:
    """Return the block at an address; None if there is none."""
    head = memory.words(address, _HEAD) if address % 8 == 0 else None
    if head is None or head[2] > _RECORDS or any(link % 8 or range_at(persistent, link) is None for link in head[:2] if link):
        return None
    words = memory.words(address + 8 * _HEAD, _RECORD * _RECORDS)
    if words is None:
        return None
    records = [words[at : at + _RECORD] for at in range(0, len(words), _RECORD)]
    used, unused = records[: head[2]], records[head[2] :]
    if any(closure or value or of for closure, value, _, _, of in unused):
        return None
    if not all(_is_finalizer(types, *record) or _is_cleanup(memory, code, *record) for record in used):
        return None
    places = range(address + 8 * _HEAD, address + 8 * (_HEAD + _RECORD * _RECORDS), 8 * _RECORD)
    found = [QueuedFinalizer(place, closure, value, of) for place, (closure, value, _, _, of) in zip(places, used)]
    return _Block([link for link in head[:2] if link], found)


def _is_finalizer(types: Types, closure: int, value: int, _: int, first: int, of: int) -> bool:
    return bool(closure and value) and types.at(first) is not None and _is_pointer(types, of)


def _is_cleanup(memory: Memory, code: Sequence[Range], closure: int, *rest: int) -> bool:
    """Whether a record has only a function."""
    return bool(closure) and not any(rest) and bool(code) and range_at(code, memory.word(closure) or 0) is not None


def _is_pointer(types: Types, address: int) -> bool:
    one = types.at(address)
    return one is not None and one.kind == POINTER
