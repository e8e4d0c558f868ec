"""Read the objects that frames of Java methods have locked, or are about to lock.

A frame of the interpreter has a list of pairs of words. Each pair contains a BasicLock and the
address of the object. The scopes of compiled methods describe where the objects are.

Sources: OpenJDK 8 to 25, src/hotspot/share: runtime/basicLock.hpp, code/debugInfo.cpp (a list of
locks begins with their number; a lock is the location of the BasicLock, the value of the object,
and a byte that tells whether the compiler removed the lock), code/location.hpp (4 bits of a type, a
bit for registers, and the number of the register, or the offset from the stack pointer in units of
4 bytes); src/hotspot/cpu/x86/frame_x86.hpp (the word before the bytecode pointer has the address of
the end of an interpreted frame's list; since JDK 22, it has the distance in words of this end from
the frame pointer)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

from findleaks.runtimes.jvm.frames.code_cache import CodeBlob
from findleaks.runtimes.jvm.frames.debug_information import DebugInformation, Scope
from findleaks.runtimes.jvm.frames.methods import Numbers
from findleaks.runtimes.jvm.layout import ObjectLayout
from findleaks.runtimes.jvm.tables import Tables
from findleaks.target.arch import X86_64
from findleaks.value_classes import NamedTuple

_WORD = 8
_SP, _FP = (X86_64.dwarf_registers.index(name) for name in ("rsp", "rbp"))
_PAIR = 2 * _WORD
_MOST = 64  # locks of a frame
_DESCRIPTION = 1 << 10  # bytes of the description of a frame's locks that are read
# Kinds of values: LOCATION_CODE, CONSTANT_OOP_CODE, OBJECT_ID_CODE
_LOCATION, _CONSTANT, _REPLACED = 0, 2, 6
_TYPE, _IN_REGISTER, _PLACE = 0xF, 0x10, 5
_OOP, _NARROW = 2, (8, 9)  # types of locations; that of compressed references is 8 in JDK 8
_RBP_NUMBERS = (10, 11)  # the halves of rbp, the only register that keeps its value in a call


class Monitor(NamedTuple):
    """A lock. `address`: the address of the object, 0 if it is unknown. `is_eliminated`: whether
    the compiler removed the lock."""

    address: int
    is_eliminated: bool = False


class MonitorReader:
    """Reads the locks of frames. For each frame, the lock that was acquired last comes first."""

    def __init__(self, tables: Tables, numbers: Numbers, debug: DebugInformation, layout: ObjectLayout) -> None:
        self._tables, self._numbers, self._debug, self._references = tables, numbers, debug, layout.references

    def read_interpreted(self, fp: int, bytecode: int) -> Sequence[Monitor]:
        """Return the locks of an interpreted frame. `bytecode`: the offset from the frame pointer
        to the word with the bytecode pointer."""
        begin = fp + bytecode - _WORD
        end = self._tables.memory.word(begin) or 0
        if end >> 63:
            end = fp + _WORD * (end - (1 << 64))
        if not 0 <= begin - end <= _MOST * _PAIR or (begin - end) % _PAIR:
            return ()
        words = self._tables.memory.words(end, (begin - end) // _WORD) if end < begin else ()
        return [Monitor(one) for one in (words or ())[1::2] if one]

    def read_compiled(self, blob: CodeBlob, scope: Scope, registers: Mapping[int, int]) -> Sequence[Monitor]:
        """Return the locks of a method that compiled code executes. `registers`: the registers of
        the frame."""
        data = self._debug.scope_bytes(blob, scope.monitors, _DESCRIPTION)
        try:
            return list(self._decode(blob, data, registers))[::-1]
        except (IndexError, ValueError):
            return ()

    def _decode(self, blob: CodeBlob, data: bytes, registers: Mapping[int, int]) -> Iterator[Monitor]:
        count, at = self._numbers.decode(data, 0) if data else (0, 0)
        if count > _MOST:
            raise ValueError
        for _ in range(count):
            _, at = self._numbers.decode(data, at)
            kind, at = self._numbers.decode(data, at)
            value, at = self._numbers.decode(data, at)
            is_eliminated = data[at] != 0
            at += 1
            if kind == _LOCATION:
                address = self._at(value, registers)
            elif kind == _CONSTANT:
                address = self._debug.constant(blob, value)
            elif kind == _REPLACED:
                address = 0  # the compiler has removed the object, too
            else:
                raise ValueError
            if address or is_eliminated:
                yield Monitor(address or 0, is_eliminated)

    def _at(self, location: int, registers: Mapping[int, int]) -> Optional[int]:
        """Return the reference at a location; None if it is unknown."""
        kind, place, references = location & _TYPE, location >> _PLACE, self._references
        is_narrow = kind in _NARROW
        if not is_narrow and kind != _OOP:
            return None
        if location & _IN_REGISTER:
            value = registers.get(_FP) if place in _RBP_NUMBERS else None
            value = value & 0xFFFFFFFF if value is not None and is_narrow else value
        else:
            address = registers[_SP] + 4 * place
            value = self._tables.memory.int32(address) if is_narrow else self._tables.memory.word(address)
        return references.base + (value << references.shift) if value and is_narrow else value
