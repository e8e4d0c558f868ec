"""Decide whether the code computed an index as the difference of two numbers, such as length - back
(x86-64).

The difference of two pointers is not an index: memcmp() adds it to one of its arguments. Both
operands of the last subtraction must be known, and neither may be an address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from findleaks.audit.crash.straight_code import StraightCode
from findleaks.audit.crash.value_origin import Tracer
from findleaks.disasm.instruction import NONE
from findleaks.disasm.registers import RBP, RSP

_MASK = (1 << 64) - 1
_DEEPEST = 6  # maximum number of copies and additions after the subtraction


def is_difference_of_numbers(tracer: Tracer, level: int, register: int, may_be_pointer: Callable[[int], bool]) -> bool:
    """Whether the value of a register at the place of a frame is such a difference, to which the
    address of an array may have been added."""
    code = tracer.code(level)
    return code is not None and _Follower(tracer, level, code, may_be_pointer).follow(len(code.steps) - 1, register, _DEEPEST)


class _Follower:
    def __init__(self, tracer: Tracer, level: int, code: StraightCode, may_be_pointer: Callable[[int], bool]) -> None:
        self._tracer, self._level, self._code, self._may_be_pointer = tracer, level, code, may_be_pointer

    def follow(self, at: int, register: int, depth: int) -> bool:
        """Like is_difference_of_numbers, for the value before instruction `at`."""
        steps = self._code.steps
        last = next((index for index in range(at - 1, -1, -1) if steps[index].changed & 1 << register), None)
        if last is None or not depth:
            return False
        one = steps[last].code
        if one.destination != register or not one.wide or steps[last].effect.flow == "call":
            return False
        if one.name == "sub":
            return self._subtracts_number(last, register)
        if one.name == "mov" and one.displacement is None and one.source >= 0:
            return self.follow(last, one.source, depth - 1)
        if one.name == "add" and one.displacement is None and one.source >= 0:
            return self._adds_array(last, register, one.source, depth)
        if one.loads and one.base in (RBP, RSP) and one.scaled == NONE and not one.fs:
            stored = self._tracer.find_store(self._level, self._code, last)
            return stored is not None and self.follow(stored, steps[stored].code.source, depth - 1)
        return False

    def _adds_array(self, last: int, register: int, source: int, depth: int) -> bool:
        """Follow the summand of the addition `last` that is not the address of an array."""
        for index, array in ((register, source), (source, register)):
            address = self._value(last, array)
            if address is not None and self._may_be_pointer(address):
                return self.follow(last, index, depth - 1)
        return False

    def _subtracts_number(self, last: int, register: int) -> bool:
        one = self._code.steps[last].code
        if one.immediate is not None:
            less: Optional[int] = one.immediate
        elif one.displacement is not None:
            less = self._tracer.read_operand(self._level, self._code, last)
        else:
            less = self._value(last, one.source) if one.source >= 0 and self._has_origin(last, one.source) else None
        more = self._value(last, register)
        numbers = [value for value in (less, more) if value is not None and not self._may_be_pointer(value & _MASK)]
        return len(numbers) == 2 and self._has_origin(last, register)

    def _has_origin(self, at: int, register: int) -> bool:
        return self._tracer.origin_before(self._level, self._code, at, register) is not None

    def _value(self, at: int, register: int) -> Optional[int]:
        return self._tracer.value_before(self._level, self._code, at, register)
