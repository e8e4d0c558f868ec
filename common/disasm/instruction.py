"""A decoded instruction in terms of x86-64. aarch64.py translates instructions of AArch64 to this
form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from findleaks.disasm.registers import RIP
from findleaks.value_classes import NamedTuple

NONE = -1  # register number of a missing operand
_MASK = (1 << 64) - 1


class Instruction(NamedTuple):
    """One instruction. `name` is Intel's mnemonic without prefixes; "" for an instruction that is
    not translated. `destination` and `source` are the general registers of the first and second
    operand in the order of Intel's manual. A single operand is the destination, except for push,
    call and jmp, where it is the source. A memory operand has a `displacement`, in bytes from
    `base` + `scaled` * `scale`; with base RIP it is the address itself, with `fs` it is relative to
    the thread pointer, and with `gs` to another address. For a copy from memory to memory only the
    first operand is recorded.
    `immediate` is signed, as in capstone. `width` is the size of the first operand in bytes.
    `target` is the destination of a direct call, jump or branch. `locked`: the instruction is
    atomic."""

    address: int
    size: int
    name: str
    destination: int = NONE
    source: int = NONE
    base: int = NONE
    scaled: int = NONE
    scale: int = 1
    displacement: Optional[int] = None
    immediate: Optional[int] = None
    width: int = 0
    fs: bool = False
    target: Optional[int] = None
    locked: bool = False
    gs: bool = False

    @property
    def end(self) -> int:
        """Address of the next instruction."""
        return self.address + self.size

    @property
    def wide(self) -> bool:
        """Whether the first operand has 64 bits."""
        return self.width == 8

    @property
    def loads(self) -> bool:
        """Whether the instruction loads 4 or 8 bytes from memory into a register."""
        return self.name == "mov" and self.displacement is not None and self.destination >= 0 and self.width >= 4

    @property
    def stores(self) -> bool:
        """Whether the instruction stores a general register in memory."""
        return self.name == "mov" and self.displacement is not None and self.source >= 0

    @property
    def writes_memory(self) -> bool:
        """Whether the memory operand is the first in the order of Intel's manual."""
        return self.displacement is not None and self.destination < 0

    def operand_address(self, value: Callable[[int], Optional[int]], thread_pointer: int = 0) -> Optional[int]:
        """Return the address of the memory operand; None if there is no such operand, or if a value
        that it needs is unknown. `value`: returns the value of a register, None if it is unknown.
        `thread_pointer`: 0 if it is unknown."""
        if self.displacement is None or self.gs or (self.fs and not thread_pointer):
            return None
        address = self.displacement + (thread_pointer if self.fs else 0)
        for register, times in ((self.base, 1), (self.scaled, self.scale)):
            if register in (NONE, RIP):
                continue
            known = value(register)
            if known is None:
                return None
            address += known * times
        return address & _MASK


def is_call_or_jump(one: Instruction) -> bool:
    """Return whether this is a direct call or an unconditional direct jump. Only such an
    instruction has a target."""
    return one.name in ("call", "jmp") and one.target is not None
