"""Find dead words in the frames of functions that are still running (x86-64).

A word of a frame is dead if its function does not read it again before it overwrites it or returns.
Typical examples are padding, which a function reserves for alignment and never uses, and slots in
which it saved registers during an earlier call. Such words contain values that earlier, deeper
calls left there.

Call frame information relates each operand on the stack to the canonical frame address (CFA), so no
values have to be tracked. If one of these conditions makes the result uncertain, all words of the
frame count as live:

- the function copies its stack pointer, takes the address of a word, or indexes the stack;
- its code cannot be decoded completely, jumps through a register, or continues in another part of
  the function (".cold"), or it has no exact call frame information;
- it has exception handlers, or calls a function that returns twice (setjmp, vfork).

There are two more cases in which a word counts as live: the function writes to the word somewhere
and calls a function that may take arguments on the stack, or the word holds a saved register of the
caller."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from findleaks.disasm.liveness import Liveness
from findleaks.disasm.machine import Effect
from findleaks.disasm.registers import general
from findleaks.target import arch
from findleaks.target.base import Range, Target
from findleaks.unwind.cfi import Row
from findleaks.unwind.frames import Frame, Unwinder
from findleaks.value_classes import NamedTuple

_LARGEST = 1 << 12  # maximum number of bytes of an analysed frame
_MOST_INSTRUCTIONS = 1000  # maximum number of instructions of a function
MOST_FRAMES = 6  # maximum number of a thread's innermost frames that are analysed
_TAIL_CALLS = 3  # maximum number of tail calls followed in a row
_RETURN = 8  # bytes of the return address, at the end of a frame
_TWICE = re.compile(r"_*(sig)?setjmp|_*vfork|getcontext|savectx")
_LIBC = re.compile(r"(libc|libpthread|ld)[-.].*|ld-linux.*")


class _Function(NamedTuple):
    """A function whose use of its frame is known.
    Masks have one bit for each byte of the frame: bit n is the byte at CFA - _LARGEST + n. For
    example, the return address at CFA - 8 has bits _LARGEST - 8 to _LARGEST - 1."""

    instructions: dict[int, Effect]
    reads: dict[int, int]  # by address of an instruction
    writes: dict[int, int]
    used: int  # bytes that some instruction reads or writes
    saved: int  # bytes with saved registers of the caller


def _mask(offset: int, size: int) -> int:
    """Return the mask of [offset, offset + size), relative to the CFA."""
    low, high = max(offset + _LARGEST, 0), min(offset + size, 0) + _LARGEST
    return (1 << high) - (1 << low) if low < high else 0


class FrameSlots:
    """Dead words of frames, cached by code."""

    def __init__(self, target: Target, unwinder: Unwinder, liveness: Liveness) -> None:
        self._target, self._unwinder, self._liveness = target, unwinder, liveness
        self._applies = target.arch.name == arch.X86_64.name
        names = target.arch.dwarf_registers
        self._bases = {names.index("rsp"): "rsp", names.index("rbp"): "rbp"} if self._applies else {}
        self._shared_libc = any(_LIBC.fullmatch(module.path.rsplit("/", 1)[-1]) for module in target.modules())
        self._functions: dict[int, _Function | None] = {}
        self._arguments: dict[int, bool] = {}
        self._live: dict[int, int] = {}  # results of `_live_at`

    def dead(self, frames: Sequence[Frame], wanted: Collection[int]) -> list[int]:
        """Return those addresses among `wanted` that are dead words in the innermost frames,
        ascending. `frames` are those of Unwinder.trace. Only the code of frames with such addresses
        is read."""
        found: list[int] = []
        before: int | None = None  # where the callee of this frame was called
        for index, (frame, caller) in enumerate(zip(frames, frames[1:])):
            row = self._unwinder.row(frame.call)
            if not self._applies or index == MOST_FRAMES or caller.how != "cfi" or row is None or row.signal:
                break
            cfa = caller.sp
            masks = {at: _mask(at - cfa, 8) for at in wanted if max(frame.sp, cfa - _LARGEST) <= at <= cfa - _RETURN - 8 and not at % 8}
            if masks:
                dead = self._dead_at(frame.pc, frame.call, before, sum(masks.values()))
                found += (at for at, mask in masks.items() if dead & mask == mask)
            before = frame.call
        return sorted(found)

    def _dead_at(self, pc: int, call: int, before: int | None, wanted: int) -> int:
        """Return the bytes among `wanted` that are dead in the frame of the function at `call`,
        which continues at `pc`. `before` is an address in the function that this function called,
        or None in the innermost frame."""
        function = self._function(call)
        if function is None or pc not in function.instructions:
            return 0  # also if the last instruction of the function is a call that does not return
        dead = ~function.used
        if wanted & function.used and (before is None or self._takes_none(before, _TAIL_CALLS)):
            if pc not in self._live:
                self._live[pc] = self._live_at(function, pc)
            dead |= ~self._live[pc]
        return dead & wanted & ~function.saved

    def _live_at(self, function: _Function, pc: int) -> int:
        """Return the bytes that are read from `pc` on before they are overwritten."""
        everything = (1 << _LARGEST) - 1
        live = dict.fromkeys(function.instructions, 0)
        order = sorted(live, reverse=True)
        changed = True
        while changed:
            changed = False
            for address in order:
                one = function.instructions[address]
                out = 0
                for after in _after(one):
                    out |= live.get(after, 0)
                if one.flow == "call" and not self._takes_none(self._liveness.destination(one), _TAIL_CALLS):
                    out = everything
                now = function.reads[address] | (out & ~function.writes[address])
                if now != live[address]:
                    live[address], changed = now, True
        return live[pc]

    def _function(self, pc: int) -> _Function | None:
        extent = self._unwinder.extent(pc)
        if extent is None:
            return None
        if extent.start not in self._functions:
            # Ends the recursion of functions that call themselves
            self._functions[extent.start] = None
            self._functions[extent.start] = self._examine(extent)
        return self._functions[extent.start]

    def _examine(self, extent: Range) -> _Function | None:
        """Return the function's use of its frame; None if that is uncertain."""
        first = self._unwinder.row(extent.start)
        if first is None or (self._bases.get(first.register), first.offset) != ("rsp", _RETURN) or first.expression:
            return None  # not the beginning of a function
        if self._unwinder.handles_exceptions(extent.start):
            return None
        effects = self._liveness.instructions(extent, _MOST_INSTRUCTIONS)
        if effects is None:
            return None
        made = _Function(_reachable_instructions({one.address: one for one in effects}, extent.start), {}, {}, 0, 0)
        used = saved = 0
        for one in made.instructions.values():
            row = self._unwinder.row(one.address)
            if row is None or row.expression or row.register not in self._bases:
                return None
            masks = self._find_accesses(one, row, made.instructions)
            if masks is None or not self._agrees(one, row, made.instructions):
                return None
            made.reads[one.address], made.writes[one.address] = masks
            used |= masks[0] | masks[1]
            for rule in row.rules.values():
                if rule.how != "offset":
                    return None
                saved |= _mask(rule.value, 8)
        return made._replace(used=used, saved=saved)

    def _agrees(self, one: Effect, row: Row, known: dict[int, Effect]) -> bool:
        """Return whether the call frame information after an instruction matches how the
        instruction changes the stack pointer. This is checked because not all compilers describe
        epilogues."""
        for address in _after(one):
            after = self._unwinder.row(address) if address in known else row
            if after is None or after.register not in self._bases or after.expression:
                return False
            moved = (self._bases[row.register], self._bases[after.register])
            if moved == ("rsp", "rsp"):
                right = after.offset == row.offset - (one.moved or 0) and one.moved is not None
            elif moved == ("rbp", "rbp"):
                # The pushed value must be a saved register: call arguments would be at an unknown
                # offset.
                right = after.offset == row.offset and (one.moved != -8 or len(after.rules) > len(row.rules))
            elif moved == ("rsp", "rbp"):
                right = after.offset == row.offset and one.writes_rbp
            else:
                right = after.offset == _RETURN and one.writes_rbp
            if not right:
                return False
        return True

    def _find_accesses(self, one: Effect, row: Row, known: dict[int, Effect]) -> tuple[int, int] | None:
        """Return (bytes of the frame that an instruction reads, bytes that it writes). None if this
        is uncertain, or if the instruction takes the address of a byte."""
        base = self._bases[row.register]
        if one.flow == "unknown" or "rsp" in one.copies or (base == "rbp" and "rbp" in one.copies):
            return None
        if not self._stays(one, row, known) or (one.flow == "call" and self._may_return_twice(one)):
            return None
        if one.moved is None and one.from_rbp is None:
            return None  # the stack pointer is aligned, or moved by an unknown amount
        if one.writes_rbp and one.reads & general("rsp") and not one.memory and not self._sets_frame_pointer(one):
            return None
        if len(one.memory) > 1:
            return None  # push and pop of a word on the stack
        reads = writes = 0
        for operand in one.memory:
            if operand.base != base:
                if operand.base == "rsp":
                    return None if not (operand.written or operand.read) or not _pushes(one) else (0, 0)
                continue  # here, rbp is not a frame pointer
            if not operand.exact:
                return None
            if not (operand.read or operand.written):
                if one.moved == 0:
                    return None  # the address of the operand is taken
                continue  # lea of the stack pointer
            start = operand.offset - row.offset
            if not operand.size or start < -_RETURN < start + operand.size:
                return None
            if start >= -_RETURN:
                continue  # the return address, or an argument: see _takes_none
            part = _mask(start, operand.size)
            writes |= part if operand.written else 0
            reads |= part if operand.read else 0
        return reads, writes

    def _stays(self, one: Effect, row: Row, known: dict[int, Effect]) -> bool:
        """Return whether control stays in the function, or leaves it only after its frame is
        removed. If the last instruction is a call, the call does not return."""
        if one.flow in ("next", "system"):
            return one.address + one.size in known
        if one.flow == "branch" and one.address + one.size not in known:
            return False
        if one.flow in ("branch", "jump") and one.target not in known:
            return one.via < 0 and (self._bases[row.register], row.offset) == ("rsp", _RETURN)
        return True

    def _sets_frame_pointer(self, one: Effect) -> bool:
        row = self._unwinder.row(one.address + one.size)
        return row is not None and self._bases.get(row.register) == "rbp" and not row.expression

    def _may_return_twice(self, one: Effect) -> bool:
        """Return whether a call may be a call of setjmp, vfork or a similar function."""
        target = self._liveness.destination(one)
        if not target:
            return True
        symbol = self._target.symbolize(target)
        if symbol is not None and symbol.address == target:
            return _TWICE.match(symbol.name.split("@")[0]) is not None
        mine, its = self._unwinder.module(one.address), self._unwinder.module(target)
        # These functions are in libc, where they have names.
        return not self._shared_libc or mine is None or its is None

    def _takes_none(self, pc: int, depth: int) -> bool:
        """Whether the function at `pc` certainly takes no arguments on the stack."""
        function = self._function(pc) if pc else None
        extent = self._unwinder.extent(pc) if pc else None
        if function is None or extent is None:
            return False
        if extent.start not in self._arguments:
            # Ends the recursion of functions that call themselves
            self._arguments[extent.start] = False
            self._arguments[extent.start] = all(self._uses_no_argument(one, function, depth) for one in function.instructions.values())
        return self._arguments[extent.start]

    def _uses_no_argument(self, one: Effect, function: _Function, depth: int) -> bool:
        row = self._unwinder.row(one.address)
        assert row is not None  # see _examine
        for operand in one.memory:
            if operand.base == self._bases[row.register] and operand.offset - row.offset + max(operand.size, 1) > 0:
                return False
        if one.flow in ("jump", "branch") and one.target not in function.instructions:
            return depth > 0 and self._takes_none(self._liveness.destination(one), depth - 1)
        return True


def _pushes(one: Effect) -> bool:
    """Whether the instruction is a push or a pop."""
    return one.moved in (-8, 8)


def _reachable_instructions(instructions: dict[int, Effect], start: int) -> dict[int, Effect]:
    """Return the instructions that control can reach from `start`. This leaves out the padding
    after a return."""
    found: dict[int, Effect] = {}
    todo = [start]
    while todo:
        address = todo.pop()
        one = instructions.get(address)
        if one is not None and address not in found:
            found[address] = one
            todo += _after(one)
    return found


def _after(one: Effect) -> tuple[int, ...]:
    """Return the addresses of the instructions that may follow this one within the function."""
    after = one.address + one.size
    if one.flow in ("next", "call", "system"):
        return (after,)
    if one.flow == "branch":
        return after, one.target
    return (one.target,) if one.flow == "jump" else ()
