"""Slots of containers beyond their length: words that hold what was removed, and are no references.

A container leaves the words of an element that it hands out as they are. They refer to the element
until the slot is used again, and would hide its leak. Only containers that are proven are read: all
that their structure implies is compared. What is not sure stays a reference: one that is left out
by mistake would report a block in use as leaked.

`find_stale_slots` finds them. It costs little in a process without such containers."""

from __future__ import annotations

from collections.abc import Callable

from findleaks.debuginfo.members import Members
from findleaks.engine.contract import Blocks, Engine
from findleaks.stale_slots import rust_channels, vectors
from findleaks.stale_slots.heap_memory import HeapMemory
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merged


def find_stale_slots(target: Target, engine: Engine, blocks: Blocks, poll: Callable[[], None]) -> list[Range]:
    """The stale slots, sorted and disjoint. `poll` raises Interrupted if the user asked to stop.
    Debug information is read only where a variable looks like a vector with stale pointers."""
    memory, members = HeapMemory(target, engine, blocks, poll), Members(target)
    found = [*rust_channels.stale_slots(memory), *vectors.stale_slots(memory, members.variable)]
    return merged(Range(start + -start % memory.size, end) for start, end in found)
