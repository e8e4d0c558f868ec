"""A core in which the thread stacks were written as zeros is reported. Stacks with contents are not."""

from __future__ import annotations

from fake import FakeTarget, thread

from findleaks.audit.diagnostics import STACK_LOOK, find_blank_stacks
from findleaks.target.base import Region

ONE, TWO, THREE = 0x10000, 0x40000, 0x800000


def test_stacks_of_zeros_are_reported() -> None:
    full = bytes(0x800) + b"\1" + bytes(0x7FF)
    target = FakeTarget(
        {ONE: full, TWO: bytes(0x1000)},
        threads=[thread(1, sp=ONE + 0x400), thread(2, sp=TWO + 0x400), thread(3, sp=THREE), thread(4, sp=ONE + 0xF00)],
    )
    assert find_blank_stacks(target) == [2, 4]  # the stack of thread 3 is not in the core at all: this is reported elsewhere


def test_amount_of_examined_memory_is_limited() -> None:
    target = FakeTarget({ONE: bytes(STACK_LOOK + 0x1000) + b"\1"}, threads=[thread(1, sp=ONE)])
    assert find_blank_stacks(target) == [1]


def test_a_stack_that_overflowed_into_its_guard_page_is_not_blank() -> None:
    target = FakeTarget({ONE: bytes(0x1000)}, threads=[thread(1, sp=ONE + 0xFF0)])
    assert find_blank_stacks(target) == [1]
    target.regions = lambda: [Region(ONE, ONE + 0x1000, False, False, False)]  # type: ignore[method-assign]
    assert find_blank_stacks(target) == []
