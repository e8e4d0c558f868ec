"""Find the code that an address of the JVM's code cache belongs to.

Sources: OpenJDK 8 to 25, src/hotspot/share: memory/heap.hpp (a heap consists of segments; for each
segment a byte has the distance to a segment nearer to the start of the block, at most 254, or 255
if the segment is free), code/codeBlob.hpp, code/compiledMethod.hpp, code/nmethod.hpp,
interpreter/interpreter.hpp and code/stubs.hpp (pieces of the interpreter)."""

from __future__ import annotations

from functools import lru_cache
from typing import Optional

from findleaks.runtimes.jvm.parts import code_heaps
from findleaks.runtimes.jvm.tables import Tables
from findleaks.value_classes import NamedTuple

_CACHED = 1 << 14
_FREE = 0xFF
_MOST_SEGMENTS = 1 << 16  # of one block
_MOST_SHIFT = 16  # log2 of the bytes of a segment
_MOST_FRAME = 1 << 17  # words of a frame
_MOST_CODELETS = 1 << 12
_COMPILED = ("nmethod", "native nmethod")  # names


class CodeBlob(NamedTuple):
    """A piece of code. `frame_bytes`: the size of its frame with the return address, 0 if it is not
    known. The frame is complete from the address `complete` on. `method`: the Method if the code is
    that of a compiled method, or of the wrapper of a native method; else 0."""

    address: int
    name: str
    start: int
    end: int
    complete: int
    frame_bytes: int
    method: int


class Codelet(NamedTuple):
    """A piece of the interpreter: the code of one bytecode, or of an entry."""

    start: int
    end: int
    description: str


class _Heap(NamedTuple):
    low: int
    high: int
    map: int
    shift: int


class CodeCache:
    """The code cache of a JVM."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._heaps = self._read_heaps()
        self.interpreter = self._read_interpreter()
        self._header = tables.sizes.get("HeapBlock", 0)
        self._method = next((kind for kind in ("nmethod", "CompiledMethod") if (kind, "_method") in tables.fields), "")
        self._codelets: Optional[list[Codelet]] = None
        self._read_blob = lru_cache(_CACHED)(self._blob)

    @property
    def is_known(self) -> bool:
        """Whether the code cache was found."""
        return bool(self._heaps and self.interpreter and self._header and self._method)

    def __contains__(self, pc: object) -> bool:
        return isinstance(pc, int) and any(one.low <= pc < one.high for one in self._heaps)

    def is_interpreted(self, pc: int) -> bool:
        """Return whether this is an address in the interpreter."""
        return self.interpreter is not None and self.interpreter[0] <= pc < self.interpreter[1]

    def find(self, pc: int) -> Optional[CodeBlob]:
        """Return the code that contains an address; None if there is none."""
        heap = next((one for one in self._heaps if one.low <= pc < one.high), None)
        address = self._block_of(heap, pc) if heap is not None else 0
        blob = self._read_blob(address) if address else None
        return blob if blob is not None and blob.start <= pc < blob.end else None

    def codelet(self, pc: int) -> Optional[Codelet]:
        """Return the piece of the interpreter that contains an address."""
        if self._codelets is None:
            self._codelets = self._read_codelets()
        return next((one for one in self._codelets if one.start <= pc < one.end), None)

    def _read_heaps(self) -> list[_Heap]:
        tables = self._tables
        found = []
        for heap in code_heaps(tables):
            space, segments = tables.place("CodeHeap", "_memory", heap), tables.place("CodeHeap", "_segmap", heap)
            low, high = tables.word("VirtualSpace", "_low", space), tables.word("VirtualSpace", "_high", space)
            start, shift = tables.word("VirtualSpace", "_low", segments), tables.int32("CodeHeap", "_log2_segment_size", heap)
            if low and high and low < high and start and shift is not None and shift <= _MOST_SHIFT:
                found.append(_Heap(low, high, start, shift))
        return found

    def _read_interpreter(self) -> Optional[tuple[int, int]]:
        queue = self._tables.word("AbstractInterpreter", "_code") or 0
        start, size = self._tables.word("StubQueue", "_stub_buffer", queue), self._tables.int32("StubQueue", "_buffer_limit", queue)
        return (start, start + size) if start and size else None

    def _read_codelets(self) -> list[Codelet]:
        tables, found = self._tables, []
        at, end = self.interpreter or (0, 0)
        header = tables.sizes.get("InterpreterCodelet", 0)
        for _ in range(_MOST_CODELETS):
            size = tables.int32("InterpreterCodelet", "_size", at) if at < end else 0
            if not size or size <= header:
                break
            text = tables.word("InterpreterCodelet", "_description", at)
            found.append(Codelet(at + header, at + size, _printable(tables.text(text)) if text else ""))
            at += size
        return found

    def _block_of(self, heap: _Heap, pc: int) -> int:
        """Return the address of the block in a heap that contains an address, 0 if it is free."""
        segment = pc - heap.low >> heap.shift
        for _ in range(_MOST_SEGMENTS):
            byte = self._tables.memory.read(heap.map + segment, 1) if segment >= 0 else b""
            if not byte or byte[0] == _FREE:
                return 0
            if not byte[0]:
                return heap.low + (segment << heap.shift)
            segment -= byte[0]
        return 0

    def _blob(self, block: int) -> Optional[CodeBlob]:
        tables, address = self._tables, block + self._header
        used = tables.place("HeapBlock::Header", "_used", block)
        if not used or tables.memory.read(used, 1) in (b"", b"\0"):
            return None
        text = tables.word("CodeBlob", "_name", address)
        name = _printable(tables.text(text)) if text else ""
        start = tables.word("CodeBlob", "_code_begin", address)
        size, data = tables.int32("CodeBlob", "_size", address), tables.int32("CodeBlob", "_data_offset", address)
        end = tables.word("CodeBlob", "_code_end", address) or (address + data if data is not None else 0)
        if start is None:
            offset = tables.int32("CodeBlob", "_code_offset", address)
            start = address + offset if offset is not None else 0
        words = tables.int32("CodeBlob", "_frame_size", address)
        complete = self._complete(address)
        if not name or not start or not size or words is None or complete is None or not address < start <= end <= address + size:
            return None
        frame = 8 * words if words <= _MOST_FRAME else 0
        method = tables.word(self._method, "_method", address) or 0 if name in _COMPILED else 0
        return CodeBlob(address, name, start, end, start + complete if complete >= 0 else end, frame, method)

    def _complete(self, address: int) -> Optional[int]:
        """Return the offset from which on a frame is complete. It has 16 bits in JDK 25; negative
        if the frame is never complete."""
        found = self._tables.fields.get(("CodeBlob", "_frame_complete_offset"))
        if found is None:
            return None
        size = 2 if self._tables.text(found.type_name) == "int16_t" else 4
        data = self._tables.memory.read(address + found.offset, size)
        return int.from_bytes(data, self._tables.memory.arch.byteorder, signed=True) if data else None


def _printable(text: str) -> str:
    """Return a name, "" if it is damaged."""
    return text if text.isprintable() else ""
