"""Emulate a short function that only computes from memory, to find its result (x86-64).

The emulation reads the target's memory, but runs and writes nothing in the target; the stack is
emulated, too. An unsupported instruction, or a store outside the stack, ends the emulation without
a result. The library unicorn is not used for this, because it is under the GPL, and far larger than
these twenty instructions.

Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, chapters 3 to 5
(instructions); System V ABI, AMD64 supplement 1.0, 3.2 (arguments, results, stack)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from findleaks.disasm import aarch64_formula
from findleaks.disasm.emulated_memory import LONGEST, STACK, EmulatedMemory, Unknown
from findleaks.disasm.functions import instructions_at
from findleaks.disasm.instruction import Instruction
from findleaks.disasm.registers import RAX, RBP, RDI, RSI, RSP
from findleaks.errors import UnreadableMemory
from findleaks.target.arch import AARCH64, X86_64
from findleaks.target.base import Target
from findleaks.target.encoded_numbers import decode_signed

DECODED_BYTES = 64  # bytes of code decoded at once
MASK = (1 << 64) - 1


def evaluate_function(target: Target, function: int, *arguments: int) -> Optional[int]:
    """Return the result of the function for one or two arguments; None if it is unknown. Raises
    CapstoneMissing."""
    try:
        if target.arch.name == X86_64.name:
            return _Run(target, arguments).result(function)
        if target.arch.name == AARCH64.name:
            return aarch64_formula.Run(target, arguments).result(function)
        return None
    except (Unknown, UnreadableMemory):
        return None


class _Run:
    def __init__(self, target: Target, arguments: tuple[int, ...]) -> None:
        self.target = target
        self.registers = [0] * 16
        self.memory = EmulatedMemory(target)
        self.compared: Optional[tuple[int, int]] = None  # unsigned operands of the last comparison
        self.known: dict[int, Instruction] = {}
        for register, argument in zip((RDI, RSI), arguments):
            self.registers[register] = argument
        self.registers[RSP] = STACK

    def result(self, at: int) -> int:
        """Execute from `at` until the function returns; return the value of rax."""
        self._push(0)
        for _ in range(LONGEST):
            following = self._execute(self._instruction(at))
            if following is None:
                return self.registers[RAX]
            at = following
        raise Unknown

    def _instruction(self, at: int) -> Instruction:
        if at not in self.known:
            # A segment may have fewer bytes at its end.
            sizes = (DECODED_BYTES >> halvings for halvings in range(DECODED_BYTES.bit_length()))
            listed = (list(instructions_at(self.target, at, size)) for size in sizes)
            self.known.update((one.address, one) for one in next(filter(None, listed), []))
        if at not in self.known:
            raise Unknown
        return self.known[at]

    def _execute(self, one: Instruction) -> Optional[int]:
        """Execute an instruction; return the address of the next one, or None at the end."""
        if one.name in ("endbr64", "nop"):
            return one.end
        if one.fs or one.gs or one.locked:
            raise Unknown
        if one.name in ("call", "jmp"):
            to = one.target if one.target is not None else self._source(one)
            if one.name == "call":
                self._push(one.end)
            return to
        if one.name == "ret" and one.immediate is None:
            return self._pop() or None
        if one.name in _CONDITIONS:
            if self.compared is None or one.target is None:
                raise Unknown
            return one.target if _CONDITIONS[one.name](*self.compared) else one.end
        if one.name in ("cmp", "test"):
            first, second = self._destination(one), self._source(one) & _mask(one.width)
            self.compared = (first, second) if one.name == "cmp" else (first & second, 0)
            return one.end
        self._compute(one)
        # Arithmetic instructions set flags, too, but this is not emulated.
        self.compared = self.compared if one.name in _KEEPS_FLAGS else None
        return one.end

    def _compute(self, one: Instruction) -> None:
        name = one.name
        if name == "push" and one.source >= 0:
            self._push(self.registers[one.source])
        elif name == "pop" and one.destination >= 0:
            self.registers[one.destination] = self._pop()
        elif name == "leave":
            self.registers[RSP] = self.registers[RBP]
            self.registers[RBP] = self._pop()
        elif name in ("mov", "movabs"):
            self._put(one, self._source(one))
        elif name == "lea":
            self._put(one, self._place(one))
        elif name == "movsxd" and one.wide:
            self._put(one, decode_signed(self._source(one, 4), 32))
        elif name == "imul" and one.immediate is not None:
            factor = self.registers[one.source] if one.source >= 0 else self._memory(one, one.width)
            self._put(one, factor * one.immediate)
        elif name in _BINARY:
            self._put(one, _BINARY[name](self._destination(one), self._source(one)))
        elif name in ("inc", "dec"):
            self._put(one, self._destination(one) + (1 if name == "inc" else -1))
        elif name in ("shl", "shr") and one.immediate is not None:
            shift = one.immediate & (63 if one.wide else 31)
            operand = self._destination(one)
            self._put(one, operand << shift if name == "shl" else operand >> shift)
        else:
            raise Unknown

    def _destination(self, one: Instruction) -> int:
        """Return the value of the first operand."""
        return self.registers[one.destination] & _mask(one.width) if one.destination >= 0 else self._memory(one, one.width)

    def _source(self, one: Instruction, width: int = 0) -> int:
        """Return the second operand, of `width` bytes. For call and jmp, return the only
        operand."""
        if one.source >= 0:
            return self.registers[one.source] & _mask(width or one.width)
        return one.immediate if one.immediate is not None else self._memory(one, width or one.width)

    def _put(self, one: Instruction, number: int) -> None:
        """Store a number in the first operand."""
        if one.destination >= 0:
            self.registers[one.destination] = number & _mask(one.width)
            return
        self.memory.store(self._place(one), one.width, number)

    def _place(self, one: Instruction) -> int:
        """Return the address of the memory operand."""
        address = one.operand_address(self.registers.__getitem__)
        if address is None:
            raise Unknown
        return address

    def _memory(self, one: Instruction, width: int) -> int:
        _mask(width)
        return self.memory.load(self._place(one), width)

    def _push(self, number: int) -> None:
        self.registers[RSP] -= 8
        self.memory.store(self.registers[RSP], 8, number)

    def _pop(self) -> int:
        number = self.memory.read_stacked(self.registers[RSP])
        self.registers[RSP] += 8
        return number


_BINARY: dict[str, Callable[[int, int], int]] = {
    "add": int.__add__,
    "sub": int.__sub__,
    "and": int.__and__,
    "or": int.__or__,
    "xor": int.__xor__,
    "imul": int.__mul__,
}

_CONDITIONS: dict[str, Callable[[int, int], bool]] = {
    "je": int.__eq__,
    "jne": int.__ne__,
    "ja": int.__gt__,
    "jae": int.__ge__,
    "jb": int.__lt__,
    "jbe": int.__le__,
}
_KEEPS_FLAGS = ("push", "pop", "leave", "mov", "movabs", "lea", "movsxd")


def _mask(width: int) -> int:
    """Return the mask of `width` bytes. Raises Unknown for 8- and 16-bit registers, which are not
    emulated."""
    if width not in (4, 8):
        raise Unknown
    return (1 << 8 * width) - 1
