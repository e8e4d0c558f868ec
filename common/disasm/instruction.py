"""An instruction, in one form for x86-64 and AArch64: what it reads and writes at which distance from which register.

Names of instructions and numbers of registers are x86-64's. aarch64.py says how AArch64's come to bear them.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

NONE = -1
"""The number of a register where there is none."""


class Instruction(NamedTuple):
    """`name` is the mnemonic of Intel's manual without prefixes; "" for one that is not followed.

    `destination` and `source` are the general registers that are the first and the second operand, as Intel's manual
    orders them. The only operand is the destination, but for push, call and jmp. An operand in memory has a
    `displacement`, in bytes from `base` + `scaled` * `scale`; with the base RIP it is the address itself; with `fs` it is
    relative to the thread pointer. Each instruction has at most one such operand here: of a copy from memory to
    memory it is the first. `immediate` is signed as capstone gives it. `width` is the size of the first operand in bytes.
    `target` is where a direct call, jump or branch goes. `locked` says that the instruction is atomic.
    """

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

    @property
    def end(self) -> int:
        """The address of the next instruction."""
        return self.address + self.size

    @property
    def wide(self) -> bool:
        """Whether it works on 64 bits."""
        return self.width == 8

    @property
    def loads(self) -> bool:
        """Whether it loads a register with the 4 or 8 bytes in memory."""
        return self.name == "mov" and self.displacement is not None and self.destination >= 0 and self.width >= 4

    @property
    def stores(self) -> bool:
        """Whether it stores a general register in memory."""
        return self.name == "mov" and self.displacement is not None and self.source >= 0

    @property
    def writes_memory(self) -> bool:
        """Whether the operand in memory is the one that Intel's manual writes first."""
        return self.displacement is not None and self.destination < 0


def is_call_or_jump(one: Instruction) -> bool:
    """Whether it is a direct call or an unconditional direct jump; then it has a target."""
    return one.name in ("call", "jmp") and one.target is not None
