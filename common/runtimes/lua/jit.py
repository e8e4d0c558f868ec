"""LuaJIT in a process."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.directory import Directory
from findleaks.allocators.luajit.instance import LuaJitAllocator
from findleaks.runtimes.lua.instance import Lua
from findleaks.runtimes.lua.jit_objects import LAYOUT, JitObjects
from findleaks.runtimes.lua.layout import State


def list_jit_states(directory: Directory) -> list[State]:
    """Return the states of LuaJIT in a process."""
    allocators = (one for one in directory.allocators if isinstance(one, LuaJitAllocator))
    return [State(LAYOUT, one.thread, one.thread, one.globals) for allocator in allocators for one in allocator.states]


class LuaJit(Lua):
    """LuaJIT in a process. See base.Runtime, and Lua."""

    name = "LuaJIT"
    _objects: JitObjects

    def _read_objects(self) -> JitObjects:
        return JitObjects(self._target, self._engine, self._directory, self._states)

    def interior_offsets(self) -> Sequence[tuple[int, int]]:
        """Return where functions refer to prototypes, and where FFI objects begin in blocks."""
        return sorted(self._objects.interior)
