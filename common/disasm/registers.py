"""General registers of x86-64: numbers in machine code, and names of their parts.
Sources: System V ABI, AMD64 supplement 1.0, 3.2; Intel 64 and IA-32 Architectures Software
Developer's Manual, volume 1, 3.4.1."""

from __future__ import annotations

GENERAL = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15")
"""Names by number."""

ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI = range(8)
RIP = 16  # `Instruction.base` of an operand relative to the next instruction
CALLEE_SAVED = (RBX, RBP, 12, 13, 14, 15)  # registers that a function preserves, in addition to rsp
CALLER_SAVED = (RAX, RCX, RDX, RSI, RDI, 8, 9, 10, 11)  # registers that a function may change

NARROW = {
    **{f"{letter}{half}": f"r{letter}x" for letter in "abcd" for half in "lh"},
    **{f"{letter}x": f"r{letter}x" for letter in "abcd"},
    **{name: f"r{name[:2]}" for name in ("si", "di", "bp", "sp", "sil", "dil", "bpl", "spl")},
    **{f"r{number}{size}": f"r{number}" for number in range(8, 16) for size in "bw"},
}
"""Register name by capstone's name of its 8- or 16-bit part."""

WIDE = {f"e{name[1:]}": name for name in GENERAL[:8]} | {f"{name}d": name for name in GENERAL[8:]} | {name: name for name in GENERAL}
"""Register name by capstone's name of its low 32 bits or of all 64 bits. Writing either of them
sets the whole register."""

NUMBERS = {name: GENERAL.index(whole) for name, whole in (NARROW | WIDE).items()} | {"rip": RIP, "eip": RIP}
"""Register number by capstone's name of the register or of a part."""


def general(*names: str) -> int:
    """Return the mask of these registers: bit N is register number N."""
    return sum(1 << GENERAL.index(name) for name in names)
