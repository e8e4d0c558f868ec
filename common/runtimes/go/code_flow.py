"""What the machine code of a function shows of the values in registers and on the stack. See
code_types.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional

from findleaks.runtimes.go import machine_code as code
from findleaks.runtimes.go.engine import NONE
from findleaks.runtimes.go.machine_code import Step
from findleaks.value_classes import NamedTuple

_MOST_ORIGINS = 4  # of a value with known offsets
ANYWHERE = -1  # an unknown offset

Origin = tuple[int, int]
"""A register of an argument, and an offset, or ANYWHERE: the argument plus this offset."""


class Value(NamedTuple):
    """What is known of a word. `object`: the type value of the object to which it points, or NONE.
    `number`: its value, if it is a constant. `place`: the variable (its address) or the word of the
    stack (its offset from the frame's end, negative or small) from which it was loaded. `origins`:
    what it may be, among other values."""

    object: int = NONE
    number: Optional[int] = None
    place: Optional[int] = None
    origins: frozenset[Origin] = frozenset()

    def plus(self, offset: int) -> Value:
        """Return the sum of this value and a number."""
        number = self.number + offset if self.number is not None else None
        origins = ((register, at if at == ANYWHERE else at + offset) for register, at in self.origins)
        return Value(number=number, origins=frozenset(origins))


class CodeTypes(NamedTuple):
    """What the code of one function proves. `slots`: the type value of the object to which a word
    of the function's frame refers, by the word's offset from the end of the frame. `variables`: the
    type value of the object to which a variable refers, by address; NONE if the code may store
    other objects in this variable. `closures`: the type value of closures, by address of their
    function. `result`: the type value of the object to which the first result refers, or NONE.
    `calls`: the arguments of direct calls, by return address.

    `stores`: the type value of the objects that the function stores where an argument points, or
    NONE. `escaped`: registers of arguments that the function stores, or passes to unknown code.
    `is_known`: whether `stores` and `escaped` are complete."""

    slots: Mapping[int, int]
    variables: Mapping[int, int]
    closures: Mapping[int, int]
    result: int
    calls: Mapping[int, Call]
    stores: Mapping[Origin, int] = {}
    escaped: frozenset[int] = frozenset()
    is_known: bool = False


class Call(NamedTuple):
    """A direct call of a function, and the type values of the objects to which its arguments refer,
    by register."""

    function: int
    arguments: tuple[tuple[int, int], ...]


State = dict[tuple[bool, int], Value]
"""What is known at a step: the values of registers (False, number), and of words of the stack
(True, offset from the frame's end)."""


UNKNOWN = Value()


def split_code(steps: Sequence[Step]) -> dict[int, tuple[list[Step], list[int]]]:
    """Return, by address, parts of code that are executed from their start to their end, and the
    addresses of the parts that may follow."""
    targets = {step.number for step in steps if step.kind in (code.BRANCH, code.JUMP)}
    parts: dict[int, tuple[list[Step], list[int]]] = {}
    part: list[Step] = []
    before = None
    for step in steps:
        is_new = before is None or (before.kind in (code.BRANCH, code.JUMP, code.END, code.UNKNOWN_JUMP) and before.address != step.address)
        if is_new or (step.address in targets and step.address not in parts):
            if before is not None and before.kind not in (code.JUMP, code.END, code.UNKNOWN_JUMP):
                parts[part[0].address][1].append(step.address)
            part = []
            parts[step.address] = part, []
        part.append(step)
        if step.kind in (code.BRANCH, code.JUMP):
            parts[part[0].address][1].append(step.number)
        before = step
    return parts


def merge_states(first: State, second: State) -> State:
    """Return what is known in both states."""
    merged: State = {}
    for key, one in first.items():
        other = second.get(key, UNKNOWN)
        value = one if other is one else _merge(one, other)  # most values are the same
        if value != UNKNOWN:
            merged[key] = value
    merged |= {key: Value(origins=one.origins) for key, one in second.items() if one.origins and key not in first}
    return merged


def _merge(one: Value, other: Value) -> Value:
    """Return what is known of a value that is one of two. A reference may also be nil."""
    origins = one.origins | other.origins
    if len(origins) > _MOST_ORIGINS:
        origins = frozenset((register, ANYWHERE) for register, _ in origins)
    first, second = one._replace(origins=origins), other._replace(origins=origins)
    if first == second or (other.number == 0 and one.object != NONE):
        return first
    if one.number == 0 and other.object != NONE:
        return second
    return Value(one.object if one.object == other.object else NONE, origins=origins)
