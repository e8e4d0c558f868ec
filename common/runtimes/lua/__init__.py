"""Read Lua (5.1 to 5.4) and LuaJIT: objects by type, functions by file and line, and garbage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from findleaks.allocators.directory import Directory
    from findleaks.engine.contract import Engine
    from findleaks.runtimes.base import Runtime
    from findleaks.target.base import Target


def find(target: Target, engine: Engine, directory: Directory) -> Sequence[Runtime]:
    """Find Lua's states; see base.Finder."""
    if target.arch.word != 8:
        return []
    from findleaks.allocators.images import find_modules
    from findleaks.runtimes.directory import ONLY_IN
    from findleaks.runtimes.lua.instance import Lua
    from findleaks.runtimes.lua.layout import find_states

    module = find_modules(target, ONLY_IN[__name__])[0]
    if any(allocator.encodes_references for allocator in directory.allocators):
        from findleaks.runtimes.lua.jit import LuaJit, list_jit_states

        return [LuaJit(target, engine, directory, module, list_jit_states(directory))]
    states = find_states(target, directory.blocks)
    return [Lua(target, engine, directory, module, states)] if states else []
