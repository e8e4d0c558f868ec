"""Find the blocks of `trap`, each with its signal.

Source: vm_core.h (trap_list of rb_vm_t) and signal.c (trap, rb_vm_trap_exit) of 2.7.4, 3.1.2, 3.3.8
and 3.4.1. The structure of the virtual machine has an array with an entry for each signal. Entry 0
belongs to the end of the program ("EXIT"). An entry is 0, a special value such as nil, a Proc, or a
String. These Procs are the only ones to which the structure refers. The word before the array is
the address of a table, which is not an object."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence

from findleaks.allocators.memory import Memory
from findleaks.runtimes.ruby.closures import TYPE_NAME
from findleaks.runtimes.ruby.values import Values
from findleaks.target.base import Range

NAME = "blocks of trap"
_MOST_SIGNALS = 65  # entries of the array
_SPECIAL = 0x100  # nil, true, false and the undefined value are smaller


def find_signal_blocks(
    memory: Memory, values: Values, machines: Sequence[Range], is_slot: Callable[[int], bool]
) -> Iterator[tuple[str, int, int]]:
    """Yield for each Proc a name with its signal, the address of the reference, and the Proc.
    `machines`: the structures of virtual machines. `is_slot` tells whether an object begins at an
    address."""

    def is_entry(word: int) -> bool:
        return word < _SPECIAL or (word % 8 == 0 and is_slot(word))

    for start, end in machines:
        words = memory.words(start, (end - start) // 8) or ()
        procs = [at for at, word in enumerate(words) if word >= _SPECIAL and is_entry(word) and values.typed_data(word)[0] == TYPE_NAME]
        before = next((at for at in range(procs[0] - 1, -1, -1) if not is_entry(words[at])), 0) if procs else 0
        for at in procs:
            yield _name(at - before - 1), start + 8 * at, words[at]


def _name(number: int) -> str:
    """Return the name of the block for a signal, as Ruby's `Signal.list` names signals."""
    if number == 0:
        return "block of trap EXIT"
    try:
        name = signal.Signals(number).name if number < _MOST_SIGNALS else ""
    except ValueError:  # real-time signals have no names of their own
        name = f"SIG{number}"
    return f"block of trap {name[3:]}" if name else NAME
