"""Compute which registers an x86-64 instruction reads and overwrites, as masks, for liveness.py.

The result is conservative: it may report reads that do not happen, but a register in the
overwritten mask is certainly overwritten as a whole. Capstone names the operands and the implicit
registers. It also reports which registers are only written, but this is wrong for cmov and gathers,
which may preserve the register. Therefore only instructions that are listed here overwrite
registers. An instruction that is not listed here reads all registers.

Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volumes 1 (3.4.1.1: a 32-bit
result clears the upper half; 14.1.4: VEX-coded instructions clear what is above their result) and 2
(each instruction); System V ABI, AMD64 supplement 1.0, 3.2 (registers)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Any

from findleaks.disasm.machine import Effect, Machine, Memory
from findleaks.disasm.mnemonics import CHANGED, CHANGES_MORE, IGNORED, SET, SET_VECTOR, SET_VEX, STOPS, STORES, ZEROING
from findleaks.disasm.registers import ARGUMENTS, GENERAL, NARROW, WIDE, general
from findleaks.disasm.system_calls import X86_64_CALLS
from findleaks.errors import UnreadableMemory

X87 = 1 << 16  # the x87 stack, which MMX registers share, as one bit
_MASKS_AT, _VECTORS_AT, VECTORS = 17, 32, 32
LOW, MIDDLE, HIGH = 1, 2, 4  # parts of a vector register: bits 0-127 (xmm), 128-255, 256-511
REGISTERS = (1 << (_VECTORS_AT + 3 * VECTORS)) - 1
ALL_GENERAL = 0xFFFF
CALLEE_SAVED = sum(1 << GENERAL.index(name) for name in ("rbx", "rsp", "rbp", "r12", "r13", "r14", "r15"))
ZONE = 128  # bytes of the red zone: mask bits from ZONE_AT on, lowest address first
ZONE_AT = 160
ALL_ZONE = ((1 << ZONE) - 1) << ZONE_AT


def vector(number: int, parts: int = LOW | MIDDLE | HIGH) -> int:
    """Return the mask of these parts (LOW, MIDDLE, HIGH) of a vector register."""
    return parts << (_VECTORS_AT + 3 * number)


def opmask(number: int) -> int:
    """Return the mask of an AVX-512 k register."""
    return 1 << (_MASKS_AT + number)


ALL_VECTORS = sum(vector(number) for number in range(VECTORS)) | sum(opmask(number) for number in range(8)) | X87
# Registers that return values (System V ABI)
RETURNED = general("rax", "rdx") | vector(0) | vector(1) | X87
_NEUTRAL = {"rip", "eip", "rflags", "eflags", "fpsw", "mxcsr", "cs", "ds", "es", "fs", "gs", "ss", ""}


def register(name: str) -> tuple[int, int]:
    """Return (read, overwritten): two masks for a register. `read` is for an instruction that reads
    the register. `overwritten` is for an instruction without VEX prefix that sets the whole
    register. `name`: capstone's name of the register."""
    if name in WIDE:
        return (general(WIDE[name]),) * 2
    if name in NARROW:
        return general(NARROW[name]), 0
    match = re.fullmatch(r"([xyz])mm(\d+)", name)
    if match:
        number = int(match[2])
        parts = {"x": LOW, "y": LOW | MIDDLE, "z": LOW | MIDDLE | HIGH}[match[1]]
        return vector(number, parts), vector(number, LOW if parts == LOW else LOW | MIDDLE | HIGH)
    if re.fullmatch(r"k[0-7]", name):
        return (opmask(int(name[1])),) * 2
    if re.fullmatch(r"(st|mm)(\(?[0-7]\)?)?|fp[0-7]", name):
        return X87, 0
    return (0, 0) if name in _NEUTRAL else (REGISTERS, 0)


def mask_of(name: str) -> int:
    """Return the mask of a word, named as in findleaks.target.register_words; 0 for other names."""
    if " or " in name:
        masks = [mask_of(one) for one in name.split(" or ")]
        return reduce(or_, masks) if all(masks) else 0
    if name in GENERAL:
        return general(name)
    match = re.fullmatch(r"(xmm|ymm|zmm|k|st)(\d+)", name)
    if not match:
        return 0
    kind, number = match[1], int(match[2])
    parts = {"xmm": LOW, "ymm": MIDDLE, "zmm": HIGH}
    return {"st": X87, "k": opmask(number)}.get(kind) or vector(number, parts[kind])


_IMPLICIT_ROWS = (  # names, registers read and overwritten in addition to the operands
    ("mul cbw cwde cdqe lahf sahf", "rax", ""),
    ("div idiv cwd xrstor xrstor64 xrstors xrstors64 fxrstor fxrstor64", "rax rdx", ""),
    ("cdq cqo", "rax", "rdx"),
    ("cpuid", "rax rcx", "rbx rdx"),
    ("rdtsc", "", "rax rdx"),
    ("rdtscp", "", "rax rdx rcx"),
    ("xgetbv", "rcx", "rax rdx"),
    ("rdpkru", "rcx", ""),
    ("wrpkru", "rax rcx rdx", ""),
    ("xlatb", "rax rbx", ""),
    ("leave", "rbp", ""),
    ("cmpxchg8b cmpxchg16b", "rax rdx rbx rcx", ""),
)
_SAVES = "xsave xsave64 xsavec xsavec64 xsaveopt xsaveopt64 xsaves xsaves64 fxsave fxsave64"
_IMPLICIT = {
    **{
        name: (general(*read.split()), general(*overwritten.split()))
        for names, read, overwritten in _IMPLICIT_ROWS
        for name in names.split()
    },
    **dict.fromkeys(_SAVES.split(), (general("rax", "rdx") | ALL_VECTORS, 0)),
}
_UNKNOWN_VECTOR = re.compile(r"v4f|vp4dp|aesenc\w+kl|aesdec\w+kl|aesencw|aesdecw|encodekey|tile|td[pc]|v?maskmovq")
"""Vector instructions that use registers beyond their operands; they count as unknown."""
_IMPLICIT_READS = {
    **dict.fromkeys(("pblendvb", "blendvps", "blendvpd", "sha256rnds2"), vector(0, LOW)),
    **dict.fromkeys(("pcmpestri", "pcmpestrm", "vpcmpestri", "vpcmpestrm"), general("rax", "rdx")),
    **dict.fromkeys(("maskmovdqu", "vmaskmovdqu"), general("rdi")),
}
_STRINGS = {0xA4, 0xA5, 0xA6, 0xA7, 0xAA, 0xAB, 0xAC, 0xAD, 0xAE, 0xAF}
_CHANGED_READS = {"mulx": general("rdx"), "cmpxchg": general("rax")}
_VECTOR = re.compile(r"[xyz]mm(\d+)")
_CLEARED = {
    "vzeroupper": sum(vector(number, MIDDLE | HIGH) for number in range(16)),
    "vzeroall": sum(vector(number) for number in range(16)),
}
_REG, _IMM, _MEM = 1, 2, 3  # capstone's X86_OP_…


def effect(insn: Any) -> Effect:
    """Return the effect of an instruction that capstone decoded with details."""
    name, address, size = insn.insn_name(), insn.address, insn.size
    made = _flow(insn, name)
    if made is not None:
        return made
    operands: Sequence[Any] = insn.operands
    names = [insn.reg_name(one.reg) or "" if one.type == _REG else "" for one in operands]
    memory, through = _memory(insn, name, operands)
    if insn.opcode[0] in _STRINGS and not insn.opcode[1] and not any(one[1:3] == "mm" for one in names):
        reads = through | _read(names) | general("rax", "rsi", "rdi", "rcx")
        return Effect(address, size, reads, 0, memory=memory, changed=ALL_GENERAL)
    if name in IGNORED:
        return Effect(address, size, 0, _CLEARED.get(name, 0))
    if name in STOPS:
        return Effect(address, size, 0, 0, "stop")
    moved = _find_stack_change(insn, name, names, operands)
    masks = _masks(insn, name, names, through)
    if isinstance(moved, str) or masks is None:
        return Effect(address, size, REGISTERS, 0, "unknown")
    reads, kills = masks
    constant, copied = _value_set(insn, name, names, kills)
    from_rbp = _from_rbp(insn, name, names, operands) if moved is None else None
    changed = ALL_GENERAL if name in CHANGES_MORE or name not in SET | CHANGED else _read(names[:1]) & ALL_GENERAL
    keeps_rbp = name in ("push", "cmp", "test") or not names or names[0] not in ("rbp", "ebp", "bp", "bpl")
    writes_rbp = name == "leave" or not keeps_rbp
    copies = _copies(name, names)
    pushed = any(one.base == "rsp" and one.offset in (0, -8) and abs(moved or 0) == 8 for one in memory)
    saved = kills | reads if pushed else 0
    return Effect(address, size, reads, kills, "next", 0, 0, moved, from_rbp, memory, changed, constant, copied, writes_rbp, copies, saved)


def _masks(insn: Any, name: str, names: Sequence[str], through: int) -> tuple[int, int] | None:
    """Return (registers read, registers overwritten) by an instruction. `names` are its register
    operands ("" for others), and `through` is the mask of registers that address its memory
    operands. None if unknown."""
    reads = through | _read(names)
    if name in _IMPLICIT:
        more, kills = _IMPLICIT[name]
        return reads | more, kills
    if name == "imul" and len(names) == 1:
        return reads | general("rax"), 0
    same = len(names) >= 2 and names[0] and names[-2] == names[-1] and (len(names) == 3 or names[0] == names[1])
    if name in ZEROING and same and not _preserves_destination(insn):
        return 0, _whole(names[0], name)
    if name in SET or name.startswith("set") or (name == "imul" and len(names) == 3):
        partial = name in ("movd", "movq") and re.fullmatch(r"mm\d", names[0])
        return through | _read(names[1:]), 0 if partial else _whole(names[0], name)
    if name in CHANGED or name.startswith("cmov"):
        return reads | _CHANGED_READS.get(name, 0), 0
    if any(map(_VECTOR.fullmatch, names)) or "mm" in (insn.op_str or ""):
        return _vector_masks(insn, name, names, through)
    if name.startswith("k") and all(re.fullmatch(r"k[0-7]|", one) for one in names):
        return reads, 0
    return (reads | X87 | general("rax"), 0) if name.startswith("f") else None


def _vector_masks(insn: Any, name: str, names: Sequence[str], through: int) -> tuple[int, int] | None:
    if _UNKNOWN_VECTOR.match(name):
        return None
    loaded = name in ("movss", "movsd") and len(names) == 2 and insn.operands[1].type == _MEM
    if (name in SET_VECTOR or name in SET_VEX or loaded) and not _preserves_destination(insn):
        return through | _implicit(insn, names[0]) | _read(names[1:]), _whole(names[0], name)
    return through | _read(names) | _implicit(insn) | _IMPLICIT_READS.get(name, 0), 0


def _value_set(insn: Any, name: str, names: Sequence[str], kills: int) -> tuple[int | None, int]:
    """Return `Effect.constant` and `Effect.copied`."""
    # If the instruction overwrites its first operand, both operands are the same register, which is
    # cleared.
    if kills & ALL_GENERAL and name in ("xor", "sub"):
        return 0, -1
    if kills & ALL_GENERAL and name in ("mov", "movabs"):
        if insn.operands[1].type == _IMM:
            return insn.operands[1].imm & ((1 << 8 * insn.operands[0].size) - 1), -1
        if names[1] in WIDE:
            return None, GENERAL.index(WIDE[names[1]])
    return None, -1


def _flow(insn: Any, name: str) -> Effect | None:
    """Return the effect of an instruction that transfers control; None for other instructions."""
    address, size = insn.address, insn.size
    if name == "ret":
        return Effect(address, size, 0, 0, "unknown" if insn.operands else "return")
    if name == "syscall":
        return Effect(address, size, 0, 0, "system")
    if name in ("call", "jmp"):
        one = insn.operands[0]
        memory, through = _memory(insn, name, insn.operands)
        if one.type == _IMM:
            return Effect(address, size, 0, 0, "call" if name == "call" else "jump", one.imm & ((1 << 64) - 1))
        if one.type == _MEM and not through and not one.mem.segment and insn.reg_name(one.mem.base) == "rip":
            return Effect(address, size, 0, 0, "call" if name == "call" else "jump", 0, (address + size + one.mem.disp) & ((1 << 64) - 1))
        if name == "jmp":
            return Effect(address, size, REGISTERS, 0, "unknown")
        held = register(insn.reg_name(one.reg) or "?")[0] if one.type == _REG else through
        return Effect(address, size, held, 0, "call", memory=memory)
    if name.startswith(("j", "loop")):
        counted = general("rcx") if "cxz" in name or name.startswith("loop") else 0
        return Effect(address, size, counted, 0, "branch", insn.operands[0].imm & ((1 << 64) - 1))
    return None


def _memory(insn: Any, name: str, operands: Sequence[Any]) -> tuple[tuple[Memory, ...], int]:
    """Return (operands on the stack, mask of the registers from which addresses are computed)."""
    found, through = [], 0
    if name in ("push", "pop"):
        found.append(Memory("rsp", -8 if name == "push" else 0, 8, True, name == "pop", name == "push"))
    for number, one in enumerate(operands):
        if one.type != _MEM:
            continue
        base, index = insn.reg_name(one.mem.base) or "", insn.reg_name(one.mem.index) or ""
        through |= register(base)[0] | register(index)[0]
        stack = base if base in ("rsp", "rbp") else index if index in ("rsp", "rbp") else ""
        if stack:
            stored = number == 0 and len(operands) > 1 and bool(STORES.fullmatch(name))
            plain = name != "lea"
            exact = stack == base and not index and not one.mem.segment
            found.append(Memory(stack, one.mem.disp, one.size, exact, plain and not stored, stored))
    return tuple(found), through


def _find_stack_change(insn: Any, name: str, names: Sequence[str], operands: Sequence[Any]) -> int | str | None:
    """Return the number that is added to rsp. None means that rsp moves elsewhere in the
    same stack, "unknown" that it may move to another stack."""
    if name == "push":
        return -8 if operands[0].size == 8 or operands[0].type == _IMM else None
    if name == "pop":
        return "unknown" if names[0] == "rsp" else 8 if operands[0].size == 8 else None
    if name == "leave":
        return None
    if not names or names[0] not in ("rsp", "esp", "sp", "spl"):
        return "unknown" if name == "xchg" and any(one in ("rsp", "esp") for one in names) else 0
    if name in ("cmp", "test"):
        return 0
    if name in ("add", "sub") and operands[1].type == _IMM:
        return int(operands[1].imm) * (1 if name == "add" else -1)
    if name == "lea":
        base, index = insn.reg_name(operands[1].mem.base), insn.reg_name(operands[1].mem.index)
        if base == "rsp" and not index:
            return int(operands[1].mem.disp)
        # gcc realigns the stack through r10 or r13.
        return None if base in ("rbp", "r10", "r13") and not index else "unknown"
    if name in ("and", "sub", "add") or (name == "mov" and names[1] == "rbp"):
        return None
    return "unknown"


def _from_rbp(insn: Any, name: str, names: Sequence[str], operands: Sequence[Any]) -> int | None:
    """Return the number that is added to rbp to compute the new rsp; None if rsp is computed in
    another way."""
    if name == "leave":
        return 8
    if name == "mov" and names[1:] == ["rbp"]:
        return 0
    if name == "lea" and insn.reg_name(operands[1].mem.base) == "rbp":
        return int(operands[1].mem.disp)
    return None


def _copies(name: str, names: Sequence[str]) -> tuple[str, ...]:
    if name in ("cmp", "test"):
        return ()
    taken = names if name == "push" else names[1:] if names[:1] != ["rsp"] else ()
    return tuple(
        one for one in ("rsp", "rbp") if one in taken and (name, one) != ("push", "rbp") and not (one == "rsp" and names[0] == "rbp")
    )


def _read(names: Sequence[str]) -> int:
    """Return the mask of these registers if an instruction reads them; "" stands for none."""
    reads = 0
    for name in names:
        reads |= register(name)[0]
    return reads


def _whole(name: str, by: str) -> int:
    """Return the mask of what an instruction with the mnemonic `by` overwrites when it sets the
    register `name` ("": none)."""
    match = _VECTOR.fullmatch(name)
    return vector(int(match[1])) if match and by.startswith("v") else register(name)[1]


def _preserves_destination(insn: Any) -> bool:
    """Return whether an EVEX-coded instruction preserves a part of its destination because of a
    mask."""
    data = bytes(insn.bytes)
    at = next((index for index in range(min(5, len(data))) if data[index] not in (0x2E, 0x36, 0x3E, 0x26, 0x64, 0x65, 0x66, 0x67)), 0)
    return data[at] == 0x62 and len(data) > at + 3 and bool(data[at + 3] & 7)


def _implicit(insn: Any, without: str = "") -> int:
    """Return the mask of the registers that capstone lists as read implicitly, except the one named
    `without`."""
    names = (insn.reg_name(number) or "" for number in insn.regs_access()[0])
    return _read([name for name in names if name != without])


def _find_call(before: bytes) -> str:
    """See Machine. TLS descriptors are called by `call *(%rax)`."""
    if before[2] == 0xE8 or any(before[-size] == 0xFF and before[-size + 1] >> 3 & 7 == 2 for size in (2, 3, 4, 6, 7)):
        return "keeping" if before[5:7] == b"\xff\x10" else "call"
    return ""


def _in_stub(read: Callable[[int, int], bytes], jump: Effect) -> bool:
    if jump.flow != "jump":
        return False
    try:
        around = read(jump.address - 4, 4 + jump.size + 10)
    except UnreadableMemory:
        return False
    behind = around[4 + jump.size :]
    guarded = around[:4] == b"\xf3\x0f\x1e\xfa" and behind[:3] in (b"\x0f\x1f\x44", b"\x66\x0f\x1f", b"\x66\x90\xf3")
    return guarded or behind[:2] == b"\x66\x90" or (behind[0] == 0x68 and behind[5] == 0xE9)


X86_64 = Machine(
    decoder=("CS_ARCH_X86", "CS_MODE_64"),
    effect=effect,
    mask_of=mask_of,
    general=GENERAL,
    registers=REGISTERS,
    not_taken=ALL_VECTORS,
    if_unknown=REGISTERS,
    callee_saved=CALLEE_SAVED,
    sometimes_saved=0,
    arguments=ARGUMENTS,
    returned=RETURNED,
    link=0,
    red_zone=True,
    calls=X86_64_CALLS,
    before_return=7,
    called=_find_call,
    in_stub=_in_stub,
    stub_bytes=lambda code: 0,  # stubs have call frame information
)
