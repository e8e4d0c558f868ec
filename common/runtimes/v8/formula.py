"""What a short function of V8's would give that only computes from memory: its instructions are followed here, in our own memory, over what
the target has. Nothing is called in the target, and nothing written there.

x86-64 only. Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, chapters 3 to 5 (what the instructions do) and
2.1 (encoding); System V ABI, AMD64 supplement 1.0, 3.2 (arguments, results, stack). Whatever is not known here, and a store to anything but
the stack, ends it without a result. The bytes are decoded here always, not by a debugger, whose listings leave out what nobody asks for.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from findleaks.errors import UnreadableMemory
from findleaks.runtimes.v8.decode import CALL, JUMP, JUMP_SHORT, RIP, Instruction, instructions
from findleaks.target.base import Target

LONGEST = 400
"""Instructions that are followed."""

PIECE = 64
"""Bytes of code that are decoded at once."""

STACK, DEPTH = 0xFFFF_A000_0000_0000, 1 << 12
"""Where our stack is, and its bytes: a kernel's address, which no memory of a process has."""

MASK = (1 << 64) - 1
LOW = (1 << 32) - 1
RAX, RSP, RBP, RDI, RSI = 0, 4, 5, 7, 6
LOCKED, NARROW, REPEATED, BOUND = 0xF0, 0x66, 0xF3, 0xF2
REX = 0x40


class Unknown(Exception):
    """The function does something that is not followed here."""


class Step(NamedTuple):
    one: Instruction
    code: bytes


def value(target: Target, function: int, *arguments: int) -> Optional[int]:
    """What the function that stands there returns for one or two arguments; None where that cannot be told."""
    if target.arch.name != "x86-64":
        return None
    try:
        return _Run(target, arguments).result(function)
    except (Unknown, UnreadableMemory):
        return None


class _Run:
    def __init__(self, target: Target, arguments: tuple[int, ...]) -> None:
        self.target = target
        self.registers = [0] * 16
        self.stack: dict[int, int] = {}
        self.known: dict[int, Step] = {}
        for register, argument in zip((RDI, RSI), arguments):
            self.registers[register] = argument
        self.registers[RSP] = STACK

    def result(self, at: int) -> int:
        """Followed from there to the return to our caller."""
        self._push(0)
        for _ in range(LONGEST):
            step = self._step(at)
            following = self._follow(step, at + step.one.length)
            if following is None:
                return self.registers[RAX]
            at = following
        raise Unknown

    def _step(self, at: int) -> Step:
        if at not in self.known:
            size = PIECE
            while True:  # the last function of a segment ends where memory does
                try:
                    code = self.target.read(at, size)
                    break
                except UnreadableMemory:
                    size //= 2
                    if not size:
                        raise
            for one in instructions(code, at):
                its = code[one.address - at : one.address - at + one.length]
                if len(its) == one.length:  # the last one may not be whole
                    self.known[one.address] = Step(one, its)
        if at not in self.known:
            raise Unknown
        return self.known[at]

    def _follow(self, step: Step, after: int) -> Optional[int]:
        """The address of the next instruction, or None at the end."""
        one, opcode = step.one, step.one.opcode
        if opcode in (0x0F1E, 0x0F1F) or (opcode == 0x90 and step.code[0] & 0xF0 != REX):  # endbr64, nop
            return after
        bound = step.code[0] == BOUND and opcode in (CALL, JUMP, 0xFF, 0xC3)  # which tells of bounds that nobody uses
        if one.fs or (step.code[0] in (LOCKED, NARROW, REPEATED, BOUND) and not bound):
            raise Unknown
        if opcode in (JUMP, JUMP_SHORT) and one.target is not None:
            return one.target
        if opcode == CALL and one.target is not None:
            self._push(after)
            return one.target
        if opcode == 0xFF and one.reg & 7 in (2, 4):
            to = self._get(step, True)
            if one.reg & 7 == 2:
                self._push(after)
            return to
        if opcode == 0xC3:
            return self._pop() or None
        self._compute(step)
        return after

    def _compute(self, step: Step) -> None:
        one, opcode, wide = step.one, step.one.opcode, step.one.wide
        if 0x50 <= opcode <= 0x5F:
            register = opcode & 7 | (step.code[0] & 1) << 3 if step.code[0] & 0xF0 == REX else opcode & 7
            if opcode < 0x58:
                self._push(self.registers[register])
            else:
                self.registers[register] = self._pop()
        elif opcode == 0xC9:  # leave
            self.registers[RSP] = self.registers[RBP]
            self.registers[RBP] = self._pop()
        elif opcode == 0x8B:
            self._set(one.reg, self._get(step, wide), wide)
        elif opcode == 0x89:
            self._put(step, self.registers[one.reg])
        elif opcode == 0x8D:
            self._set(one.reg, self._place(step), wide)
        elif opcode == 0x63 and wide:  # movslq
            self._set(one.reg, _signed(self._get(step, False)), True)
        elif opcode == 0xB8 and one.immediate is not None:
            self._set(one.rm, one.immediate, wide)
        elif opcode == 0xC7 and one.immediate is not None:
            self._put(step, one.immediate)
        elif opcode in _ARITHMETIC:
            name, into = _ARITHMETIC[opcode]
            left, right = self._get(step, wide), self.registers[one.reg]
            if into:
                self._set(one.reg, _compute(name, right, left), wide)
            else:
                self._put(step, _compute(name, left, right))
        elif opcode in (0x81, 0x83) and one.immediate is not None and one.reg & 7 in _GROUP:
            self._put(step, _compute(_GROUP[one.reg & 7], self._get(step, wide), one.immediate))
        elif opcode & 7 == 5 and opcode >> 3 in _GROUP:  # of rax and the last four bytes
            longer = step.code[0] & 0xF8 == REX | 8
            number = int.from_bytes(step.code[-4:], "little", signed=True)
            self._set(RAX, _compute(_GROUP[opcode >> 3], self.registers[RAX], number), longer)
        elif opcode == 0xFF and one.reg & 7 < 2:  # inc, dec
            self._put(step, self._get(step, wide) + 1 - 2 * (one.reg & 7))
        elif opcode in (0x69, 0x6B) and one.immediate is not None:
            self._set(one.reg, self._get(step, wide) * one.immediate, wide)
        elif opcode in (0xC1, 0xD1) and one.reg & 7 in (4, 5):
            shift = (one.immediate or 0) & (63 if wide else 31) if opcode == 0xC1 else 1
            operand = self._get(step, wide)
            self._put(step, operand << shift if one.reg & 7 == 4 else operand >> shift)
        else:
            raise Unknown

    def _set(self, register: int, number: int, wide: bool) -> None:
        self.registers[register] = number & (MASK if wide else LOW)

    def _place(self, step: Step) -> int:
        one = step.one
        if one.displacement is None:
            raise Unknown
        if one.base == RIP:
            return one.displacement & MASK
        place = one.displacement + (self.registers[one.base] if one.base >= 0 else 0)
        return place + self.registers[one.scaled] * _scale(step.code) & MASK if one.scaled >= 0 else place & MASK

    def _get(self, step: Step, wide: bool) -> int:
        """The operand that is a register or in memory."""
        if step.one.displacement is None:
            return self.registers[step.one.rm] & (MASK if wide else LOW)
        place = self._place(step)
        if STACK - DEPTH <= place < STACK:
            if place not in self.stack or not wide:
                raise Unknown
            return self.stack[place]
        return int.from_bytes(self.target.read(place, 8 if wide else 4), "little")

    def _put(self, step: Step, number: int) -> None:
        if step.one.displacement is None:
            self._set(step.one.rm, number, step.one.wide)
            return
        place = self._place(step)
        if not step.one.wide or place % 8 or not STACK - DEPTH <= place < STACK:
            raise Unknown
        self.stack[place] = number & MASK

    def _push(self, number: int) -> None:
        self.registers[RSP] -= 8
        if not STACK - DEPTH <= self.registers[RSP] < STACK:
            raise Unknown
        self.stack[self.registers[RSP]] = number

    def _pop(self) -> int:
        number = self.stack.get(self.registers[RSP])
        if number is None:
            raise Unknown
        self.registers[RSP] += 8
        return number


_ARITHMETIC = {
    **{0x01: ("add", False), 0x03: ("add", True), 0x29: ("sub", False), 0x2B: ("sub", True), 0x21: ("and", False), 0x23: ("and", True)},
    **{0x09: ("or", False), 0x0B: ("or", True), 0x31: ("xor", False), 0x33: ("xor", True), 0x0FAF: ("mul", True)},
}
"""What an opcode computes of a register and the other operand, and whether the register gets the result."""

_GROUP = {0: "add", 1: "or", 4: "and", 5: "sub", 6: "xor"}


def _compute(name: str, left: int, right: int) -> int:
    if name == "add":
        return left + right
    if name == "sub":
        return left - right
    if name == "mul":
        return left * right
    return left & right if name == "and" else left | right if name == "or" else left ^ right


def _signed(number: int) -> int:
    return number - (1 << 32) if number >> 31 else number


def _scale(code: bytes) -> int:
    """By what the index is multiplied: the upper two bits of the byte behind the one that names the operands."""
    at = 1 if code[0] & 0xF0 == REX else 0
    at += 1 if code[at] != 0x0F else 3 if code[at + 1] in (0x38, 0x3A) else 2
    return 1 << (code[at + 1] >> 6)
