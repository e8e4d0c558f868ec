"""List the local variables that a Proc captured.

A Proc contains the address of its environment. The local variables are before this address, in the
same order as in the instruction sequence's table of local variables. The environment of a block
refers to the environment of the method or block that contains the block.

Sources: vm_core.h (rb_proc_t, struct rb_captured_block, rb_binding_t, rb_env_t, VM_ENV_DATA_…,
struct rb_iseq_constant_body) and vm.c (vm_make_env_each) of 2.7.4, 3.1.2, 3.3.8 and 3.4.1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.ruby.census import IMEMO_MASK, IMEMO_SHIFT, IMEMOS, MASK, T_IMEMO
from findleaks.runtimes.ruby.instruction_sequences import SequenceReader
from findleaks.runtimes.ruby.symbols import Symbols, serial_number
from findleaks.runtimes.ruby.values import Values
from findleaks.target.base import Range

TYPE_NAME, BINDING = "proc", "binding"
"""Data types of Procs and of Bindings, which begin with the same structure."""

DEEPEST = 16  # maximum number of nested environments that are followed
_MOST = 256  # maximum number of local variables of an environment; methods have some dozens at most
TAG = 3  # low bits of the reference to the next environment; they are not part of its address
LOCAL = 2  # flag of the environment of a method, which refers to no other environment
_AFTER = 2  # words between the local variables and the address of the environment


class Environment(NamedTuple):
    """An environment. `number` local variables begin at `start`. `outer` is the word that refers to
    the outer environment. `sequence` is the address of the instruction sequence."""

    start: int
    number: int
    outer: int
    flags: int
    sequence: int


class Closures:
    """Reads the variables of Procs. `sequences` reads their instruction sequences."""

    def __init__(self, memory: Memory, values: Values, symbols: Symbols, sequences: SequenceReader) -> None:
        self._memory, self._values, self._symbols, self._sequences = memory, values, symbols, sequences

    def variables(self, value: int) -> Iterator[tuple[str, int, int]]:
        """Yield the variables that the Proc or Binding at this address captured: the name, the
        address of the reference, and the value. Yields nothing if there is neither. Variables
        without a name are left out."""
        for environment in self._environments(value):
            yield from self._locals(environment)

    def variables_of_frame(self, pointer: int, visited: set[int]) -> Iterator[tuple[bool, str, int, int]]:
        """Yield the local variables on the heap that the frame with this environment pointer
        reaches: its own, if a block captured them, and those of the methods and blocks around it.
        For each variable: whether it is one of the frame's own, the name, the address of the
        reference, and the value. Environments in `visited` are left out; the others are added."""
        for depth in range(DEEPEST):
            found = read_environment(self._memory, pointer)
            if found is not None and found.start not in visited:
                visited.add(found.start)
                yield from ((not depth, *one) for one in self._locals(found))
            words = self._memory.words(pointer - 8, 2) if pointer and pointer % 8 == 0 else None
            if words is None or words[1] & LOCAL:
                return
            pointer = words[0] & ~TAG

    def find_locals(self, value: int) -> Range:
        """Return the memory of the local variables in the innermost environment of the Proc or
        Binding at this address; an empty range if there is neither."""
        for found in self._environments(value):
            return Range(found.start, found.start + 8 * found.number)
        return Range(0, 0)

    def _environments(self, value: int) -> Iterator[Environment]:
        """Yield the environments of the Proc or Binding at this address, the innermost first."""
        kind, data = self._values.typed_data(value)
        captured = self._memory.words(data, 2) if kind in (TYPE_NAME, BINDING) else None
        environment = captured[1] if captured is not None else 0
        for _ in range(DEEPEST):
            found = read_environment(self._memory, environment)
            if found is None:
                return
            yield found
            if found.flags & LOCAL:
                return
            environment = found.outer & ~TAG

    def _locals(self, environment: Environment) -> Iterator[tuple[str, int, int]]:
        """Yield the local variables of an environment."""
        table = self._sequences.local_table(environment.sequence)
        ids = self._memory.words(table, environment.number) if table else None
        values = self._memory.words(environment.start, environment.number)
        for at, (number, value) in enumerate(zip(ids or (), values or ())):
            name = self._symbols.name(serial_number(number))
            if name:
                yield name, environment.start + 8 * at, value


def read_environment(memory: Memory, address: int) -> Optional[Environment]:
    """Return the environment at `address`, which is the address that a Proc contains; None if
    there is none.

    At `address - 8` there are three words: outer environment, flags, address of the imemo_env. The
    imemo_env is {flags, instruction sequence, `address`, address of the first variable, …}."""
    found = memory.words(address - 8, 3) if address and address % 8 == 0 else None
    header = found[2] if found is not None else 0
    words = memory.words(header, 4) if header and header % 8 == 0 else None
    if found is None or words is None or words[0] & MASK != T_IMEMO:
        return None
    number, rest = divmod(address - words[3], 8)
    is_environment = IMEMOS[(words[0] >> IMEMO_SHIFT & IMEMO_MASK) % len(IMEMOS)] == "env"
    if not is_environment or words[2] != address or rest or not _AFTER <= number <= _AFTER + _MOST:
        return None
    return Environment(words[3], number - _AFTER, found[0], found[1], words[1])
