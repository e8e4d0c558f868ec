"""Read which methods a compiled method executes at a call: those that the compiler inlined, too.

Sources: OpenJDK 8 to 25, src/hotspot/share/code: pcDesc.hpp, scopeDesc.cpp (a scope begins with the
position of the scope of its caller, the number of the method, and the index of the bytecode plus
1; the positions of its variables, operands and locks follow), debugInfo.hpp, nmethod.hpp (JDK 25
keeps the tables outside of the code cache)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Optional

from findleaks.runtimes.jvm.frames.code_cache import CodeBlob
from findleaks.runtimes.jvm.frames.methods import Numbers
from findleaks.runtimes.jvm.tables import Tables
from findleaks.value_classes import NamedTuple

_CACHED = 1 << 12
_MOST_BYTES = 1 << 24  # maximum size of a table
_MOST_SCOPES = 1 << 10  # maximum depth of inlined methods
_HANDLERS = ("_deoptimize_offset", "_deoptimize_mh_offset", "_deopt_handler_offset", "_deopt_mh_handler_offset")
_SCOPE_BYTES = 6 * 5  # maximum size of the six numbers of a scope


class Scope(NamedTuple):
    """A method that is executed. `bytecode`: the index of the bytecode, -1 if it is unknown.
    `monitors`: the position of the description of its locks in the table of scopes, 0 if there is
    none."""

    method: int
    bytecode: int
    monitors: int = 0


class _Parts(NamedTuple):
    """Addresses of the tables of a compiled method: of its code positions, of the scopes, and of
    the methods and classes that these refer to by number."""

    positions: int
    positions_end: int
    scopes: int
    metadata: int
    metadata_end: int


class DebugInformation:
    """Finds the scopes at addresses of compiled methods."""

    def __init__(self, tables: Tables, numbers: Numbers) -> None:
        self._tables, self._numbers = tables, numbers
        self._positions = lru_cache(_CACHED)(self._read_positions)
        self._parts = lru_cache(_CACHED)(self._find_parts)
        self._stride = tables.sizes.get("PcDesc", 0)

    def scopes(self, blob: CodeBlob, pc: int) -> Sequence[Scope]:
        """Return the methods that the code executes at the return address of a call, innermost
        first. Returns () if the tables do not describe this address, or are damaged."""
        parts = self._parts(blob)
        position = self._positions(blob).get(pc - blob.start)
        if parts is None or not position:
            return ()
        found: list[Scope] = []
        while position and len(found) < _MOST_SCOPES:
            data = self._read_bytes(parts.scopes + position)
            try:
                caller, at = self._numbers.decode(data, 0)
                number, at = self._numbers.decode(data, at)
                bytecode, at = self._numbers.decode(data, at)
                _, at = self._numbers.decode(data, at)
                _, at = self._numbers.decode(data, at)
                monitors, _ = self._numbers.decode(data, at)
            except (IndexError, ValueError):
                return ()
            place = parts.metadata + (number - 1) * self._tables.memory.size
            method = self._tables.memory.word(place) if number and place < parts.metadata_end else None
            # The scope of the caller precedes that of the callee.
            if not method or caller >= position:
                return ()
            # 0: the method is being entered; its first bytecode has the line that Java prints.
            found.append(Scope(method, max(bytecode - 1, 0), monitors))
            position = caller
        # The outermost scope is that of the compiled method itself.
        return found if found and not position and found[-1].method == blob.method else ()

    def original_pc(self, blob: CodeBlob, pc: int, sp: int) -> Optional[int]:
        """Return the original return address of a frame whose code the JVM invalidated. The JVM
        then replaced the return address by `pc`, the address of a handler. `sp`: the stack pointer
        of the frame. Returns None if `pc` is not the address of a handler."""
        if pc not in self._handlers(blob):
            return None
        offset = self._tables.int32("nmethod", "_orig_pc_offset", blob.address)
        return self._tables.memory.word(sp + offset) if offset and offset < max(blob.frame_bytes, 1) else None

    def _handlers(self, blob: CodeBlob) -> Sequence[int]:
        """Return the addresses to which the JVM sets the return address of a frame whose code it
        invalidated."""
        tables = self._tables
        found = [tables.word("CompiledMethod", name, blob.address) for name in ("_deopt_handler_begin", "_deopt_mh_handler_begin")]
        # These offsets are from the start of the code blob in JDK 8, and of the code in 25.
        for base, name in itertools.product((blob.address, blob.start), _HANDLERS):
            offset = tables.int32("nmethod", name, blob.address)
            found.append(base + offset if offset else None)
        return [one for one in found if one and blob.start <= one < blob.end]

    def entries(self, blob: CodeBlob) -> Sequence[int]:
        """Return the addresses at which callers enter a compiled method."""
        names = ("_verified_entry_point", "_entry_point", "_osr_entry_point")
        found = [self._tables.word("nmethod", name, blob.address) or 0 for name in names]
        offsets = ("_verified_entry_offset", "_entry_offset")
        for name in offsets:
            place = self._tables.place("nmethod", name, blob.address)
            data = self._tables.memory.read(place, 2) if place else b""
            if data:
                found.append(blob.start + int.from_bytes(data, self._tables.memory.arch.byteorder))
        return sorted({one for one in found if blob.start <= one < blob.end})

    def scope_bytes(self, blob: CodeBlob, position: int, size: int) -> bytes:
        """Return `size` bytes of the table of scopes at `position`; fewer bytes if some of this
        memory is unreadable."""
        parts = self._parts(blob)
        return self._read_bytes(parts.scopes + position, size) if parts is not None and position else b""

    def _read_bytes(self, address: int, size: int = _SCOPE_BYTES) -> bytes:
        """Return the bytes of a scope; the last one may be followed by unreadable memory."""
        data = self._tables.memory.read(address, size)
        return data or next(filter(None, (self._tables.memory.read(address, less) for less in range(size - 1, 2, -1))), b"")

    def constant(self, blob: CodeBlob, number: int) -> int:
        """Return the address of the object with this number among the references of a compiled
        method. Numbers begin at 1. Returns 0 if the object is unknown."""
        tables = self._tables
        # JDK 25: the references are at the start of the method's data.
        for kind, field in (("nmethod", "_oops_offset"), ("CodeBlob", "_data_offset")):
            offset = tables.int32(kind, field, blob.address)
            if offset is not None:
                return tables.memory.word(blob.address + offset + (number - 1) * tables.memory.size) or 0 if number else 0
        return 0

    def _read_positions(self, blob: CodeBlob) -> dict[int, int]:
        """Map offsets in the code to the position of the innermost scope at each offset."""
        parts = self._parts(blob)
        size = parts.positions_end - parts.positions if parts is not None else 0
        offsets = [self._tables.fields.get(("PcDesc", name)) for name in ("_pc_offset", "_scope_decode_offset")]
        if parts is None or not 0 < size <= _MOST_BYTES or not self._stride or None in offsets:
            return {}
        data = self._tables.memory.read(parts.positions, size // self._stride * self._stride)
        numbers = self._tables.memory.arch.words32(data)
        pc, scope = (one.offset // 4 for one in offsets if one is not None)
        each = self._stride // 4
        return dict(zip(numbers[pc::each], numbers[scope::each]))

    def _find_parts(self, blob: CodeBlob) -> Optional[_Parts]:
        tables, address = self._tables, blob.address

        def offset(field: str, kind: str = "nmethod") -> int:
            return tables.int32(kind, field, address) or 0

        if ("nmethod", "_immutable_data") in tables.fields:
            base, mutable = tables.word("nmethod", "_immutable_data", address), tables.word("CodeBlob", "_mutable_data", address)
            if not base or not mutable:
                return None
            metadata = mutable + offset("_relocation_size", "CodeBlob")
            end = mutable + offset("_mutable_data_size", "CodeBlob")
            scopes = base + offset("_scopes_data_offset")
            return _Parts(base + offset("_scopes_pcs_offset"), scopes, scopes, metadata, end)
        scopes = tables.word("CompiledMethod", "_scopes_data_begin", address) or address + offset("_scopes_data_offset")
        positions, end = address + offset("_scopes_pcs_offset"), address + offset("_dependencies_offset")
        return _Parts(positions, end, scopes, address + offset("_metadata_offset"), scopes)
