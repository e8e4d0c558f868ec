"""What an x86-64 instruction reads and overwrites, as masks of registers, for liveness.py.

The result is conservative: more may be given as read than is; what is given as overwritten
certainly is, as a whole. Capstone names the operands and the implicit registers. Where it says that
a register is only written, it is not trusted, as it says so of cmov and of gathers, which may
preserve the register: only instructions listed here overwrite. An instruction that matches nothing
here reads everything.

Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volumes 1 (3.4.1.1: a 32-bit
result clears the upper half; 14.1.4: VEX-coded instructions clear what is above their result) and 2
(each instruction); System V ABI, AMD64 supplement 1.0, 3.2 (registers).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from findleaks.disasm.mnemonics import CHANGED, CHANGES_MORE, IGNORED, SET, SET_VECTOR, SET_VEX, STOPS, STORES, ZEROING
from findleaks.disasm.registers import GENERAL, NARROW, WIDE, general

X87 = 1 << 16
"""The x87 stack, which MMX's registers share, as one bit."""
_MASKS_AT, _VECTORS_AT, VECTORS = 17, 32, 32
LOW, MIDDLE, HIGH = 1, 2, 4
"""Parts of a vector register: bits 0-127 (xmm), 128-255, and 256-511."""
REGISTERS = (1 << (_VECTORS_AT + 3 * VECTORS)) - 1
ALL_GENERAL = 0xFFFF
CALLEE_SAVED = sum(1 << GENERAL.index(name) for name in ("rbx", "rsp", "rbp", "r12", "r13", "r14", "r15"))
ZONE = 128
"""Bytes of the red zone. The mask's bits from ZONE_AT on represent them, the lowest address
first."""
ZONE_AT = 160
ALL_ZONE = ((1 << ZONE) - 1) << ZONE_AT


def vector(number: int, parts: int = LOW | MIDDLE | HIGH) -> int:
    """The mask of parts of a vector register."""
    return parts << (_VECTORS_AT + 3 * number)


def opmask(number: int) -> int:
    """The mask of one of AVX-512's k registers."""
    return 1 << (_MASKS_AT + number)


ALL_VECTORS = sum(vector(number) for number in range(VECTORS)) | sum(opmask(number) for number in range(8)) | X87
RETURNED = general("rax", "rdx") | vector(0) | vector(1) | X87
"""Registers in which the ABI lets a function return values."""

_NEUTRAL = {"rip", "eip", "rflags", "eflags", "fpsw", "mxcsr", "cs", "ds", "es", "fs", "gs", "ss", ""}


def register(name: str) -> tuple[int, int]:
    """The masks (read, overwritten) of a register, by capstone's name: by an instruction that reads
    it, and by one that sets all of it and is not VEX-coded."""
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
    """The mask of a word of a register, named as in findleaks.target.register_words; 0 for other
    names."""
    if name in GENERAL:
        return general(name)
    match = re.fullmatch(r"(xmm|ymm|zmm|k|st)(\d+)", name)
    if not match:
        return 0
    kind, number = match[1], int(match[2])
    if kind in ("st", "k"):
        return X87 if kind == "st" else opmask(number)
    return vector(number, {"xmm": LOW, "ymm": MIDDLE, "zmm": HIGH}[kind])


class Memory(NamedTuple):
    """An operand on the stack: `base` is "rsp" or "rbp"; `exact` is False if it has an index.
    Neither `read` nor `written`: its address is only computed."""

    base: str
    offset: int
    size: int
    exact: bool
    read: bool
    written: bool


class Effect(NamedTuple):
    """What one instruction does. `reads` and `kills` are the masks of what it reads and overwrites.

    `flow`: "next", "branch" (also to `target`), "jump", "call", "return", "stop" (execution ends),
    "system" (a system call), "unknown" (reads everything). `target` is 0 if it is not known; `slot`
    is the address that it is loaded from, 0 if there is none.

    `moved` is what is added to rsp; None: rsp becomes rbp + `from_rbp`, or another address in the
    same stack. `changed` are the general registers that it may change; `constant` is the number
    that the one in `kills` is set to, `copied` the number of the register that it is copied from.
    `copies`: those of rsp and rbp that are copied to memory or a register other than rbp.
    """

    address: int
    size: int
    reads: int
    kills: int
    flow: str = "next"
    target: int = 0
    slot: int = 0
    moved: int | None = 0
    from_rbp: int | None = None
    memory: tuple[Memory, ...] = ()
    changed: int = 0
    constant: int | None = None
    copied: int = -1
    writes_rbp: bool = False
    copies: tuple[str, ...] = ()


_IMPLICIT: dict[str, tuple[int, int]] = {  # (read, overwritten) in addition to the operands
    "mul": (general("rax"), 0),
    "div": (general("rax", "rdx"), 0),
    "idiv": (general("rax", "rdx"), 0),
    "cwd": (general("rax", "rdx"), 0),
    "cdq": (general("rax"), general("rdx")),
    "cqo": (general("rax"), general("rdx")),
    "cbw": (general("rax"), 0),
    "cwde": (general("rax"), 0),
    "cdqe": (general("rax"), 0),
    "cpuid": (general("rax", "rcx"), general("rbx", "rdx")),
    "rdtsc": (0, general("rax", "rdx")),
    "rdtscp": (0, general("rax", "rdx", "rcx")),
    "xgetbv": (general("rcx"), general("rax", "rdx")),
    "rdpkru": (general("rcx"), 0),
    "wrpkru": (general("rax", "rcx", "rdx"), 0),
    "lahf": (general("rax"), 0),
    "sahf": (general("rax"), 0),
    "xlatb": (general("rax", "rbx"), 0),
    "leave": (general("rbp"), 0),
    "cmpxchg8b": (general("rax", "rdx", "rbx", "rcx"), 0),
    "cmpxchg16b": (general("rax", "rdx", "rbx", "rcx"), 0),
    **dict.fromkeys(("xrstor", "xrstor64", "xrstors", "xrstors64", "fxrstor", "fxrstor64"), (general("rax", "rdx"), 0)),
    **dict.fromkeys(
        [f"{save}{wide}" for save in ("xsave", "xsavec", "xsaveopt", "xsaves", "fxsave") for wide in ("", "64")],
        (general("rax", "rdx") | ALL_VECTORS, 0),
    ),
}
_UNKNOWN_VECTOR = re.compile(r"v4f|vp4dp|aesenc\w+kl|aesdec\w+kl|aesencw|aesdecw|encodekey|tile|td[pc]|v?maskmovq")
"""Vector instructions that use more registers than their operands; they count as unknown."""
_IMPLICIT_READS = {
    **dict.fromkeys(("pblendvb", "blendvps", "blendvpd", "sha256rnds2"), vector(0, LOW)),
    **dict.fromkeys(("pcmpestri", "pcmpestrm", "vpcmpestri", "vpcmpestrm"), general("rax", "rdx")),
    **dict.fromkeys(("maskmovdqu", "vmaskmovdqu"), general("rdi")),
}
_STRINGS = {0xA4, 0xA5, 0xA6, 0xA7, 0xAA, 0xAB, 0xAC, 0xAD, 0xAE, 0xAF}
_REG, _IMM, _MEM = 1, 2, 3  # capstone's X86_OP_…


def effect(insn: Any) -> Effect:
    """The effect of an instruction that capstone decoded with details."""
    name, address, size = insn.insn_name(), insn.address, insn.size
    made = _flow(insn, name)
    if made is not None:
        return made
    operands: Sequence[Any] = insn.operands
    names = [insn.reg_name(one.reg) or "" if one.type == _REG else "" for one in operands]
    memory, through = _memory(insn, name, operands)
    reads = through
    for one in names:
        reads |= register(one)[0] if one else 0
    unknown = Effect(address, size, REGISTERS, 0, "unknown")
    if insn.opcode[0] in _STRINGS and not insn.opcode[1] and not any(one[1:3] == "mm" for one in names):
        return Effect(address, size, reads | general("rax", "rsi", "rdi", "rcx"), 0, memory=memory, changed=ALL_GENERAL)
    if name in IGNORED:
        kills = 0
        if name in ("vzeroupper", "vzeroall"):
            kills = sum(vector(number, MIDDLE | HIGH | (LOW if name == "vzeroall" else 0)) for number in range(16))
        return Effect(address, size, 0, kills)
    if name in STOPS:
        return Effect(address, size, 0, 0, "stop")
    moved = _moved(insn, name, names, operands)
    if moved == "unknown":
        return unknown
    rest: dict[str, Any] = {
        "moved": moved,
        "from_rbp": _from_rbp(insn, name, names, operands) if moved is None else None,
        "memory": memory,
        "writes_rbp": name == "leave" or (bool(names) and names[0] in ("rbp", "ebp", "bp", "bpl") and name not in ("push", "cmp", "test")),
        "copies": _copies(name, names),
        "changed": ALL_GENERAL if name in CHANGES_MORE or name not in SET | CHANGED else _changed(names),
    }
    if name in _IMPLICIT and not (name == "imul" and len(operands) > 1):
        more, kills = _IMPLICIT[name]
        return Effect(address, size, reads | more, kills)._replace(**rest)
    if name == "imul" and len(operands) == 1:
        return Effect(address, size, reads | general("rax"), 0)._replace(**rest)
    if name in ZEROING and len(names) >= 2 and names[0] and len(set(names[-2:])) == 1 and (len(names) == 3 or names[0] == names[1]):
        if not _masked(insn):
            rest["constant"] = 0 if name in ("xor", "sub") else None
            return Effect(address, size, 0, _whole(names[0], name))._replace(**rest)
    vectors = any(re.fullmatch(r"[xyz]mm\d+", one) for one in names) or "mm" in (insn.op_str or "")
    if name in SET or re.fullmatch(r"set\w+", name) or (name == "imul" and len(operands) == 3):
        whole = name not in ("movd", "movq") or not re.fullmatch(r"mm\d", names[0])
        return _set(insn, name, names, through, whole, rest)
    if name in CHANGED or name.startswith("cmov"):
        more = general("rdx") if name == "mulx" else general("rax") if name == "cmpxchg" else 0
        return Effect(address, size, reads | more, 0)._replace(**rest)
    if vectors:
        if _UNKNOWN_VECTOR.match(name):
            return unknown
        reads |= _implicit(insn) | _IMPLICIT_READS.get(name, 0)
        loaded = name in ("movss", "movsd") and len(operands) == 2 and operands[1].type == _MEM
        if (name in SET_VECTOR or name in SET_VEX or loaded) and not _masked(insn):
            return _set(insn, name, names, through | _implicit(insn, names[0]), True, rest)
        return Effect(address, size, reads, 0)._replace(**rest)
    if name.startswith("k") and all(re.fullmatch(r"k[0-7]|", one) for one in names):
        return Effect(address, size, reads, 0)._replace(**rest)
    if name.startswith("f"):
        return Effect(address, size, reads | X87 | general("rax"), 0)._replace(**rest)
    return unknown


def _flow(insn: Any, name: str) -> Effect | None:
    """The effect of an instruction that transfers control; None for all others."""
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
    """(its operands on the stack, the mask of the registers that its addresses are computed
    from)."""
    found, through = [], 0
    if name in ("push", "pop"):
        found.append(Memory("rsp", -8 if name == "push" else 0, 8, True, name == "pop", name == "push"))
    for number, one in enumerate(operands):
        if one.type != _MEM or name in ("nop",):
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


def _moved(insn: Any, name: str, names: Sequence[str], operands: Sequence[Any]) -> int | str | None:
    """What is added to rsp: a number; None: rsp becomes another address in the same stack;
    "unknown": it may become one in another stack."""
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
    """What is added to rbp to make the new rsp; None if that is made otherwise."""
    if name == "leave":
        return 8
    if name == "mov" and names[1:] == ["rbp"]:
        return 0
    if name == "lea" and insn.reg_name(operands[1].mem.base) == "rbp":
        return int(operands[1].mem.disp)
    return None


def _changed(names: Sequence[str]) -> int:
    return register(names[0])[0] & ALL_GENERAL if names and names[0] else 0


def _copies(name: str, names: Sequence[str]) -> tuple[str, ...]:
    """`Effect.copies`."""
    if name in ("cmp", "test"):
        return ()
    taken = names if name == "push" else names[1:] if names[:1] != ["rsp"] else ()
    return tuple(
        one for one in ("rsp", "rbp") if one in taken and (name, one) != ("push", "rbp") and not (one == "rsp" and names[0] == "rbp")
    )


def _set(insn: Any, name: str, names: Sequence[str], through: int, whole: bool, rest: dict[str, Any]) -> Effect:
    """The effect of an instruction that sets its first operand, and reads the others."""
    reads = through
    for one in names[1:]:
        reads |= register(one)[0] if one else 0
    kills = _whole(names[0], name) if names[0] and whole else 0
    if name in ("mov", "movabs") and kills & ALL_GENERAL:
        if insn.operands[1].type == _IMM:
            rest["constant"] = insn.operands[1].imm & ((1 << 8 * insn.operands[0].size) - 1)
        elif names[1] in WIDE:
            rest["copied"] = GENERAL.index(WIDE[names[1]])
    return Effect(insn.address, insn.size, reads, kills)._replace(**rest)


def _whole(name: str, by: str) -> int:
    """The mask of what the instruction `by` overwrites by setting the register `name`."""
    kills = register(name)[1]
    match = re.fullmatch(r"[xyz]mm(\d+)", name)
    return vector(int(match[1])) if match and by.startswith("v") else kills


def _masked(insn: Any) -> bool:
    """Whether an EVEX-coded instruction preserves part of its destination, by a mask."""
    data = bytes(insn.bytes)
    at = next((index for index in range(min(5, len(data))) if data[index] not in (0x2E, 0x36, 0x3E, 0x26, 0x64, 0x65, 0x66, 0x67)), 0)
    return data[at] == 0x62 and len(data) > at + 3 and bool(data[at + 3] & 7)


def _implicit(insn: Any, without: str = "") -> int:
    """The mask of what capstone says is read, except the register named `without`."""
    reads = 0
    for number in insn.regs_access()[0]:
        name = insn.reg_name(number) or ""
        reads |= register(name)[0] if name and name != without else 0
    return reads
