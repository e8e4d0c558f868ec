"""Move the first instructions of a function to another address, to make space for a jump. Operands
relative to the instruction pointer are adjusted."""

from __future__ import annotations

from typing import NamedTuple, Optional

from findleaks.disasm.instruction import Instruction
from findleaks.disasm.registers import RIP
from findleaks.disasm.x86 import instructions
from findleaks.errors import TargetError

JUMP_BYTES = 5  # opcode e9, and a distance of four bytes
_ENDBR64 = b"\xf3\x0f\x1e\xfa"
_REACH = range(-(1 << 31), 1 << 31)
_ENTERS_THE_KERNEL = ("syscall", "sysenter", "int")
_TRAPS = ("int3", "int1", "hlt", "ud0", "ud1", "ud2")
_JUMPS_SHORT_ONLY = ("jcxz", "jecxz", "jrcxz", "loop", "loope", "loopne")


class Refused(TargetError):
    """Raised if the function cannot be patched. The message explains why."""


class Patch(NamedTuple):
    """A jump of five bytes that will replace `original` at `address`. `code`: the bytes of the
    instructions that the jump overwrites, in whole or in part. `size`: their number."""

    function: int
    address: int
    size: int
    original: bytes
    moved: tuple[Instruction, ...]
    code: bytes


def plan(name: str, function: int, end: int, code: bytes) -> Patch:
    """Choose the instructions to move. `code`: bytes of the function up to `end`, without
    breakpoints.
    Raises Refused with the reason, and CapstoneMissing."""
    # endbr64 stays in place, because with CET, indirect calls must arrive at such an instruction.
    start = function + len(_ENDBR64) if code.startswith(_ENDBR64) else function
    if end - start < JUMP_BYTES:
        raise Refused(f"{name} is too short: {end - start} bytes, {JUMP_BYTES} are needed")
    every = list(instructions(code[start - function :], start))
    moved: list[Instruction] = []
    size = 0
    for one in every:
        _movable(name, one, code[one.address - function :][: one.size])
        moved.append(one)
        size += one.size
        if size >= JUMP_BYTES:
            break
    known = every[-1].end if every else start
    if known < end:
        raise Refused(f"{name}: the instruction at {known:#x} cannot be decoded")
    for one in every:
        if one.target is not None and start < one.target < start + size:
            raise Refused(f"{name}: {one.address:#x} jumps to {one.target:#x}, which would be overwritten")
    low = start - function
    return Patch(function, start, size, code[low : low + JUMP_BYTES], tuple(moved), code[low : low + size])


def _movable(name: str, one: Instruction, code: bytes) -> None:
    why = ""
    if one.name in ("call", "lcall"):
        why = "it is a call, which would return into the stub"
    elif one.name in _JUMPS_SHORT_ONLY:
        why = "it jumps by a distance of one byte"
    elif one.name in _ENTERS_THE_KERNEL:
        why = "it enters the kernel"
    elif one.name in _TRAPS:
        why = "it is a breakpoint, or ends the program"
    elif one.base == RIP and _operand(one, code) is None:
        why = "the position of its operand in the code is not certain"
    if why:
        raise Refused(f"{name}: the instruction at {one.address:#x} cannot be moved: {why}")


def _operand(one: Instruction, code: bytes) -> Optional[int]:
    """Return the offset at which the four bytes of the displacement begin in the instruction; None
    if uncertain. An immediate operand of 0, 1, 2 or 4 bytes follows the displacement."""
    assert one.displacement is not None
    wanted = (one.displacement - one.end).to_bytes(4, "little", signed=True)
    found = [at for at in (one.size - 4 - size for size in (0, 1, 2, 4)) if at > 0 and code[at : at + 4] == wanted]
    return found[0] if len(found) == 1 else None


def jump(at: int, to: int) -> bytes:
    """Encode a jmp of five bytes from `at` to `to`. Raises Refused if the distance is too large."""
    return b"\xe9" + _distance(to - at - JUMP_BYTES)


def _distance(value: int) -> bytes:
    if value not in _REACH:
        raise Refused(f"{value:#x} bytes are too far for a jump or an operand")
    return value.to_bytes(4, "little", signed=True)


def relocate_code(patch: Patch, to: int) -> bytes:
    """Encode the moved instructions for the address `to`, followed by a jump back to the
    function."""
    made = bytearray()
    for one in patch.moved:
        low = one.address - patch.address
        code = bytearray(patch.code[low : low + one.size])
        here = to + len(made)
        if one.target is not None:
            opcode = b"\xe9" if one.name == "jmp" else bytes((0x0F, 0x80 | _condition(code)))
            code = bytearray(opcode + _distance(one.target - here - len(opcode) - 4))
        elif one.base == RIP:
            at = _operand(one, bytes(code))
            assert at is not None and one.displacement is not None
            code[at : at + 4] = _distance(one.displacement - here - one.size)
        made += code
    return bytes(made) + jump(to + len(made), patch.address + patch.size)


def _condition(code: bytearray) -> int:
    """Return the condition of a branch: the low bits of the opcode. The opcode is 0f 8x for a
    distance of 4 bytes, and 7x for a distance of one byte."""
    near = len(code) >= 6 and code[-6] == 0x0F
    return code[-5 if near else -2] & 15
