"""The code of a process's functions, as instructions."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.disasm import aarch64, x86
from findleaks.disasm.instruction import Instruction
from findleaks.disasm.registers import RIP
from findleaks.errors import UnreadableMemory
from findleaks.target.base import Target

_STUB = 16
"""Bytes of a stub of the procedure linkage table."""


def instructions_at(target: Target, address: int, size: int) -> Iterator[Instruction]:
    """The instructions of [address, address + size), up to the first that is not known or not whole.

    There are none where not all of these bytes can be read. Raises CapstoneMissing.
    """
    try:
        code = target.read_code(address, size)
    except UnreadableMemory:
        return iter(())
    return aarch64.instructions(code, address) if target.arch.name == "AArch64" else x86.instructions(code, address)


def resolve_stub(target: Target, address: int) -> int:
    """Where a call of this address ends up: libraries call each other through stubs that jump to the address in a slot (the
    procedure linkage table: System V ABI, AMD64 supplement 1.0, 5.2). Raises CapstoneMissing."""
    for one in instructions_at(target, address, _STUB):
        # AArch64: adrp x16; ldr x17, [x16, ...]; add; br x17
        slot = one.loads if target.arch.name == "AArch64" else one.name == "jmp"
        if slot and one.base == RIP and one.displacement is not None:
            try:
                return target.word(one.displacement) or address
            except UnreadableMemory:
                return address
        if one.name not in ("endbr64", "lea"):
            break
    return address
