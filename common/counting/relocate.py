"""Making room for a jump at a function's beginning: the instructions that stand there are moved elsewhere, so that they do the same.

Our own decoder says which bytes are one instruction and where its operand stands in them, as bytes are what is moved; a disassembler's text
tells neither prefixes nor encodings apart. The debugger's disassembler has to see the same instructions, or nothing is moved, and it
says what in the function jumps to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

from findleaks.errors import TargetError
from findleaks.runtimes.v8.decode import CALL, JUMP, JUMP_SHORT, RIP, Instruction, instructions
from findleaks.target.control import Line

ROOM = 5
"""Bytes of a jump: e9, and its distance in four bytes."""
LONGEST = 15
"""Bytes of an instruction."""
_ENDBR64 = b"\xf3\x0f\x1e\xfa"
_REACH = range(-(1 << 31), 1 << 31)
_INDIRECT, _INDIRECT_CALL, _FAR_CALL = 0xFF, 2, 3
_ENTERS_THE_KERNEL = (0x0F05, 0x0F34)
_TRAPS = (0xCC, 0xCD, 0xF4, 0x0F0B)


class Refused(TargetError):
    """The function cannot be patched; the message says why."""


class Patch(NamedTuple):
    """What is to stand at `address`: the jump's five bytes instead of `original`. `moved` are the instructions of `size` bytes."""

    function: int
    address: int
    size: int
    original: bytes
    moved: tuple[Instruction, ...]
    code: bytes


def plan(name: str, function: int, end: int, code: bytes, lines: Sequence[Line]) -> Patch:
    """Which instructions to move. `code` are the function's bytes up to `end`, `lines` its instructions. Refused with the reason."""
    # A function that indirect calls may reach begins with endbr64 where control flow is enforced (CET): that stays where it is.
    start = function + len(_ENDBR64) if code.startswith(_ENDBR64) else function
    if end - start < ROOM:
        raise Refused(f"{name} is too short: {end - start} bytes, {ROOM} are needed")
    moved: list[Instruction] = []
    size = 0
    known = {line.address: line.length for line in lines}
    for one in instructions(code[start - function :], start):
        if known.get(one.address) != one.length:
            raise Refused(f"{name}: the instruction at {one.address:#x} cannot be moved: the debugger reads another one there")
        _movable(name, one, code[one.address - function :][: one.length])
        moved.append(one)
        size += one.length
        if size >= ROOM:
            break
    if size < ROOM:
        raise Refused(f"{name}: the instruction at {start + size:#x} cannot be moved: it is not known")
    if start + size > end:
        raise Refused(f"{name} is too short: its instructions end at {end:#x}")
    for line in lines:
        if line.target is not None and start < line.target < start + size:
            raise Refused(f"{name}: {line.address:#x} jumps to {line.target:#x}, which would be overwritten")
    low = start - function
    return Patch(function, start, size, code[low : low + ROOM], tuple(moved), code[low : low + size])


def _movable(name: str, one: Instruction, code: bytes) -> None:
    why = ""
    if one.opcode == CALL or (one.opcode == _INDIRECT and one.reg & 7 in (_INDIRECT_CALL, _FAR_CALL)):
        why = "it is a call, which would return into the stub"
    elif 0xE0 <= one.opcode <= 0xE3:
        why = "it jumps by a distance of one byte"
    elif one.opcode in _ENTERS_THE_KERNEL:
        why = "it enters the kernel"
    elif one.opcode in _TRAPS:
        why = "it is a breakpoint, or ends the program"
    elif one.base == RIP and _operand(one, code) is None:
        why = "where its operand stands is not certain"
    if why:
        raise Refused(f"{name}: the instruction at {one.address:#x} cannot be moved: {why}")


def _operand(one: Instruction, code: bytes) -> Optional[int]:
    """Where the four bytes of the distance to the operand stand in the instruction: before 0, 1, 2 or 4 bytes of an immediate."""
    assert one.displacement is not None
    wanted = (one.displacement - one.address - one.length).to_bytes(4, "little", signed=True)
    found = [at for at in (one.length - 4 - size for size in (0, 1, 2, 4)) if at > 0 and code[at : at + 4] == wanted]
    return found[0] if len(found) == 1 else None


def jump(at: int, to: int) -> bytes:
    """jmp, five bytes. Refused where it is too far."""
    return b"\xe9" + _distance(to - at - ROOM)


def _distance(value: int) -> bytes:
    if value not in _REACH:
        raise Refused(f"{value:#x} bytes are too far for a jump or an operand")
    return value.to_bytes(4, "little", signed=True)


def relocated(patch: Patch, to: int) -> bytes:
    """The moved instructions as they have to be at `to`, and a jump to what follows them."""
    made = bytearray()
    for one in patch.moved:
        low = one.address - patch.address
        code = bytearray(patch.code[low : low + one.length])
        here = to + len(made)
        if one.target is not None:
            opcode = b"\xe9" if one.opcode in (JUMP, JUMP_SHORT) else bytes((0x0F, 0x80 | one.opcode & 15))
            code = bytearray(opcode + _distance(one.target - here - len(opcode) - 4))
        elif one.base == RIP:
            at = _operand(one, bytes(code))
            assert at is not None and one.displacement is not None
            code[at : at + 4] = _distance(one.displacement - here - one.length)
        made += code
    return bytes(made) + jump(to + len(made), patch.address + patch.size)
