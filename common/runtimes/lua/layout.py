"""Layouts of Lua's structures by version, and the states of Lua in a process.

Sources: lstate.h (global_State, lua_State), lobject.h, ltable.h, lfunc.h of Lua 5.1.5, 5.2.4, 5.3.6
and 5.4.4, 64-bit. A state is one block: the main thread, before it the extra space from 5.3 on, and
behind it the global_State. The two refer to each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.target.base import Target
from findleaks.value_classes import NamedTuple

LIGHT, NUMBER, STRING, TABLE, FUNCTION, USERDATA, THREAD = 2, 3, 4, 5, 6, 7, 8
"""Types of objects: the four low bits of the byte at offset 8."""
C_FUNCTION = 0x20  # in the type of a function, from 5.2 on
MAIN_CHUNK = " (main chunk)"
FIXED = 0x20  # in the marks of a string that is never freed (LuaJIT, and up to 5.2)
TEXT = 24  # offset of a string's characters
MOST = 1 << 10  # blocks that are tested, and states
_SLACK = 64  # bytes by which a block may exceed the requested size
_WORD = 8


class Layout(NamedTuple):
    """Offsets in bytes.

    - `extra`: before the main thread in its block; `thread_size`: size of lua_State.
    - In lua_State: `global_state`, `call_info`, `stack`. In CallInfo: `top`.
    - In global_State: `strings`: the table of strings; `total`, `debt` (0: none), `registry`;
      `main`: the main thread; `lists`: heads of lists of objects; `cache`: start and end of a cache
      of strings. `size` is the size of global_State.
    - In Table: `array`, `node`, `metatable`, `length` (of the array), `node_size`.
    - In Proto: `line`, `source`, `upvalues` (the names), `upvalue_count`, `cached`: the last
      closure (0: none).
    - `proto` and `upvalue` are the types of these objects (0: none). `function` is the offset of
      Proto in a function of Lua."""

    version: str
    extra: int
    thread_size: int
    global_state: int
    call_info: int
    top: int  # in CallInfo
    stack: int
    strings: int
    total: int
    debt: int
    registry: int
    main: int
    lists: Sequence[int]
    cache: Sequence[int]
    size: int
    array: int
    node: int
    metatable: int
    length: int
    node_size: int
    line: int
    source: int
    upvalues: int
    upvalue_count: int
    name_step: int  # bytes from one name of an upvalue to the next
    cached: int
    proto: int
    upvalue: int
    function: int

    @property
    def has_fixed_list(self) -> bool:
        """Whether the last of `lists` has the objects that are never freed, such as the words of
        the language."""
        return self.version not in ("5.1", "5.2")


LAYOUTS = (
    Layout(
        *("5.4", 8, 200, 24, 32, 8, 48, 48, 16, 24, 64, 264, (112, 128, 176, 184), (552, 1400), 1416),
        *(16, 24, 40, 12, 24, 44, 112, 80, 16, 16, 0, 10, 9, 24),
    ),
    Layout(
        *("5.3", 8, 208, 24, 32, 8, 56, 48, 16, 24, 64, 200, (88, 104, 152, 160), (488, 1336), 1336),
        *(16, 24, 40, 12, 32, 40, 104, 88, 16, 16, 96, 9, 0, 24),
    ),
    Layout(
        *("5.2", 0, 208, 24, 32, 8, 56, 48, 16, 24, 64, 264, (96, 104, 168), (), 496),
        *(16, 24, 40, 12, 40, 104, 72, 56, 80, 16, 64, 9, 10, 24),
    ),
    Layout(
        *("5.1", 0, 184, 32, 40, 16, 64, 0, 120, 0, 160, 176, (40,), (), 432),
        *(24, 32, 16, 56, 40, 96, 64, 56, 72, 8, 0, 9, 10, 32),
    ),
)


class State(NamedTuple):
    """A state of Lua. `block` is the address of its block, `thread` that of the main thread, and
    `address` that of the global_State."""

    layout: Layout
    block: int
    thread: int
    address: int


def find_states(target: Target, blocks: Blocks) -> list[State]:
    """Return the states of Lua in a process, by address of their blocks in each version."""
    memory = Memory(target)
    found: list[State] = []
    for layout in LAYOUTS:
        least = layout.extra + layout.thread_size + layout.size
        for index in blocks.of_sizes(least, least + _SLACK, MOST):
            start = blocks.address(index)
            thread, address = start + layout.extra, start + layout.extra + layout.thread_size
            words = memory.words(thread, layout.thread_size // _WORD)
            if words is not None and words[layout.global_state // _WORD] == address and memory.word(address + layout.main) == thread:
                found.append(State(layout, start, thread, address))
    return found


def describe_place(source: str, line: Optional[int]) -> str:
    """Return file and line where a function is defined ("cache.lua:12"), or "". `source`: the name
    of the chunk, "@" and a path, or the text itself."""
    if not source or line is None:
        return ""
    name = "/".join(source[1:].split("/")[-2:]) if source.startswith("@") else source.split("\n")[0][:40]
    return f"{name}:{line}" if line else f"{name}{MAIN_CHUNK}"


def select_fixed(nodes: Iterable[int], heads: Iterable[int]) -> Iterable[int]:
    """Return the strings that are never freed, in versions up to 5.2. `heads`: the second word of
    each node, from little-endian memory."""
    return (node for node, head in zip(nodes, heads) if head >> 8 & FIXED and head & 15 == STRING)
