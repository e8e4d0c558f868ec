"""Find the memory outside of slots through which Procs and Methods refer to objects.

A Proc refers to the receiver of its block and to the environment of the method or block whose local
variables it captured. This environment refers to the enclosing environment. Procs that were created
by the same call share an environment. A Method refers to its receiver.

Sources: those of closures.py, and proc.c (struct METHOD) of the same versions."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.allocators.memory import Memory
from findleaks.runtimes.ruby.closures import DEEPEST, LOCAL, TAG, TYPE_NAME, read_environment

CAPTURING = (TYPE_NAME, "method")  # names of the data types
_EMBEDDED = 3  # value of the word before the data if the data is in the slot
_SLOT_DATA = 32  # offset in the slot of the data, or of the pointer to it
_RECEIVER, _CAPTURED = 8, 16  # bytes of the receiver; of the receiver and the environment's address


def find_captured_memory(memory: Memory, type_name: str, slot: int, flag: int, pointer: int) -> Iterator[tuple[int, int]]:
    """Yield start and size of the memory through which an object with this data type refers to
    objects. `flag` and `pointer`: the last two words of the slot's first 40 bytes."""
    data = slot + _SLOT_DATA if flag == _EMBEDDED else pointer
    captured = memory.words(data, 2) if data and data % 8 == 0 else None
    if captured is None:
        return
    is_proc = type_name == TYPE_NAME
    if flag != _EMBEDDED:
        yield data, _CAPTURED if is_proc else _RECEIVER
    environment = captured[1] if is_proc else 0
    for _ in range(DEEPEST):
        found = read_environment(memory, environment)
        if found is None:
            return
        yield found.start, environment + 8 - found.start
        if found.flags & LOCAL:
            return
        environment = found.outer & ~TAG
