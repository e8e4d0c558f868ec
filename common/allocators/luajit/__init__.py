"""LuaJIT's allocator (lj_alloc), read without symbols.

Each state of Lua has one. It maps segments, and divides them into chunks as dlmalloc 2.8 does. Each
larger block has a separate mapping. Builds with 64-bit references (LJ_GC64) of LuaJIT 2.1 since
2020 are read: in others, objects refer to each other by 32 bits. layout.py describes the
structures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from findleaks.allocators.directory import ONLY_IN
from findleaks.allocators.images import find_modules
from findleaks.allocators.luajit.instance import LuaJitAllocator
from findleaks.allocators.luajit.layout import find_states

if TYPE_CHECKING:
    from findleaks.allocators.base import Allocator
    from findleaks.engine.contract import Engine
    from findleaks.target.base import Range, Target

NAME = "LuaJIT"


def find(target: Target, engine: Engine, taken: Sequence[Range]) -> Sequence[Allocator]:
    """Find the memory of all of LuaJIT's states. See base.Finder."""
    if target.arch.word != 8:
        return []
    states = find_states(target, engine, taken)
    return [LuaJitAllocator(target, engine, find_modules(target, ONLY_IN[__name__])[0], states, taken)] if states else []
