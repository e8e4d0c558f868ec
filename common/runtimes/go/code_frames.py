"""Unwind Go's functions on the stacks of threads, and name them, by the program's function table.

Stacks of threads have functions of C (cgo) between those of Go.

Sources: Go 1.18 to 1.26, src/runtime: traceback.go (unwinder.next), symtab.go (funcFlag: TOPFRAME,
SPWRITE), asm_amd64.s (asmcgocall, cgocallback), src/cmd/internal/obj/x86/obj6.go (preprocess: a
function with a frame saves the frame pointer below its return address)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.runtimes.go.goroutines import CALLED_BY_C, Goroutines
from findleaks.runtimes.go.pclntab import STACK_SWITCH, TOP_FRAME
from findleaks.target.arch import X86_64, Arch
from findleaks.unwind.cfi import Row, Rule
from findleaks.unwind.stacks import NamedFrame

_RETURN, _FRAME, _STACK = "rip", "rbp", "rsp"
# Functions that Go's unwinder takes for the outermost ones. C code calls the first in a program
# with cgo, and the kernel calls the second.
_CALLED = ("runtime.mstart", "runtime.sigtramp")

# asmcgocall runs C code on the thread's own stack, where it has stored the distance from the
# goroutine's stack pointer to the end of the goroutine's stack, and g. If there was no switch, the
# word for g is 0, and the other one is the stack pointer. g begins with both ends of its stack.
# Since 1.21, these are the lowest words, and the function saves the frame pointer.
_CALLS_C = "runtime.asmcgocall"
_DEPTHS = {0: 40, 8: 0}  # bytes on the goroutine's stack, and the offset of the distance


def _caller_of_c(at: int, depth: int) -> bytes:
    """Return an expression for the address above the return address."""
    return bytes(
        (
            *(0x77, at + 8, 0x06, 0x12, 0x28, 7, 0),  # breg7, deref (g), dup, bra 7
            *(0x13, 0x77, at, 0x06, 0x2F, 7, 0),  # drop, breg7, deref, skip 7
            *(0x23, 8, 0x06, 0x77, at, 0x06, 0x1C),  # plus_uconst 8, deref, breg7, deref, minus
            *(0x23, depth + 8),  # plus_uconst
        )
    )


class GoCode:
    """See CodeTable. Frames are unwound on x86-64; on other machines, functions are named only."""

    def __init__(self, arch: Arch, goroutines: Goroutines) -> None:
        self._goroutines, self._has_rows = goroutines, arch.name == X86_64.name
        names = arch.dwarf_registers
        if self._has_rows:
            self._return, self._frame, self._stack = (names.index(name) for name in (_RETURN, _FRAME, _STACK))

    def row(self, pc: int) -> Optional[Row]:
        table = self._goroutines.table_at(pc)
        function = table.find(pc) if table is not None else None
        depth = table.depth(pc) if table is not None else None
        if function is None or depth is None or depth < 0 or not self._has_rows:
            return None
        rules = {self._return: Rule("offset", -8)}
        if function.name == _CALLS_C and depth in _DEPTHS:
            rules.update({self._frame: Rule("offset", -16)} if depth else {})
            code = _caller_of_c(_DEPTHS[depth], depth)
            return Row(expression=code, rules=rules, return_register=self._return, switches_stack=True)
        if function.flag & STACK_SWITCH and function.name != CALLED_BY_C:
            return None
        if function.flag & TOP_FRAME and function.name not in _CALLED:
            return Row(self._stack, 8, return_register=self._return, rules={self._return: Rule("undefined")})
        if depth >= 8:
            rules[self._frame] = Rule("offset", -16)
        return Row(self._stack, depth + 8, return_register=self._return, rules=rules, signal=function.name == CALLED_BY_C)

    def names(self, pc: int, call: int) -> Sequence[NamedFrame]:
        found = self._goroutines.name(pc, pc != call)
        if found:
            return found
        table = self._goroutines.table_at(pc)
        function = table.find(call) if table is not None else None  # generated: it has no lines
        return [NamedFrame(pc, function.name, pc - function.entry, self._goroutines.file)] if function is not None else ()
