"""LuaJIT in a process."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.directory import Directory
from findleaks.allocators.luajit.instance import LuaJitAllocator
from findleaks.allocators.luajit.layout import STATE_CHUNK
from findleaks.allocators.memory import Memory
from findleaks.runtimes.lua.instance import Lua
from findleaks.runtimes.lua.jit_objects import JitObjects, state_at
from findleaks.runtimes.lua.layout import State
from findleaks.target.base import Target


def find_jit_states(target: Target, directory: Directory) -> list[State]:
    """Return the states of LuaJIT in a process. A state is the first block after that of its
    allocator."""
    memory, found = Memory(target), []
    for allocator in directory.allocators:
        for one in allocator.states if isinstance(allocator, LuaJitAllocator) else ():
            block = directory.blocks.lookup(one.address + STATE_CHUNK)
            state = state_at(memory, block[1], block[2]) if block is not None else None
            if state is not None:
                found.append(state)
    return found


class LuaJit(Lua):
    """LuaJIT in a process. See base.Runtime, and Lua."""

    name = "LuaJIT"
    _objects: JitObjects

    def _read_objects(self) -> JitObjects:
        return JitObjects(self._target, self._engine, self._directory, self._states)

    def interior_offsets(self) -> Sequence[tuple[int, int]]:
        """Return where functions refer to prototypes, and where FFI objects begin in blocks."""
        return sorted(self._objects.interior)
