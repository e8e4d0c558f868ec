"""Find the objects that describe machine code that V8 generated.

Code follows a header: up to V8 10.2 that of its Code object, later that of an InstructionStream
with a reference to the Code object. The header precedes any address of the code, and is found by
its map.

Sources: V8 7.8 to 13.6 (Node 12 to 24), src/objects/code.h, instruction-stream.h, code-kind.h."""

from __future__ import annotations

import time
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.v8.frames.heap import ARRAYS, BYTES, FrameHeap
from findleaks.runtimes.v8.metadata import TAG
from findleaks.target.ranges import region_at
from findleaks.value_classes import NamedTuple

BASELINE, OPTIMIZED, MAGLEV, OTHER = "baseline", "optimized", "maglev", "other"
_MOST_CODE, _PIECE = 4 << 20, 1 << 14  # bytes before an address that are searched
_MOST_SEARCHED = 1 << 28  # bytes that are searched for all addresses
_MISS_SECONDS = 1.0  # after which code that was not found is searched again
_HEADERS = "instruction_stream_map", "code_map"  # the first one that V8 has
_OLD_HEADER, _OLD_SIZE, _OLD_START = 16, 56, 40  # of V8 11.3, which has no constants for them
_BYTECODE = ("bytecode_array", "interpreter_data")


class Code(NamedTuple):
    """Machine code from `start` to `end`, without metadata. `data` and `positions` are tagged
    addresses, 0 if there are none: of the deoptimization data of optimized code, and of the table
    of bytecode offsets of baseline code. `header` is the address of the header."""

    kind: str
    header: int
    start: int
    end: int
    data: int
    positions: int


class CodeFinder:
    """Finds code by address."""

    def __init__(self, heap: FrameHeap) -> None:
        self._heap, self._memory = heap, heap.memory
        self._offset, self._constant = heap.metadata.offset, heap.metadata.constant
        name = next((one for one in _HEADERS if one in heap.maps.roots), "")
        self._maps, self._is_split = heap.maps.tagged_roots(name), name == _HEADERS[0]
        self._known: dict[int, Optional[Code]] = {}
        self._left = _MOST_SEARCHED
        self._checked: set[int] = set()
        self._misses: dict[int, float] = {}  # times to search again for code that was not found
        self._has_run = False  # if so, mappings may have changed since the target was opened

    def read_again(self, memory: Memory) -> None:
        """Search again for code that V8 has moved. `memory`: the memory of the process as it is
        now."""
        self._memory, self._left, self._has_run = memory, _MOST_SEARCHED, True
        self._checked = set()

    def find(self, pc: int) -> Optional[Code]:
        """Return the code at an address, None if there is none."""
        if pc not in self._known or (pc not in self._checked and not self._is_current(self._known[pc])):
            if time.monotonic() < self._misses.get(pc, 0.0):
                return None
            self._known[pc] = self._search(pc)
            if self._known[pc] is None:
                self._misses[pc] = time.monotonic() + _MISS_SECONDS
        self._checked.add(pc)
        return self._known[pc]

    def _is_current(self, code: Optional[Code]) -> bool:
        return code is not None and self._memory.word(code.header) in self._maps and self._read(code.header) == code

    def _search(self, pc: int) -> Optional[Code]:
        region = region_at(self._heap.target.regions(), pc) if not self._has_run else None
        if not self._has_run and (region is None or not region.executable):
            return None
        end, least = (pc & -8) + 8, max(region.start if region is not None else 0, pc - _MOST_CODE)
        while end > least and self._left > 0:
            start = max(least, (end - 1) & -_PIECE)  # no piece is in two of V8's pages
            self._left -= end - start
            data = self._memory.read(start, end - start)
            if not data:
                return None
            for word in self._maps:
                found = self._last(data, start, word, pc)
                if found is not None:
                    return found
            end = start
        return None

    def _last(self, data: bytes, start: int, word: int, pc: int) -> Optional[Code]:
        """Return the code with the last header in `data` that describes the address."""
        pattern = word.to_bytes(8, "little")
        at = data.rfind(pattern)
        while at >= 0:
            code = self._read(start + at) if at % 8 == 0 else None
            if code is not None and code.start <= pc <= code.end:
                return code
            at = data.rfind(pattern, 0, at + len(pattern) - 1)
        return None

    def _read(self, header: int) -> Optional[Code]:
        code = header
        if self._is_split:
            tagged = self._memory.word(header + 8) or 0
            if not self._heap.is_a(tagged, ("code",)):
                return None
            code = tagged - TAG
            start = self._memory.word(code + (self._offset("Code", "instruction_start") or _OLD_START)) or 0
            if not header + _OLD_HEADER <= start <= header + 64:
                return None
        else:
            start = header + (self._offset("Code", "instruction_start") or 0)
        size = self._memory.int32(code + (self._offset("Code", "instruction_size") or _OLD_SIZE)) or 0
        fields = self._memory.words(code + 8, 3)
        if not 0 < size <= _MOST_CODE or fields is None or start == header:
            return None
        # Up to V8 11.3, the relocation information comes first.
        data, positions = fields[1:] if self._heap.is_a(fields[0], BYTES) else fields[:2]
        return Code(self._kind(code, data), header, start, start + size, data, positions)

    def _kind(self, code: int, data: int) -> str:
        """Return the kind of a Code object, by the type of its data. Maglev's kind follows that of
        baseline code."""
        if self._heap.is_a(data, _BYTECODE):
            return BASELINE
        if self._heap.is_a(data, ARRAYS) and self._heap.is_a(self._heap.element(data, 0), BYTES):
            flags, baseline = self._offset("Code", "flags"), self._constant("CodeKindBaseline")
            mask, shift = self._constant("CodeKindFieldMask"), self._constant("CodeKindFieldShift")
            if self._is_split and None not in (flags, baseline, mask, shift):
                kind = ((self._memory.int32(code + (flags or 0)) or 0) & (mask or 0)) >> (shift or 0)
                return MAGLEV if kind == (baseline or 0) + 1 else OPTIMIZED
            return OPTIMIZED
        return OTHER
