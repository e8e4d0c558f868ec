"""Find the memory outside of slots through which Procs, Bindings, Methods, Queues, Enumerators and
StringIOs refer to objects.

A Proc refers to the receiver of its block and to the environment of the method or block whose local
variables it captured. This environment refers to the enclosing environment. Procs that were created
by the same call share an environment. A Binding refers to what a Proc refers to. A Method refers
to its receiver. A Queue refers to the Array of its elements. An Enumerator refers to its receiver,
its arguments and its fiber; a Generator to its block; a StringIO to its String.

Sources: those of closures.py; vm_core.h (rb_binding_t, which begins with a struct rb_block);
proc.c (struct METHOD), thread_sync.c (struct rb_queue), enumerator.c (struct enumerator, struct
generator) and ext/stringio/stringio.c (struct StringIO, which begins with the String and the
encoding in either order) of the same versions."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.allocators.memory import Memory
from findleaks.runtimes.ruby.closures import DEEPEST, LOCAL, TAG, TYPE_NAME, read_environment

_WITH_ENVIRONMENT = (TYPE_NAME, "binding")
_SIZES = {
    TYPE_NAME: 16,
    "binding": 16,
    "method": 8,
    "queue": 32,
    "sized_queue": 32,
    "enumerator": 32,
    "generator": 16,
    "strio": 16,
}
"""Bytes at the start of the data that contain the references, by the name of the data type. A queue
begins with its list of waiting threads and a number."""
CAPTURING = tuple(_SIZES)  # names of the data types
_EMBEDDED = 3  # value of the word before the data if the data is in the slot
_SLOT_DATA = 32  # offset in the slot of the data, or of the pointer to it


def find_captured_memory(memory: Memory, type_name: str, slot: int, flag: int, pointer: int) -> Iterator[tuple[int, int]]:
    """Yield start and size of the memory through which an object with this data type refers to
    objects. `flag` and `pointer`: the last two words of the slot's first 40 bytes."""
    data = slot + _SLOT_DATA if flag == _EMBEDDED else pointer
    captured = memory.words(data, 2) if data and data % 8 == 0 else None
    if captured is None:
        return
    if flag != _EMBEDDED:
        yield data, _SIZES[type_name]
    environment = captured[1] if type_name in _WITH_ENVIRONMENT else 0
    for _ in range(DEEPEST):
        found = read_environment(memory, environment)
        if found is None:
            return
        yield found.start, environment + 8 - found.start
        if found.flags & LOCAL:
            return
        environment = found.outer & ~TAG
