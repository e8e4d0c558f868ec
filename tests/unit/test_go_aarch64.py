"""Code of Go on AArch64: how it refers to variables, and how its functions use the stack."""

from __future__ import annotations

import struct
from typing import Any, Optional

import pytest

from findleaks.runtimes.go.code_frames import GoCode
from findleaks.runtimes.go.code_references import OPERANDS
from findleaks.runtimes.go.pclntab import STACK_SWITCH, TOP_FRAME, Function
from findleaks.target.arch import AARCH64, X86_64
from findleaks.unwind.cfi import Row

LINK, FRAME, PC, SP = 30, 29, 32, 31


@pytest.mark.parametrize(
    ("words", "address"),
    [
        # Encoded with the assembler of binutils, at address 0x10000: adrp x0, 0x16d000; then the instruction in the comment.
        ((0xB0000AE0, 0x9119C000), 0x16D670),  # add x0, x0, #0x670
        ((0xB0000AE0, 0x91400400), 0x16E000),  # add x0, x0, #1, lsl #12
        ((0xB0000AE0, 0xF9433801), 0x16D670),  # ldr x1, [x0, #0x670]
        ((0xB0000AE0, 0xB9067001), 0x16D670),  # str w1, [x0, #0x670]
        ((0xB0000AE0, 0x3D819C01), 0x16D670),  # str q1, [x0, #0x670]
        ((0xF0FFFFE0, 0x91000400), 0x0F001),  # adrp x0, 0xf000; add x0, x0, #1
        ((0x10000080, 0xD503201F), 0x10010),  # adr x0, 0x10010; nop
        ((0xB0000AE0, 0x9119C020), None),  # add x0, x1, #0x670: another register
        ((0xB0000AE0, 0xD503201F), None),  # nop
    ],
)
def test_pairs_that_compute_an_address(words: tuple[int, int], address: Optional[int]) -> None:
    code = struct.pack("<4I", 0xD503201F, *words, 0xD503201F)
    found = list(OPERANDS[AARCH64.name].find(code, 0xFFFC))
    assert found == ([(0x10000, address)] if address is not None else [])


class FakeTable:
    def __init__(self, function: Function, depth: int) -> None:
        self._function, self._depth = function, depth

    def find(self, pc: int) -> Function:
        return self._function

    def depth(self, pc: int) -> int:
        return self._depth


def find_row(name: str, depth: int, flag: int = 0, pc: int = 0x1000, arch: Any = AARCH64) -> Optional[Row]:
    class FakeGoroutines:
        def table_at(self, pc: int) -> FakeTable:
            return FakeTable(Function(0x1000, name, 0, flag, 0, (0, 0, 0), (), ()), depth)

    return GoCode(arch, FakeGoroutines()).row(pc)  # type: ignore[arg-type]


def rules(found: Optional[Row]) -> dict[int, tuple[str, int]]:
    assert found is not None
    return {register: (rule.how, rule.value) for register, rule in found.rules.items()}


def test_frames_of_functions() -> None:
    """The return address is at the low end of the frame. The frame pointer is below the frame."""
    plain, leaf = find_row("main.f", 64), find_row("main.leaf", 0)
    assert plain is not None and leaf is not None
    assert (plain.register, plain.offset, plain.return_register, plain.signal) == (SP, 64, LINK, False)
    assert rules(plain) == {LINK: ("offset", -64), FRAME: ("offset", -72)}
    assert (leaf.offset, leaf.return_register, rules(leaf)) == (0, LINK, {})
    on_x86 = find_row("main.f", 64, arch=X86_64)
    assert on_x86 is not None and (on_x86.offset, sorted(rules(on_x86).values())) == (72, [("offset", -16), ("offset", -8)])


def test_frames_of_functions_that_a_signal_handler_calls() -> None:
    """The link register of the interrupted function is above their frame."""
    found = find_row("runtime.asyncPreempt", 496)
    assert found is not None and (found.offset, found.return_register, found.signal) == (512, PC, True)
    assert rules(found) == {PC: ("offset", -512), LINK: ("offset", -16), FRAME: ("offset", -520)}
    at_entry = find_row("runtime.sigpanic", 0)
    assert at_entry is not None and (at_entry.offset, at_entry.signal) == (16, True)
    assert rules(at_entry) == {PC: ("register", LINK), LINK: ("offset", -16)}


def test_outermost_and_other_functions() -> None:
    goexit = find_row("runtime.goexit", 0, TOP_FRAME)
    assert goexit is not None and goexit.outermost
    assert find_row("runtime.morestack", 16, STACK_SWITCH) is None  # the unwinder follows the chain of frame pointers
    system = find_row("runtime.systemstack", 16, STACK_SWITCH, 0x1003)
    assert system is not None and (system.register, system.offset, system.switches_stack) == (FRAME, 24, True)
    assert rules(system) == {LINK: ("offset", -16), FRAME: ("offset", -24)}
    assert find_row("crosscall2", 192) is None
    started, calling = find_row("runtime.clone", 0, pc=0x1003), find_row("runtime.clone", 0)
    assert started is not None and started.outermost
    assert calling is not None and not calling.outermost
    switching = find_row("runtime.asmcgocall", 16)
    assert switching is not None and switching.switches_stack and switching.expression
