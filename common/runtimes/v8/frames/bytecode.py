"""Find the source positions of bytecodes, and the bytecodes of baseline code.

V8 creates the table of positions of a function when it is first needed, for the stack of an error
or for a profiler (--enable-lazy-source-positions). Other functions have none.

Sources: V8 7.8 to 13.6 (Node 12 to 24), src/codegen/source-position-table.cc, source-position.h,
src/baseline/bytecode-offset-iterator.h, src/interpreter/bytecodes.h (kBytecodeSizes),
src/objects/code.tq and bytecode-array.tq (BytecodeArray)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Optional

from findleaks.runtimes.v8.frames.heap import BYTES, FrameHeap
from findleaks.runtimes.v8.metadata import TAG
from findleaks.runtimes.v8.sizes import BYTECODE_HEADER

_SIZES = "_ZN2v88internal11interpreter9Bytecodes14kBytecodeSizesE"
_SCALES = 3  # sizes of operands: one, two and four bytes
_PREFIXES = 4  # Wide, ExtraWide, and their breakpoints: they scale the next bytecode's operands
_POSITIONS, _OLD_POSITIONS = 24, 32  # offsets of the table of positions in a BytecodeArray
_FROM_ENTRY = (8, 4)  # the version from which on the entry of a function is at offset -1
_UNKNOWN = (14, 0)  # the first version whose layout is unknown
_MOST_BYTECODES = 1 << 24


class Bytecode:
    """Reads bytecode of the functions of a heap."""

    def __init__(self, heap: FrameHeap) -> None:
        self._heap = heap
        self.header = heap.metadata.offset("BytecodeArray", "data") or BYTECODE_HEADER
        # Since V8 12, the field after the length is the wrapper.
        has_wrapper = heap.metadata.offset("BytecodeArray", "wrapper") is not None
        known = _POSITIONS if has_wrapper else _OLD_POSITIONS if heap.version < (12, 0) else 0
        self._positions = known if heap.version < _UNKNOWN else 0

    def is_bytecode(self, word: int) -> bool:
        """Whether a word is the tagged address of a BytecodeArray."""
        return self._heap.is_a(word, ("bytecode_array",))

    def contains(self, array: int, offset: int) -> bool:
        """Whether the BytecodeArray at a tagged address has this offset."""
        return 0 <= offset < self._heap.length(array)

    def position(self, array: int, offset: int) -> Optional[int]:
        """Return the position in the source of the bytecode at an offset of the BytecodeArray at a
        tagged address; None if there is no table."""
        table = self._heap.memory.word(array - TAG + self._positions) or 0 if self._positions else 0
        data = self._heap.bytes_of(table) if self._heap.is_a(table, BYTES) else None
        found: Optional[int] = None
        for at, position in _entries(data or b"", 0 if self._heap.version < _FROM_ENTRY else -1):
            if at > offset:
                break
            found = position
        return found

    def of_baseline(self, array: int, table: int, offset: int) -> int:
        """Return the offset of the bytecode that baseline code executes at this offset of the code;
        -1 if it is unknown. `table`: the tagged address of the code's table of bytecode offsets."""
        data = self._heap.bytes_of(table)
        if not data or not self._sizes:
            return -1
        ends, end = _iterate_unsigned(data), next(_iterate_unsigned(data), 0)
        next(ends, 0)
        for at in self._bytecodes(array):
            if offset <= end:
                break
            step = next(ends, None)
            if step is None:
                return -1
            end += step
            if offset <= end:
                return at
        return -1

    def _bytecodes(self, array: int) -> Iterator[int]:
        """Yield the offset of each bytecode, with that of its prefix."""
        length = min(self._heap.length(array), _MOST_BYTECODES)
        code = self._heap.read_table(array - TAG + self.header, length)
        at, count = 0, len(self._sizes) // _SCALES
        while at < len(code):
            yield at
            scale = 0
            if code[at] < _PREFIXES:
                scale = 1 + code[at] % 2
                at += 1
            if at >= len(code) or code[at] >= count:
                return
            at += max(1, self._sizes[scale * count + code[at]])

    @cached_property
    def _sizes(self) -> Sequence[int]:
        """The sizes of all bytecodes, for operands of one, two and four bytes."""
        symbol = self._heap.target.symbol(_SIZES)
        return self._heap.memory.read(symbol.address, symbol.size) if symbol is not None and symbol.size % _SCALES == 0 else b""


def _iterate_unsigned(data: bytes) -> Iterator[int]:
    """Yield numbers of seven bits a byte, lowest first. The highest bit says that a byte
    follows."""
    found = shift = 0
    for byte in data:
        found |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            yield found
            found = shift = 0


def iterate_positions(data: bytes, offset: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, position) of a table of positions. Both are differences from the entry before;
    the lowest bit is the sign. An offset that does not begin a statement is complemented. `offset`:
    the one before the first entry. A position has its lowest bit set if it is outside of the
    script. The next 30 bits are the position, from 1 on, and the others the number of an inlined
    function, from 1 on."""
    position = 0
    numbers = _iterate_unsigned(data)
    for first, second in zip(numbers, numbers):
        step = (first >> 1) ^ -(first & 1)
        offset += step if step >= 0 else -step - 1
        position += (second >> 1) ^ -(second & 1)
        yield offset, position


def _entries(data: bytes, offset: int) -> Iterator[tuple[int, int]]:
    """Yield the offset, and the position in the script, of each entry of a table of positions."""
    for at, position in iterate_positions(data, offset):
        if not position & 1:
            yield at, (position >> 1 & (1 << 30) - 1) - 1
