"""Local variables of the Lua functions that run in a thread of Lua.

Sources: lstate.h (lua_State, CallInfo), lobject.h (Proto, LocVar) and lfunc.c (luaF_getlocalname)
of Lua 5.1.5, 5.2.4, 5.3.6 and 5.4.4, 64-bit. From 5.2 on, calls are a list. In 5.1, they are an
array."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.runtimes.lua.layout import FUNCTION
from findleaks.target.base import Range

MOST_CALLS = 1 << 14  # of one thread
MOST_LOCALS = 1 << 10  # of one function
_SLOT = 16  # bytes of a value on the stack
_INSTRUCTION = 4
_NEXT, _MEMBERS = 24, 32  # offsets in CallInfo since 5.2; the members before are links
_MOST_FINISHED = 1 << 8  # finished calls of a thread


class CallLayout(NamedTuple):
    """Offsets in bytes.

    - In CallInfo: `function`: the address of the slot of the function; `base`: that of the first
      local variable (-1: the slot after the function); `saved`: the next instruction.
    - `step`: from one CallInfo to the previous one in an array; 0: `previous` has its address.
    - In Proto: `code`, `variables` (array of LocVar), `variable_count`."""

    function: int
    base: int
    saved: int
    step: int
    previous: int
    code: int
    variables: int
    variable_count: int


LAYOUTS = {
    "5.4": CallLayout(0, -1, 32, 0, 16, 64, 104, 36),
    "5.3": CallLayout(0, 32, 40, 0, 16, 56, 80, 36),
    "5.2": CallLayout(0, 48, 56, 0, 16, 24, 48, 100),
    "5.1": CallLayout(8, 0, 24, 40, 0, 24, 48, 92),
}


_STATUS = {"5.4": 10, "5.3": 12, "5.2": 10, "5.1": 10}
_STATUS_JIT = 11  # LuaJIT
_YIELD = b"\1"


def is_suspended(memory: Memory, version: str, thread: int) -> bool:
    """Whether a coroutine has yielded, and waits to be resumed (the member `status` of
    lua_State)."""
    return memory.read(thread + _STATUS.get(version, _STATUS_JIT), 1) == _YIELD


class Call(NamedTuple):
    """A call of a function that runs. `function` is the address of the function, `base` that of its
    first local variable, `saved` that of its next instruction."""

    function: int
    base: int
    saved: int


def list_calls(memory: Memory, layout: CallLayout, at: int) -> Iterator[Call]:
    """Yield the calls from the CallInfo at an address on, innermost first."""
    seen: set[int] = set()
    while at and at not in seen and len(seen) < MOST_CALLS:
        seen.add(at)
        slot = memory.word(at + layout.function)
        function = memory.word(slot) if slot else None
        base = slot + _SLOT if slot and layout.base < 0 else memory.word(at + layout.base)
        saved = memory.word(at + layout.saved)
        if not slot or function is None or base is None or saved is None:
            return
        yield Call(function, base, saved)
        at = at - layout.step if layout.step else memory.word(at + layout.previous) or 0


def list_locals(memory: Memory, layout: CallLayout, call: Call, proto: int) -> Iterator[tuple[int, int]]:
    """Yield the address of the name (a string of Lua), and that of the value, of each local
    variable that is alive at the next instruction."""
    code, variables = memory.word(proto + layout.code), memory.word(proto + layout.variables)
    count = memory.int32(proto + layout.variable_count)
    if not code or not variables or not count or call.saved <= code:
        return
    instruction = (call.saved - code) // _INSTRUCTION - 1
    slot = call.base
    for number in range(min(count, MOST_LOCALS)):
        found: Optional[tuple[int, ...]] = memory.members(variables + _SLOT * number, "PII")
        if found is None or found[1] > instruction:
            return
        if instruction < found[2]:
            yield found[0], slot
            slot += _SLOT


def list_finished_calls(memory: Memory, blocks: Blocks, call: int) -> Iterator[Range]:
    """Yield the members of the CallInfos that follow the innermost call of a thread, since Lua 5.2.
    Lua keeps them for further calls. Their `savedpc` is an address in the code of a function that
    has returned."""
    at = memory.word(call + _NEXT) or 0
    for _ in range(_MOST_FINISHED):
        found = blocks.lookup(at) if at else None
        if found is None or found[1] != at or found[2] < _MEMBERS:
            return
        yield Range(at + _MEMBERS, at + (found[2] & -8))
        at = memory.word(at + _NEXT) or 0


def runs_lua(memory: Memory, version: str, call: int) -> bool:
    """Return whether the function of a CallInfo is written in Lua; True if it is unknown."""
    slot = memory.word(call + LAYOUTS[version].function) or 0
    function, tag = memory.words(slot, 2) or (0, FUNCTION)
    if version == "5.1" and tag & 15 == FUNCTION:
        return memory.read(function + 10, 1) in (b"", b"\0")
    return tag & 0x3F == FUNCTION
