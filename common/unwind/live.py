"""Find live registers and red zone bytes: those that a thread, or a frame interrupted by a signal,
may read again.

The analysis starts at the program counter, and continues at return addresses, frame by frame, as
far as needed. In addition to the code, it uses three facts:

- Callers of another module's functions keep nothing in caller-saved registers across the call
  (System V ABI, AMD64 supplement 1.0, 3.2.1; AAPCS64 2023Q3, 6.1). Within a module, gcc may keep
  values in registers that the callee does not change (-fipa-ra). TLS descriptors and a few
  functions of libc preserve all registers, and vector functions preserve some.
- libc functions that make a system call neither receive, return nor pass on values in vector
  registers, and return at most one general register.
- sigreturn loads every register from the signal frame."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from types import ModuleType

from findleaks.disasm.effects import ALL_ZONE, X86_64, ZONE, ZONE_AT
from findleaks.disasm.liveness import Liveness
from findleaks.disasm.machine import Effect, Machine
from findleaks.disasm.registers import GENERAL
from findleaks.disasm.system_calls import RESTARTED, argument_mask
from findleaks.errors import UnreadableMemory
from findleaks.target import arch
from findleaks.target.base import Range, Symbol, Target, Thread
from findleaks.target.encoded_numbers import decode_signed
from findleaks.target.signal_words import SIGINFO, SIGRETURN
from findleaks.unwind.frames import Frame, FrameRegisters, Unwinder
from findleaks.unwind.slots import MOST_FRAMES, FrameSlots
from findleaks.value_classes import NamedTuple

_STUB_BYTES = 20  # bytes of the longest stub of a procedure linkage table
_NEAREST = 3  # frames unwound at first: most threads sleep a few calls deep in libc
_DEEPEST = 64

_LIBC = re.compile(r"(libc|libpthread|librt|ld)[-.][\w.-]*so[\w.]*|ld-linux-x86-64\.so\.2")
_KEEPING = {"mcount", "_mcount", "__fentry__", "__morestack", "_dl_tlsdesc_return", "_dl_tlsdesc_undefweak", "_dl_tlsdesc_dynamic"}
# Functions of libc that never return, with their number of arguments.
_LAST = {
    "abort": 0,
    "__stack_chk_fail": 0,
    "__chk_fail": 0,
    "__fortify_fail": 1,
    "__libc_fatal": 1,
    "__assert_fail": 4,
    "_exit": 1,
    "exit": 1,
}


def _machine(name: str) -> Machine:
    """Return the registers of the architecture with this name."""
    if name == arch.X86_64.name:
        return X86_64
    # Few targets are AArch64, and the import of its instruction tables takes milliseconds. The
    # module is therefore imported only here.
    from findleaks.disasm.aarch64_effects import AARCH64

    return {arch.AARCH64.name: AARCH64}[name]


class Interrupted(NamedTuple):
    """An interrupted frame: the address of its saved registers (struct ucontext), its stack
    pointer, and the mask of its live registers."""

    context: int
    sp: int
    live: int


class LiveWords(NamedTuple):
    """Result of LivenessReader.live_words: the mask (see effects.py) of a thread's live registers
    and red zone bytes, and its interrupted frames."""

    live: int
    interrupted: tuple[Interrupted, ...]


class ProcessCode:
    """Implements findleaks.disasm.liveness.Code for a process."""

    def __init__(self, target: Target, unwinder: Unwinder, machine: Machine) -> None:
        self._target, self._unwinder, self._machine = target, unwinder, machine
        arch = target.arch
        self._at_top = arch.dwarf_registers.index(arch.sp), 0 if arch.link_register else arch.word, b""
        self._extents: dict[int, Range | None] = {}
        self._starts: list[int] = []
        self._found: list[Range] = []
        self._last: dict[int, int] | None = None
        self._writable = sorted((region.start, region.end) for region in target.regions() if region.writable)

    def read(self, address: int, size: int) -> bytes:
        try:
            return self._target.read_code(address, size)
        except UnreadableMemory:
            return self._target.read_code(address, min(size, 4096 - address % 4096))

    def extent(self, pc: int) -> Range | None:
        at = bisect_right(self._starts, pc) - 1
        if at >= 0 and pc < self._found[at].end:
            return self._found[at]
        if pc not in self._extents:
            found = self._extents[pc] = self._extent(pc) if self._unwinder.executable(pc) else None
            if found is not None:
                at = bisect_right(self._starts, found.start)
                self._starts.insert(at, found.start)
                self._found.insert(at, found)
        return self._extents[pc]

    def _extent(self, pc: int) -> Range | None:
        found = self._unwinder.extent(pc)
        size = self._machine.stub_bytes(self.bytes_at(pc, _STUB_BYTES)) if found is None else 0
        return Range(pc, pc + size) if size else found

    def at_top(self, pc: int) -> bool:
        row = self._unwinder.row(pc)
        if row is None or row.signal or (row.register, row.offset, row.expression) != self._at_top:
            return False
        return not self._machine.link or row.return_register not in row.rules

    def pointer(self, slot: int, one: Effect) -> int:
        """See Code. `slot` must be read-only (RELRO), or the slot of a PLT stub. The slot of a PLT
        stub may still change, but the stub then jumps to the same function."""
        at = bisect_right(self._writable, (slot, 1 << 64)) - 1
        if at >= 0 and slot < self._writable[at][1] and not self._machine.in_stub(self._target.read, one):
            return 0
        try:
            found = self._target.word(slot)
        except UnreadableMemory:
            return 0
        return found if self.extent(found) is not None else 0

    def arguments_of_last(self, address: int) -> int | None:
        if self._last is None:
            found = ((self._target.symbol(name, "libc.so"), count) for name, count in _LAST.items())
            self._last = {symbol.address: count for symbol, count in found if symbol is not None}
        return self._last.get(address)

    def system_call(self, numbers: tuple[int | None, ...]) -> tuple[int, str]:
        calls = self._machine.calls
        known = {name: value for name, value in zip(self._machine.general, numbers) if value is not None}
        number = known.get(calls.number, -1)
        return argument_mask(number, known, calls), "stop" if number in calls.ending else "next"

    def libc(self, pc: int) -> bool:
        """Whether `pc` is in libc, or in a library that belongs to it."""
        module = self._unwinder.module(pc)
        return module is not None and _LIBC.fullmatch(module.path.rsplit("/", 1)[-1]) is not None

    def bytes_at(self, address: int, size: int) -> bytes:
        """Read bytes; b"" if unreadable."""
        try:
            return self._target.read(address, size)
        except UnreadableMemory:
            return b""


class LivenessReader:
    """Computes the liveness of threads. Results are cached by code, so many threads that sleep at
    one pc take little more time than one."""

    def __init__(self, target: Target, capstone: ModuleType) -> None:
        self._target = target
        self._unwinder = Unwinder(target)
        self._machine = _machine(target.arch.name)
        self._code = ProcessCode(target, self._unwinder, self._machine)
        self._liveness = Liveness(self._code, capstone, self._machine)
        self._everything = self._machine.registers | ALL_ZONE
        self._slots = FrameSlots(target, self._unwinder, self._liveness)

    def mask_of(self, name: str) -> int:
        """Return the bits of LiveWords' mask for a word of Thread.words, by its name; 0 if the name
        is not that of a register in the mask."""
        return self._machine.mask_of(name)

    @property
    def exhausted(self) -> bool:
        """Whether the limit of decoded code was reached. If so, all words of some threads count as
        live."""
        return self._liveness.exhausted

    def live_words(self, thread: Thread, signals: bool) -> LiveWords:
        """Return the live words of a thread. `signals`: whether to include the live words of frames
        that signals interrupted."""
        kept: list[FrameRegisters] = []
        most = _DEEPEST if signals else _NEAREST
        trace = self._unwinder.trace_with_registers(thread, kept, most)
        live = self._from(trace.frames, kept, 0, thread.registers)
        if live is None and not signals:
            kept = []
            trace = self._unwinder.trace_with_registers(thread, kept, _DEEPEST)
            live = self._from(trace.frames, kept, 0, thread.registers)
        found = []
        for index in range(1, len(trace.frames)) if signals else ():
            before = trace.frames[index - 1]
            if self._returns_from_signal(before):
                saved = self._registers(kept[index])
                part = self._from(trace.frames, kept, index, saved)
                context = before.sp + (SIGINFO if self._target.arch.signal_returns else 0)
                found.append(Interrupted(context, trace.frames[index].sp, self._everything if part is None else part))
        return LiveWords(self._everything if live is None else live, tuple(found))

    def dead_slots(self, thread: Thread, wanted: Collection[int]) -> list[int]:
        """Return those addresses among `wanted` whose words in the thread's innermost frames the
        thread will not read again, ascending."""
        return self._slots.dead(self._unwinder.trace_with_registers(thread, [], MOST_FRAMES + 1).frames, wanted)

    def _registers(self, kept: FrameRegisters) -> dict[str, int]:
        names = self._target.arch.dwarf_registers
        return {names[number]: value for number, value in kept.registers.items() if number < len(names)}

    def _returns_from_signal(self, frame: Frame) -> bool:
        known = self._target.arch.signal_returns
        if known:
            return any(self._code.bytes_at(frame.pc, len(code)) == code for code, _ in known)
        row = self._unwinder.row(frame.pc)
        return row is not None and row.signal and self._code.bytes_at(frame.pc, len(SIGRETURN)) == SIGRETURN

    def _from(self, frames: Sequence[Frame], kept: Sequence[FrameRegisters], first: int, registers: Mapping[str, int]) -> int | None:
        """Return the mask of the live words in the interrupted frame with index `first`; None if
        more frames are needed."""
        machine = self._machine
        top = frames[first]
        sp, pc = top.sp, top.pc
        instruction = machine.calls.instruction
        called = self._code.bytes_at(pc - len(instruction), len(instruction)) == instruction
        restarts = machine.calls.restarts_at and not called and self._code.bytes_at(pc, len(instruction)) == instruction
        plain = (called or restarts) and self._code.libc(pc)
        live = self._in_call(registers) if called else 0
        rest = machine.registers
        for index in range(first, len(frames)):
            frame = frames[index]
            if self._code.extent(frame.call) is None:
                return live | rest | (ALL_ZONE if index == first else 0)
            own = registers if index == first else self._registers(kept[index])
            near = self._frame_pointer(frame, own)
            flow = self._liveness.at(frame.pc, near, not plain, self._list_known(own, restarts) if index == first and not called else ())
            live |= flow.use & rest
            if index == first and machine.red_zone:
                live |= self._zone(pc, sp, near, flow.use, registers, live)
            rest &= flow.through & ~machine.callee_saved & ~live
            if not rest & ~machine.sometimes_saved:
                return live | rest
            if index + 1 == len(frames):
                break
            caller = frames[index + 1]
            if self._returns_from_signal(caller):
                return live
            rest &= self._over_return(frame, caller, plain)
            plain = plain and self._code.libc(caller.call)
            if not rest & ~machine.sometimes_saved:
                return live | rest
        return None if len(frames) < _DEEPEST else live | rest

    def _frame_pointer(self, frame: Frame, own: Mapping[str, int]) -> int | None:
        """Return the frame pointer relative to the stack pointer; None if it cannot point to the
        red zone or the frame."""
        bp = own["rbp"] - frame.sp if self._machine.red_zone and "rbp" in own else None
        return bp if bp is not None and -ZONE <= bp < 1 << 20 else None

    def _list_known(self, registers: Mapping[str, int], restarts: bool) -> tuple[tuple[int, int], ...]:
        """Return (register, contents) pairs that determine the arguments of the next system call:
        the call number, and if the call is certainly the next instruction, its second argument (see
        argument_mask)."""
        calls = self._machine.calls
        names = (calls.number, calls.arguments[1]) if restarts else (calls.number,)
        return tuple((calls.registers.index(name), registers[name]) for name in names if name in registers)

    def _in_call(self, registers: Mapping[str, int]) -> int:
        """Return the mask of registers that a restarted system call reads."""
        calls = self._machine.calls
        if decode_signed(registers.get(calls.result, 0), 64) not in RESTARTED:
            return 0
        number = registers.get(calls.number_kept, -1)
        return argument_mask(-1 if number >> 63 else number, registers, calls)

    def _over_return(self, frame: Frame, caller: Frame, plain: bool) -> int:
        """Return the mask of registers that a caller may read after the call."""
        machine = self._machine
        before = self._code.bytes_at(caller.pc - machine.before_return, machine.before_return)
        called = machine.called(before) if len(before) == machine.before_return else ""
        if caller.how != "cfi" or self._code.extent(caller.call) is None or not called:
            return machine.registers
        one, other = self._unwinder.module(frame.call), self._unwinder.module(caller.call)
        if one is None or other is None or (not plain and self._keeps_all(frame)):
            return machine.registers
        if one.start != other.start:
            over = machine.registers if called == "call" else 0
        else:
            over = self._liveness.find_clobbered(frame.call)
        over &= ~machine.callee_saved
        if not plain:
            over &= ~machine.sometimes_saved
        return machine.registers & ~over | (machine.mask(machine.calls.result) if plain else machine.returned)

    def _keeps_all(self, frame: Frame) -> bool:
        symbol: Symbol | None = self._target.symbolize(frame.call)
        return symbol is not None and symbol.name.split("@")[0] in _KEEPING

    def _zone(self, pc: int, sp: int, bp: int | None, use: int, registers: Mapping[str, int], live: int) -> int:
        """Return the live part of the red zone."""
        how = self._liveness.below(pc, bp)
        pointing = 0
        for number, name in enumerate(GENERAL):
            if name != "rsp" and sp - ZONE <= registers.get(name, 0) < sp:
                pointing |= 1 << number
        if how == "pointed to" or pointing & (live | self._machine.callee_saved):
            return ALL_ZONE
        if how == "never":
            return 0
        words = self._target.arch.unpack(self._code.bytes_at(sp - ZONE, ZONE))
        return ALL_ZONE if not words or any(sp - ZONE <= word < sp for word in words) else use & ALL_ZONE


def zone_bytes(live: int) -> list[Range]:
    """Return the dead parts of the red zone: word offsets from the stack pointer (-128 to 0)."""
    found: list[Range] = []
    for at in range(0, ZONE, 8):
        if not live >> (ZONE_AT + at) & 0xFF:
            if found and found[-1].end == at - ZONE:
                found[-1] = Range(found[-1].start, at - ZONE + 8)
            else:
                found.append(Range(at - ZONE, at - ZONE + 8))
    return found
