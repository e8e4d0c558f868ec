"""Disassemble functions of a process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Optional

from findleaks.disasm import aarch64, x86
from findleaks.disasm.instruction import Instruction
from findleaks.disasm.registers import RIP
from findleaks.errors import UnreadableMemory
from findleaks.target.arch import AARCH64, X86_64
from findleaks.target.base import Target

_STUB = 16  # bytes of a PLT entry (procedure linkage table)
_BTI = bytes.fromhex("5f2403d5")  # bti c, with which a PLT entry of AArch64 may begin
_JUMP_REGISTER = aarch64.number(17)  # x17, through which a PLT entry of AArch64 jumps


def instructions_at(target: Target, address: int, size: int) -> Iterator[Instruction]:
    """Yield the instructions of [address, address + size), up to the first unknown or incomplete
    one. Yield none if bytes are unreadable, or the machine is unsupported. Raises
    CapstoneMissing."""
    try:
        code = target.read_code(address, size)
    except UnreadableMemory:
        return iter(())
    if target.arch.name == AARCH64.name:
        return aarch64.instructions(code, address, partial(_is_atomic_addition, target))
    return x86.instructions(code, address) if target.arch.name == X86_64.name else iter(())


def _is_atomic_addition(target: Target, function: int) -> bool:
    try:
        return aarch64.is_atomic_addition(target.read_code(function, aarch64.ADDITION_BYTES))
    except UnreadableMemory:
        return False


def resolve_stub(target: Target, address: int) -> int:
    """Return the address of the function that a call of `address` reaches: `address` itself, or if
    a PLT entry is there, its target.
    Libraries call each other through these entries, which jump to the address in a slot (System V
    ABI, AMD64 supplement 1.0, 5.2). Raises CapstoneMissing."""
    slot = find_slot(target, address)
    try:
        return (target.word(slot) if slot is not None else 0) or address
    except UnreadableMemory:
        return address


def find_slot(target: Target, address: int) -> Optional[int]:
    """Return the address of the slot from which the PLT entry at an address loads the function that
    it jumps to; None if no PLT entry is there. Raises CapstoneMissing."""
    # AArch64: bti c (if required); adrp x16; ldr x17, [x16, ...]; add; br x17
    is_marked = target.arch.name == AARCH64.name and _starts_with_bti(target, address)
    for one in instructions_at(target, address + (len(_BTI) if is_marked else 0), _STUB):
        is_jump = one.loads and one.destination == _JUMP_REGISTER if target.arch.name == AARCH64.name else one.name == "jmp"
        if is_jump and one.base == RIP and one.displacement is not None:
            return one.displacement
        if one.name not in ("endbr64", "lea"):
            break
    return None


def _starts_with_bti(target: Target, address: int) -> bool:
    try:
        return target.read_code(address, len(_BTI)) == _BTI
    except UnreadableMemory:
        return False
