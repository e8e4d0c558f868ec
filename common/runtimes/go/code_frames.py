"""Unwind Go's functions on the stacks of threads, and name them, by the program's function table.

Stacks of threads have functions of C (cgo) between those of Go.

Sources: Go 1.18 to 1.26, src/runtime: traceback.go (unwinder.next), symtab.go (funcFlag: TOPFRAME,
SPWRITE), asm_amd64.s, asm_arm64.s (asmcgocall, cgocallback), signal_arm64.go (preparePanic,
pushCall), cgo/asm_arm64.s (crosscall2); src/cmd/internal/obj: x86/obj6.go (preprocess: a function
with a frame saves the frame pointer below its return address), arm64/obj7.go (preprocess: the
return address is at the stack pointer, and the frame pointer below it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Optional

from findleaks.runtimes.go.goroutines import CALLED_BY_C, INJECTED, SAVED_LINK, Goroutines
from findleaks.runtimes.go.pclntab import STACK_SWITCH, TOP_FRAME, Function, FunctionTable
from findleaks.target.arch import AARCH64, X86_64, Arch
from findleaks.unwind.cfi import Row, Rule
from findleaks.unwind.stacks import NamedFrame
from findleaks.value_classes import NamedTuple

_WORD = 8
# Functions that Go's unwinder takes for the outermost ones. C code calls the first in a program
# with cgo, and the kernel calls the second.
_CALLED = ("runtime.mstart", "runtime.sigtramp")
_CALLS_C = "runtime.asmcgocall"
_CALLS_C_NEXT = "runtime.asmcgocall_landingpad"  # calls C for asmcgocall on x86-64 since Go 1.22
# On AArch64, a thread without cgo begins inside this function, which saves no return address. If
# the function has called another one, `pc` is the return address minus 1, inside an instruction.
_STARTS_THREADS, _INSTRUCTION = "runtime.clone", 4
# This function calls another one on the thread's own stack. Meanwhile, on AArch64, the frame
# pointer still refers to the frame of systemstack on the goroutine's stack, one word below the
# stack pointer of that stack.
_SYSTEM_STACK = "runtime.systemstack"


class _Machine(NamedTuple):
    """How functions use the stack.

    `above`: bytes between the stack pointer at a function's entry, and that of its caller: the
    return address, if the call pushes it. `linked`: the function itself saves the return address,
    at the low end of its frame.

    asmcgocall runs C code on the thread's own stack, where it stores g, and the distance from the
    goroutine's stack pointer to the end of the goroutine's stack. `calls`: by size of the frame on
    the goroutine's stack, the offsets of g and the distance from the thread's stack pointer. If
    there was no switch, the word for g is 0, and the other one is the stack pointer. g begins with
    both ends of its stack. `unlike`: functions of Go with other frames."""

    above: int
    linked: bool
    calls: Mapping[int, tuple[int, int]]
    unlike: Sequence[str]


_MACHINES = {
    X86_64.name: _Machine(8, False, {0: (48, 40), 8: (8, 0)}, ()),  # 8: see GoCode.row
    AARCH64.name: _Machine(0, True, {16: (0, 8)}, ("crosscall2",)),
}


def _caller_of_c(stack: int, g: int, distance: int, added: int) -> bytes:
    """Return an expression for the address `added` bytes above the stack pointer of asmcgocall.
    `stack`: the number of the register with the thread's stack pointer."""
    word = (0x70 + stack, distance, 0x06)  # breg, deref
    return bytes(
        (
            *(0x70 + stack, g, 0x06, 0x12, 0x28, 7, 0),  # breg, deref (g), dup, bra 7
            *(0x13, *word, 0x2F, 7, 0),  # drop, the word, skip 7
            *(0x23, 8, 0x06, *word, 0x1C),  # plus_uconst 8, deref, the word, minus
            *(0x23, added),  # plus_uconst
        )
    )


class GoCode:
    """See CodeTable. On machines that are not in _MACHINES, functions are named, but stacks are not
    unwound."""

    def __init__(self, arch: Arch, goroutines: Goroutines) -> None:
        self._goroutines, self._machine = goroutines, _MACHINES.get(arch.name)
        self._code_of = lru_cache(None)(FunctionTable.code_of)
        names = arch.dwarf_registers
        if self._machine is not None:
            self._pc, self._stack, self._frame = (names.index(name) for name in (arch.pc, arch.sp, arch.frame_pointer))
            self._link = names.index(arch.link_register) if arch.link_register else self._pc

    def row(self, pc: int) -> Optional[Row]:
        machine = self._machine
        table = self._goroutines.table_at(pc)
        function = table.find(pc) if table is not None else None
        depth = table.depth(pc) if table is not None else None
        if machine is None or table is None or function is None or depth is None or depth < 0 or function.name in machine.unlike:
            return None
        if machine.linked and function.name == _STARTS_THREADS and pc % _INSTRUCTION:
            return Row(self._stack, return_register=self._link, rules={self._link: Rule("undefined")})
        if machine.linked and function.name == _SYSTEM_STACK and pc % _INSTRUCTION:
            rules = self._list_saved_registers(machine, depth)
            return Row(self._frame, _WORD + depth, rules=rules, return_register=self._link, switches_stack=True)
        if function.name == _CALLS_C and depth in machine.calls:
            # Go 1.21 has the frame of later versions on x86-64, and the offsets of earlier ones.
            has_next = 0 not in machine.calls or self._code_of(table, _CALLS_C_NEXT) is not None
            code = _caller_of_c(self._stack, *machine.calls[depth if has_next else 0], depth + machine.above)
            rules = self._list_saved_registers(machine, depth)
            return Row(expression=code, rules=rules, return_register=self._link, switches_stack=True)
        return self._row(machine, function, depth)

    def _row(self, machine: _Machine, function: Function, depth: int) -> Optional[Row]:
        size = depth + machine.above
        rules = self._list_saved_registers(machine, depth)
        if function.flag & STACK_SWITCH and function.name != CALLED_BY_C:
            return None
        if function.flag & TOP_FRAME and function.name not in _CALLED:
            return Row(self._stack, _WORD, return_register=self._link, rules={self._link: Rule("undefined")})
        if function.name in INJECTED and machine.linked:
            # The signal handler has saved the link register of the interrupted function.
            moved = {register: Rule("offset", rule.value - SAVED_LINK) for register, rule in rules.items()}
            returned = moved.get(self._link, Rule("register", self._link))
            rules = {**moved, self._pc: returned, self._link: Rule("offset", -SAVED_LINK)}
            return Row(self._stack, size + SAVED_LINK, return_register=self._pc, rules=rules, signal=True)
        signal = function.name == CALLED_BY_C or function.name in INJECTED
        return Row(self._stack, size, return_register=self._link, rules=rules, signal=signal)

    def _list_saved_registers(self, machine: _Machine, depth: int) -> dict[int, Rule]:
        """Return where a function saves registers of its caller, from the stack pointer of the
        caller."""
        place = -depth if machine.linked else -_WORD
        saved = {self._frame: Rule("offset", place - _WORD)} if depth else {}
        if machine.linked and not depth:
            return saved  # the return address is in the link register
        return {**saved, self._link: Rule("offset", place)}

    def names(self, pc: int, call: int) -> Sequence[NamedFrame]:
        found = self._goroutines.name(pc, pc != call)
        if found:
            return found
        table = self._goroutines.table_at(pc)
        function = table.find(call) if table is not None else None  # generated: it has no lines
        if table is None or function is None:
            return ()
        return [NamedFrame(pc, function.name, pc - function.entry, self._goroutines.file_of(table))]
