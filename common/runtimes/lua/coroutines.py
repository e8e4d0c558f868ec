"""Names of the coroutines of Lua: where the function is defined with which a coroutine was created.

Source: lcorolib.c (auxcocreate) and lstate.c (stack_init) of Lua 5.2 to 5.4, lbaselib.c of 5.1;
lib_base.c (coroutine_create) and lj_state.c (stack_init) of LuaJIT 2.1. The first slot of a
thread's stack is unused, and the function is in the second one. LuaJIT has slots of half the size,
of which two are unused. The function stays there while the coroutine runs or is suspended."""

from __future__ import annotations

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.runtimes.lua.objects import MOST_TYPES, THREADS, Objects

COROUTINE_OF = "coroutine of "
_FIRST = 16  # bytes of the unused slots of a stack


def name_coroutines(memory: Memory, blocks: Blocks, objects: Objects) -> None:
    """Give each coroutine a type with the place of its function, if that is written in Lua."""
    numbers: dict[str, int] = {}
    for state, thread in objects.threads:
        index = blocks.find(thread) if thread != state.thread else -1
        if index < 0 or objects.found[index] != THREADS:
            continue
        stack = memory.word(thread + state.layout.stack)
        function = objects.reference(stack + _FIRST) if stack else 0
        place = objects.place_of(function) if function else ""
        if not place or (place not in numbers and len(objects.names) >= MOST_TYPES):
            continue
        if place not in numbers:
            numbers[place] = len(objects.names)
            objects.names.append(COROUTINE_OF + place)
            objects.totals.append([0, 0])
        objects.found[index] = numbers[place]
        for number, sign in ((THREADS, -1), (numbers[place], 1)):
            objects.totals[number][0] += sign
            objects.totals[number][1] += sign * blocks.size(index)
