"""Local variables of the Lua functions that run in a thread of LuaJIT.

Source: src/lj_frame.h, lj_debug.c (lj_debug_frame, debug_framepc, debug_varname), lj_buf.h and
lj_bc.h of LuaJIT 2.1 with LJ_GC64. The two slots before the first local variable of a function have
the function and a link: the address of the next instruction of the calling function of Lua, or a
distance to the frame of the caller."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.allocators.luajit.references import decode
from findleaks.allocators.memory import Memory
from findleaks.runtimes.lua.locals import MOST_CALLS, MOST_LOCALS, Call

_SLOT, _INSTRUCTION = 8, 4
_KIND, _DISTANCE = 3, -8  # bits of a link: 0 for the address of an instruction; bytes
_NAMES = 7  # names below this number stand for variables of the compiler; 0 ends the list
_LONGEST = 1 << 16  # bytes of the names and extents of the variables of a function


def list_calls(memory: Memory, base: int, stack: int) -> Iterator[Call]:
    """Yield the calls of functions of Lua that called another function, innermost first. `base`:
    the first local variable of the innermost function; `stack`: the start of the stack."""
    frame, saved = base - _SLOT, 0
    for _ in range(MOST_CALLS):
        words = memory.words(frame - _SLOT, 2) if frame > stack + _SLOT else None
        if words is None:
            return
        function, link = words
        if saved:
            yield Call(decode(function), frame + _SLOT, saved)
        saved = 0 if link & _KIND else link
        instruction = memory.int32(link - _INSTRUCTION) if saved else None
        # Operand A of the call is the slot of the function that was called.
        distance = link & _DISTANCE if not saved else 0 if instruction is None else _SLOT * (2 + (instruction >> 8 & 0xFF))
        if not 0 < distance < frame:
            return
        frame -= distance


def list_locals(memory: Memory, call: Call, code: int, info: int) -> Iterator[tuple[str, int]]:
    """Yield the name, and the address of the value, of each local variable that is alive at the
    next instruction. `code`: the first instruction; `info`: names and extents of the variables."""
    instruction, slot, last, at = (call.saved - code) // _INSTRUCTION - 1, call.base, 0, 0
    data = _read_most(memory, info)
    for _ in range(MOST_LOCALS):
        if at >= len(data) or not data[at]:
            return
        end = data.find(0, at) if data[at] >= _NAMES else at
        name = data[at:end].decode("utf-8", "replace")
        start, at = _read_number(data, end + 1)
        length, at = _read_number(data, at)
        last += start
        if end < 0 or last > instruction:
            return
        if instruction < last + length:
            if name:
                yield name, slot
            slot += _SLOT


def _read_most(memory: Memory, address: int) -> bytes:
    """Read up to _LONGEST bytes at an address, fewer if the rest cannot be read."""
    size = _LONGEST
    while size >= _SLOT:
        data = memory.read(address, size)
        if data:
            return data
        size //= 2
    return b""


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    """Return the number in LEB128 at an offset, and the offset behind it."""
    value = shift = 0
    while at < len(data) and shift < 35:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            break
    return value, at
