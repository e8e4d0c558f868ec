"""Unwind the stack of a thread, from its registers to its start function."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.errors import UnreadableMemory
from findleaks.target.arch import AARCH64, I386, X86_64
from findleaks.target.base import MappedMemory, Module, Range, Region, Thread
from findleaks.unwind.cfi import FrameTable, Malformed, Row, Rule
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.unwind.arm import ArmRows
    from findleaks.unwind.code_tables import CodeTable

DEEPEST = 4096  # maximum number of frames of one thread
CALL_BYTES = 7  # maximum number of bytes of a call instruction of x86
STACK_TOP = 2048  # bytes at the upper end of a stack that are searched for its outermost frames
_NO_NUMBER = -1  # number of a register without a DWARF number
_SYSCALL = b"\x0f\x05"  # instruction of x86-64


def follows_call(code: bytes) -> bool:
    """Whether these CALL_BYTES bytes of x86 code end in a call: E8 with a 32-bit offset, or FF /2
    of two to seven bytes."""
    return code[2] == 0xE8 or any(code[at] == 0xFF and code[at + 1] >> 3 & 7 == 2 for at in range(CALL_BYTES - 1))


def is_return_address(target: MappedMemory, address: int) -> bool:
    """Whether this address follows a call instruction of x86 or AArch64."""
    try:
        if target.arch.name in (X86_64.name, I386.name):
            return follows_call(target.read(address - CALL_BYTES, CALL_BYTES))
        call = int.from_bytes(target.read(address - 4, 4), "little") if target.arch.name == AARCH64.name else 0
    except UnreadableMemory:
        return False
    return call & 0xFC000000 == 0x94000000 or call & 0xFFFFFC1F == 0xD63F0000  # bl, blr


class Frame(NamedTuple):
    """A stack frame. `pc` is the address at which it continues. `call` is the address used to name
    the function: in a caller, an address inside the call instruction. `sp` is the lowest address of
    its part of the stack. `how` is the source of the frame: "top", "cfi", "frame pointer", "return
    address" or "runtime"."""

    pc: int
    call: int
    sp: int
    how: str


class Trace(NamedTuple):
    """Frames of a thread, innermost first; at least one. `end` explains why the outermost frame is
    missing; "" if it is not missing."""

    frames: tuple[Frame, ...]
    end: str


class CodeStep(NamedTuple):
    """Result of unwinding a frame of code that a runtime generated: the registers of its caller, by
    DWARF number. None if the frame cannot be read; `end` then states the reason."""

    caller: Optional[dict[int, int]]
    end: str = ""


StepCode = Callable[[int, bool, Mapping[int, int]], Optional[CodeStep]]
"""Unwinds a frame of code that a runtime generated. Arguments are the pc, whether the frame was
interrupted there (otherwise it is a return address), and the registers. None if the code is not the
runtime's."""


class FrameRegisters(NamedTuple):
    """Register values (by DWARF number) in a frame, at its call. `own` are the registers that the
    function of this frame saved; the values of all others belong to outer frames. None if
    unknown."""

    registers: Mapping[int, int]
    own: Optional[frozenset[int]]


class Unwinder:
    """Unwinds the threads of one target. Modules are cached. Code without call frame information,
    such as V8's builtins and JIT code, must maintain the chain of frame pointers, unless one of
    `steps` unwinds it."""

    def __init__(self, target: MappedMemory, tables: Sequence[CodeTable] = (), steps: Sequence[StepCode] = ()) -> None:
        """`tables`: descriptions of code, which take precedence over call frame information.
        `steps`: functions that unwind code without a description."""
        self.target, self.code_tables, self._steps = target, tables, steps
        self._names = target.arch.dwarf_registers
        arch = target.arch
        self._pc = self._names.index(arch.pc) if arch.pc in self._names else _NO_NUMBER
        self._sp, self._fp = self._names.index(arch.sp), self._names.index(arch.frame_pointer)
        self._known = {number for number, name in enumerate(self._names) if name}
        self._link = self._names.index(arch.link_register) if arch.link_register else _NO_NUMBER
        self._modules = sorted(target.modules(), key=lambda module: module.start)
        self._starts = [module.start for module in self._modules]
        self._regions = list(target.regions())
        self._region_starts = [region.start for region in self._regions]
        # Return addresses may have a signature (Arm pointer authentication) in bits above those
        # that any mapping uses.
        top = self._regions[-1].end - 1 if self._regions else target.arch.mask
        self._link_mask = (1 << top.bit_length()) - 1
        self.code_mask = self._link_mask & arch.code_bits
        self._tables: dict[int, FrameTable] = {}
        self._arm: Optional[ArmRows] = None
        if arch.own_unwind_tables:
            from findleaks.unwind.arm import ArmRows

            self._arm = ArmRows(target, self.module, self.executable)
        self._status = self._names.index("cpsr") if self._arm is not None else _NO_NUMBER
        self._rows: dict[int, Optional[Row]] = {}

    def trace(self, thread: Thread) -> Trace:
        """Unwind a thread's stack, at most DEEPEST frames."""
        return self.trace_with_registers(thread, [])

    def trace_with_registers(self, thread: Thread, kept: list[FrameRegisters], most: int = DEEPEST) -> Trace:
        """Unwind a thread's stack, at most `most` frames. `kept` receives the registers of each
        frame."""
        registers = {number: thread.registers[name] for number, name in enumerate(self._names) if name in thread.registers}
        pc, sp = thread.pc, thread.sp
        frames = [Frame(pc, pc, sp, "top")]
        exact = True  # this frame was interrupted, so pc is not a return address
        interrupted = self._restore_interrupted(pc, registers)
        while len(frames) < most:
            row = self._row(pc, exact, registers) if interrupted is None else None
            kept.append(FrameRegisters(registers, frozenset(row.rules) if row is not None else None))
            if row is not None and row.outermost:
                return Trace(tuple(frames), "")
            generated = self._by_code(pc, exact, registers) if row is None and interrupted is None and self._steps else None
            if generated is not None and generated.caller is None:
                return Trace(tuple(frames), generated.end)
            if interrupted is not None:
                step: Optional[tuple[dict[int, int], str]] = (interrupted, "cfi")
            elif generated is not None and generated.caller is not None:
                step = generated.caller, "runtime"
            else:
                step = self._by_row(row, registers) if row is not None else self._by_chain(registers, pc, exact)
            if step is None and row is None and not exact and self._outermost(registers):
                return Trace(tuple(frames), "")
            if step is None:
                missing = f"no unwind information for {pc:#x}"
                if self._arm is not None and self._arm.lacks:
                    missing = f"code without unwind tables cannot be unwound: {self._arm.lacks}"
                return Trace(tuple(frames), missing)
            caller, how = step
            signal = interrupted is not None or (row is not None and row.signal)
            pc, after = caller.pop(self._pc, 0), caller[self._sp]
            if not pc and how != "return address":
                return Trace(tuple(frames), "")
            if not self.executable(pc):
                return Trace(tuple(frames), f"the return address {pc:#x} is not code")
            # A function that was interrupted before it saved the return address has no frame yet.
            is_frameless = exact and (self._link != _NO_NUMBER or how == "runtime")
            least = registers[self._sp] + (0 if is_frameless else 1)
            if after < least and not signal and not (row is not None and row.switches_stack):
                return Trace(tuple(frames), f"the caller's stack pointer {after:#x} is below the callee's")
            exact, registers = signal, caller
            interrupted = self._restore_interrupted(pc, registers)
            frames.append(Frame(pc, pc if exact or interrupted is not None else pc - 1, after, how))
        kept.append(FrameRegisters(registers, frozenset()))
        return Trace(tuple(frames), f"more than {most:,} frames")

    def _by_code(self, pc: int, exact: bool, registers: Mapping[int, int]) -> Optional[CodeStep]:
        """Unwind a frame of code that a runtime generated; None for other code."""
        return next((found for step in self._steps if (found := step(pc, exact, registers)) is not None), None)

    def _restore_interrupted(self, pc: int, registers: Mapping[int, int]) -> Optional[dict[int, int]]:
        """Return the registers of the code that a signal interrupted, if `pc` is the address to
        which the signal handler returns; otherwise None. Also None on machines where call frame
        information describes this address (Arch.signal_returns is empty)."""
        arch = self.target.arch
        names = arch.signal_order or self._names
        try:
            at = next((at for code, at in arch.signal_returns if self.target.read(pc, len(code)) == code), None)
            if at is None:
                return None
            saved = arch.unpack(self.target.read(registers[self._sp] + at, len(names) * arch.word))
        except UnreadableMemory:
            return None
        found = {self._names.index(name): value for name, value in zip(names, saved) if name in self._names}
        return {**found, self._pc: saved[names.index(arch.pc)]}

    def _row(self, pc: int, exact: bool, registers: dict[int, int]) -> Optional[Row]:
        """Return the unwind row of a frame. `exact` means that its `pc` is not a return address."""
        row = self.row(pc if exact else pc - 1)
        if row is not None or self._arm is None:
            return row
        from findleaks.unwind.arm import THUMB

        thumb = registers.get(self._status, 0) & THUMB if exact else registers.get(self._link, 0) & 1

        def find_return(row: Row) -> Optional[int]:
            caller = self._step(row, registers)
            return caller.get(self._link) if caller is not None and caller[self._sp] >= registers[self._sp] else None

        return self._arm.row(pc, exact, bool(thumb), find_return)

    def row(self, pc: int) -> Optional[Row]:
        """Return the call frame information at `pc`, cached."""
        if pc not in self._rows:
            described = next(filter(None, (table.row(pc) for table in self.code_tables)), None)
            if described is not None:
                self._rows[pc] = described
                return described
            module = self.module(pc)
            self._rows[pc] = self._table(module).row(pc) if module is not None else None
        return self._rows[pc]

    def module(self, address: int) -> Optional[Module]:
        at = bisect_right(self._starts, address) - 1
        return self._modules[at] if at >= 0 and address < self._modules[at].end else None

    def executable(self, address: int) -> bool:
        region = self._region(address)
        return region is not None and region.executable

    def extent(self, pc: int) -> Optional[Range]:
        """Return the range of the call frame information at `pc`, usually its function."""
        module = self.module(pc)
        return self._table(module).extent(pc) if module is not None else None

    def previous_extent(self, pc: int) -> Optional[Range]:
        """Return the range of the entry that precedes the entry for `pc` in .eh_frame. If GCC moved
        a part of a function to `pc`, this is the function. None if it is unknown."""
        module = self.module(pc)
        if module is None:
            return None
        # Imported late: seldom needed
        from findleaks.unwind.moved_parts import find_previous_extent

        return find_previous_extent(self._table(module), pc)

    def handles_exceptions(self, pc: int) -> bool:
        """Whether the function at `pc` may have exception handlers; True if unknown."""
        module = self.module(pc)
        return module is None or self._table(module).handles_exceptions(pc)

    def landing_pads(self, pc: int) -> Optional[frozenset[int]]:
        """Return the addresses at which the function at `pc` continues after exceptions; None if
        they are unknown."""
        module = self.module(pc)
        table = self._table(module).handler_table(pc) if module is not None else None
        extent = self.extent(pc)
        if table is None or extent is None:
            return None
        from findleaks.unwind.landing_pads import read_landing_pads  # imported late: seldom needed

        return read_landing_pads(self.target, table, extent.start) if table else frozenset()

    def _table(self, module: Module) -> FrameTable:
        if module.start not in self._tables:
            table = FrameTable(self.target, module)
            if not table.count:
                # Imported late: seldom needed
                from findleaks.unwind.headerless import HeaderlessTable

                table = HeaderlessTable(self.target, module)
            self._tables[module.start] = table
        return self._tables[module.start]

    def _region(self, address: int) -> Optional[Region]:
        at = bisect_right(self._region_starts, address) - 1
        return self._regions[at] if at >= 0 and address in self._regions[at] else None

    def _stack(self, sp: int) -> Range:
        region = self._region(sp)
        return Range(region.start, region.end) if region is not None else Range(sp, sp)

    def _by_row(self, row: Row, registers: dict[int, int]) -> Optional[tuple[dict[int, int], str]]:
        """Unwind one frame with call frame information. None if there is no caller, or if memory is
        missing."""
        caller = self._step(row, registers)
        return (caller, "cfi") if caller is not None else None

    def _step(self, row: Row, registers: dict[int, int]) -> Optional[dict[int, int]]:
        arch = self.target.arch
        try:
            if row.expression:
                frame = self._evaluate(row.expression, registers)
            elif row.register in registers:
                frame = (registers[row.register] + row.offset) & arch.mask
            else:
                return None
            caller = dict(registers)
            caller.pop(self._pc, None)
            caller[self._sp] = frame - arch.frame_distance & arch.mask
            for register, rule in row.rules.items():
                if register not in self._known and register != row.return_register:
                    continue  # vector registers, whose rules may be long
                value = self._value(rule, frame, registers)
                if value is None:
                    caller.pop(register, None)
                else:
                    caller[register] = value
            if row.return_register != self._pc and row.return_register in caller:  # a link register
                caller[row.return_register] &= self._link_mask
                caller[self._pc] = caller[row.return_register] & self.code_mask
            return caller if self._pc in caller else None
        except (UnreadableMemory, Malformed):
            return None

    def _value(self, rule: Rule, frame: int, registers: dict[int, int]) -> Optional[int]:
        mask = self.target.arch.mask
        if rule.how == "offset":
            return self.target.word((frame + rule.value) & mask)
        if rule.how == "value":
            return (frame + rule.value) & mask
        if rule.how == "register":
            return registers.get(rule.value)
        if rule.how in ("saved", "is"):
            value = self._evaluate(rule.expression, registers, frame)
            return self.target.word(value) if rule.how == "saved" else value
        return None

    def _evaluate(self, expression: bytes, registers: dict[int, int], *stack: int) -> int:
        from findleaks.unwind.expression import evaluate  # imported here: few frames need it

        arch = self.target.arch
        return evaluate(expression, arch.word, arch.byteorder, registers.get, self.target.word, stack)

    def _above(self, least: int, outer: int, returns: int) -> int:
        """Return the stack pointer of a caller. `least` is the address above the saved frame
        pointer and return address, and `outer` is the caller's frame pointer. On x86 the result is
        `least`. On machines with a link register, local variables lie between the saved registers
        and the caller's stack pointer. The stack pointer is needed only if the caller's call frame
        information uses it. This is the case in code by GCC, which saves the frame pointer at the
        lower end of a frame. Therefore the result is `outer`."""
        row = self.row(returns - 1) if self._link != _NO_NUMBER else None
        return outer if row is not None and row.register == self._sp and not row.expression and outer > least else least

    def _outermost(self, registers: dict[int, int]) -> bool:
        """Return whether the chain ends here, because _start has a frame pointer of 0 (System V
        ABI, AMD64 supplement 1.0, 3.4.1)."""
        if self._arm is not None:
            return False
        if self.target.arch.back_chain:
            try:
                return self.target.word(registers[self._sp]) == 0
            except UnreadableMemory:
                return False
        return registers.get(self._fp) == 0

    def _is_at_clone(self, pc: int, sp: int) -> bool:
        """Whether `pc` follows the system call of glibc's clone or clone3 for x86-64, in the thread
        that called this function. Its call frame information ends before the system call; up to
        there, the return address is on top of the stack. On the stack of the new thread, the word
        on top is not the address after a call."""
        target, call = self.target, pc - len(_SYSCALL)
        if target.arch.name != X86_64.name:
            return False
        row, extent = self.row(call - 1), self.extent(call - 1)
        if row is None or extent is None or extent.end != call:
            return False
        if row.expression or (row.register, row.offset) != (self._sp, target.arch.word):
            return False
        try:
            returns = target.word(sp)
            is_call = target.read(call, len(_SYSCALL)) == _SYSCALL
            return is_call and self.executable(returns) and is_return_address(target, returns)
        except UnreadableMemory:
            return False

    def _by_chain(self, registers: dict[int, int], pc: int, exact: bool) -> Optional[tuple[dict[int, int], str]]:
        """Unwind one frame without call frame information.
        The return address is on top of the stack after a call to an invalid address, and at the
        system call of clone and clone3. JIT code maintains the chain of frame pointers, or of stack
        pointers (Arch.back_chain)."""
        word, sp, link = self.target.arch.word, registers[self._sp], self._link
        try:
            if exact and not self.executable(pc):
                if link != _NO_NUMBER:
                    return {**registers, self._pc: registers.get(link, 0) & self.code_mask}, "return address"
                return {**registers, self._pc: self.target.word(sp), self._sp: sp + word}, "return address"
            if exact and self._is_at_clone(pc, sp):
                return {**registers, self._pc: self.target.word(sp), self._sp: sp + word}, "return address"
            if self.target.arch.back_chain:
                outer = self.target.word(sp)
                returns = self.target.word(outer + self.target.arch.back_chain) & self.code_mask
                return ({**registers, self._sp: outer, self._pc: returns}, "frame pointer") if outer else None
            frame = registers.get(self._fp, 0)
            stack = self._stack(sp)
            record = self.target.arch.frame_record
            if record is None or not sp <= frame + record < stack.end - word or frame % word:
                return None
            frame += record
            outer, returns = self.target.word(frame), self.target.word(frame + word) & self.code_mask
            return {self._fp: outer, self._sp: self._above(frame + 2 * word, outer, returns), self._pc: returns}, "frame pointer"
        except UnreadableMemory:
            return None
