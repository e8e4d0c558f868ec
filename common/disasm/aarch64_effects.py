"""Compute which registers an AArch64 instruction reads and overwrites, as masks, for liveness.py.

The result is conservative, as in effects.py for x86-64: it may report reads that do not happen, but
a register in the overwritten mask is certainly overwritten as a whole. Capstone names all operands,
but reports wrongly for many instructions whether an operand is read or written (cmp, atomics, SVE,
instructions such as xtn2 that keep the lower half). Therefore only instructions listed here
overwrite registers; all others read their operands. Writing the low part of a vector register
clears the rest, including SVE's extension, so a vector register has one bit. Predicate registers
cannot contain pointers and are ignored.

Sources: Arm Architecture Reference Manual for A-profile (DDI 0487), C6.2, C7.2, B1.2.1; Procedure
Call Standard for the Arm 64-bit Architecture 2023Q3 (AAPCS64), 6.1 (registers), 6.9 (results);
Vector Function Application Binary Interface 2023Q3 (v8-v23 preserved); ELF for the Arm 64-bit
Architecture 2023Q3, 5.7 (TLS descriptors); stubs: GNU Binutils, bfd/elfnn-aarch64.c."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

from findleaks.disasm.machine import Effect, Machine
from findleaks.disasm.system_calls import AARCH64_CALLS
from findleaks.errors import UnreadableMemory

GENERAL = AARCH64_CALLS.registers
_SP, _VECTORS_AT = 31, 32
ALL_GENERAL = (1 << len(GENERAL)) - 1
VECTORS = 0xFFFFFFFF << _VECTORS_AT
REGISTERS = ALL_GENERAL | 1 << _SP | VECTORS
_FRAME, _LINK = 1 << 29, 1 << 30
_RETURNED = 0b11 | 0xFF << _VECTORS_AT  # x0, x1; v0-v7, because tuples of SVE may take all of these
_MASKS = {
    **{f"{letter}{number}": 1 << number for number in range(31) for letter in "xw"},
    **{"fp": _FRAME, "lr": _LINK, "sp": 1 << _SP, "wsp": 1 << _SP, "xzr": 0, "wzr": 0, "nzcv": 0, "ffr": 0, "": 0},
    **{f"{letter}{number}": 1 << (_VECTORS_AT + number) for number in range(32) for letter in "bhsdqvz"},
    **{f"p{number}": 0 for number in range(16)},
}
"""Masks by capstone's register names."""
_NUMBERS = {name: mask.bit_length() - 1 for name, mask in _MASKS.items() if mask & ALL_GENERAL}
_WIDE = {name for name in _NUMBERS if name[0] == "x"} | {"fp", "lr"}


def mask_of(name: str) -> int:
    """Return the mask of a word, named as in findleaks.target.register_words; 0 for other names."""
    return _MASKS.get(name, 0) if name[:1] in ("x", "v") else 0


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SET = _names(
    """
    adc adcs add adds adr adrp and ands asr bic bics cinc cinv clz cls cneg crc32b crc32cb crc32ch crc32cw crc32cx crc32h crc32w crc32x
    cset csetm csel csinc csinv csneg eon eor extr lsl lsr madd mneg mov movn movz mrs msub mul mvn neg negs ngc ngcs orn orr rbit rev
    rev16 rev32 rev64 ror sbc sbcs sbfiz sbfx sdiv smaddl smnegl smov smsubl smulh smull stlxp stlxr stlxrb stlxrh stxp stxr stxrb stxrh sub
    subs sxtb sxth sxtw ubfiz ubfx udiv umaddl umnegl umov umsubl umulh umull uxtb uxth uxtw
    """
)
"""Instructions that overwrite the first operand as a whole, and read all other operands."""

_SET_VECTOR = _names(
    """
    abs addhn addp addv cmeq cmge cmgt cmhi cmhs cmle cmlt cmtst cnt dup ext fabd fabs fadd faddp fcmeq fcmge fcmgt fcmle fcmlt fcsel
    fcvt fcvtl fcvtn fdiv fmadd fmax fmaxnm fmaxnmp fmaxnmv fmaxp fmaxv fmin fminnm fminnmp fminnmv fminp fminv fmov fmsub fmul fmulx
    fneg fnmadd fnmsub fnmul frecpe frecps frsqrte frsqrts fsqrt fsub movi mvni not pmull sabd sabdl saddl saddlp saddlv saddw scvtf
    shadd shl shll shrn shsub smax smaxp smaxv smin sminp sminv sqabs sqadd sqneg sqshl sqsub sqxtn sqxtun srshl sshl sshll sshr ssubl
    ssubw subhn sxtl tbl trn1 trn2 uabd uabdl uaddl uaddlp uaddlv uaddw ucvtf uhadd uhsub umax umaxp umaxv umin uminp uminv uqadd uqsub
    uqxtn urhadd urshl ushl ushll ushr usubl usubw uxtl uzp1 uzp2 xtn zip1 zip2
    """
)
"""Vector instructions to which the description of _SET applies, unless the first operand is an SVE
register."""

_CONVERTS = re.compile(r"fcvt[amnpz][su]|frint[aimnpxz]")
_KEEPS_IMMEDIATE = ("bic", "orr")
"""Instructions that also read the first operand, if their only other operand is a constant."""

_LOADS = re.compile(r"ld(?:u|t|a|ap|apu|la|x|ax)?r(?:s?[bh]|sw)?")
_LOADS_PAIR = _names("ldp ldnp ldpsw ldxp ldaxp")
_LOADS_VECTORS = re.compile(r"ld[1-4]r?")
_ATOMIC = re.compile(r"(?:swp|ld(?:add|clr|eor|set|[su]max|[su]min))(?:a|l|al)?[bh]?")
"""Instructions that overwrite the second operand with the previous memory content."""
_STORES = _names("str stur stp stnp")

_IGNORED = _names("bti clrex csdb dgh dmb dsb esb isb nop pssbb psb sb sev sevl ssbb tsb wfe wfi yield")
_SIGNS_LINK = _names("autiasp autiaz autibsp autibz paciasp paciaz pacibsp pacibz xpaclri")
_SIGNS_17 = _names("autia1716 autib1716 pacia1716 pacib1716")
_UNKNOWN = re.compile(r"drps|eret\w*|hlt|hvc|smc|ld64b|st64b\w*|smst\w+|dcps\d")
"""Instructions that use registers beyond their operands, or transfer control."""

_TRAPS = (1, 1000)  # brk of compilers' traps: Clang's, GCC's
_ALWAYS = (0, 15, 16)  # no condition, and capstone's ARM64_CC_AL and ARM64_CC_NV
_REG, _IMM, _MEM = 1, 2, 3  # capstone's ARM64_OP_…
_MASK = (1 << 64) - 1


def effect(insn: Any) -> Effect:
    """Return the effect of an instruction that capstone decoded with details."""
    name, address = insn.insn_name(), insn.address
    operands: Sequence[Any] = insn.operands
    names = [insn.reg_name(one.reg) or "" if one.type == _REG else "" for one in operands]
    made = _flow(insn, name, names, operands)
    if made is not None:
        return made
    if name in _IGNORED:
        return Effect(address, 4, 0, 0)
    if name in _SIGNS_LINK:
        return Effect(address, 4, _LINK | 1 << _SP, 0, changed=_LINK)
    if name in _SIGNS_17:
        return Effect(address, 4, 0b11 << 16, 0, changed=1 << 17)
    if name == "hint":
        return Effect(address, 4, 0b11 << 16 | _LINK, 0, changed=0b11 << 16 | _LINK)
    kills = _find_overwritten(insn, name, names, operands)
    through = _find_address_registers(insn, operands)
    sets = names[0] if names else ""
    if sets in ("sp", "wsp") and name not in ("cmp", "cmn") and not _same_stack(name, names):
        return Effect(address, 4, REGISTERS, 0, "unknown")
    loaded = name in _LOADS_PAIR or _LOADS.fullmatch(name) is not None
    if not kills:
        read = list(names)
    elif _LOADS_VECTORS.fullmatch(name):
        read = [one for one in names if one[:1] == "x"]  # base registers that are updated
    else:
        read = [] if name in _LOADS_PAIR else list(names[:1]) if _ATOMIC.fullmatch(name) else list(names[1:])
    base = _base(insn, operands)
    on_stack = base in ("sp", "fp")
    moved = _mask(names) if on_stack and (loaded or name in _STORES) else 0
    constant, copied, loads = _value_set(insn, name, names, operands)
    back = _mask([base]) if insn.writeback else 0
    changed = kills | back if kills else through | _mask(names)
    redirects = None if not kills & _LINK else not (loaded and on_stack)
    return Effect(
        address,
        4,
        through | _mask(read),
        kills & ~back,
        changed=changed & ALL_GENERAL,
        constant=constant,
        copied=copied,
        saved=moved,
        loads=loads,
        redirects=redirects,
    )


def _find_overwritten(insn: Any, name: str, names: Sequence[str], operands: Sequence[Any]) -> int:
    """Return the mask of registers that an instruction sets as a whole; 0 if unknown."""
    if not names or any(one[:1] in ("z", "p") and one[1:].isdigit() for one in names):
        return 0
    if any(one.vector_index >= 0 for one in operands[:1]):
        return 0
    if name in _LOADS_PAIR:
        return _mask(names[:2])
    if _LOADS.fullmatch(name):
        return _mask(names[:1])
    if _ATOMIC.fullmatch(name):
        return _mask(names[1:2])
    if _LOADS_VECTORS.fullmatch(name):
        return _mask([one for one in names if one[:1] == "v"]) if all(one.vector_index < 0 for one in operands) else 0
    vector = names[0][:1] in tuple("bhsdqv")
    if vector and name in _KEEPS_IMMEDIATE and not any(names[1:]):
        return 0
    known = name in _SET or name in _SET_VECTOR or _CONVERTS.fullmatch(name)
    return _mask(names[:1]) if known and "[" not in insn.op_str.split(",")[0] else 0


def _flow(insn: Any, name: str, names: Sequence[str], operands: Sequence[Any]) -> Effect | None:
    """Return the effect of an instruction that transfers control; None for other instructions."""
    address = insn.address
    immediate = operands[-1].imm & _MASK if operands and operands[-1].type == _IMM else None
    if name == "b" and immediate is not None:
        return Effect(address, 4, 0, 0, "jump" if insn.cc in _ALWAYS else "branch", immediate)
    if name in ("cbz", "cbnz", "tbz", "tbnz") and immediate is not None:
        return Effect(address, 4, _mask(names), 0, "branch", immediate)
    if name == "bl" and immediate is not None:
        return Effect(address, 4, 0, _LINK, "call", immediate)
    if name in ("blr", "br"):
        flow, kills = ("call", _LINK) if name == "blr" else ("jump", 0)
        return Effect(address, 4, _mask(names), kills, flow, via=_NUMBERS.get(names[0], -1))
    if name.startswith("blra"):
        return Effect(address, 4, _mask(names), _LINK, "call")
    if name.startswith("ret"):
        return Effect(address, 4, _LINK | 1 << _SP, 0, "return" if names in ([], ["lr"]) else "unknown")
    if name == "svc":
        return Effect(address, 4, 0, 0, "unknown" if immediate else "system")
    if name == "udf" or (name == "brk" and immediate in _TRAPS):
        return Effect(address, 4, 0, 0, "stop")
    if name.startswith(("b.", "bc", "bra", "brk")) or name == "b" or _UNKNOWN.fullmatch(name):
        return Effect(address, 4, REGISTERS, 0, "unknown")
    return None


def _mask(names: Sequence[str]) -> int:
    """Return the mask of these registers. "" stands for none, and an unknown name for any
    register."""
    made = 0
    for name in names:
        made |= _MASKS.get(name, REGISTERS)
    return made


def _base(insn: Any, operands: Sequence[Any]) -> str:
    return next((insn.reg_name(one.mem.base) or "" for one in operands if one.type == _MEM), "")


def _find_address_registers(insn: Any, operands: Sequence[Any]) -> int:
    """Return the mask of the registers that are used to compute addresses."""
    return _mask([insn.reg_name(part) or "" for one in operands if one.type == _MEM for part in (one.mem.base, one.mem.index)])


def _same_stack(name: str, names: Sequence[str]) -> bool:
    """Return whether the stack pointer still points into the same stack after an instruction that
    sets it. GCC realigns the stack pointer with `and`."""
    return name == "and" or (name in ("add", "sub", "mov") and len(names) > 1 and names[1] in ("sp", "fp"))


def _value_set(insn: Any, name: str, names: Sequence[str], operands: Sequence[Any]) -> tuple[int | None, int, bool]:
    """Return `Effect.constant`, `Effect.copied` and `Effect.loads`."""
    nothing = None, -1, False
    if len(operands) < 2 or names[0] not in _NUMBERS:
        return nothing
    second = operands[1]
    wide = names[0] in _WIDE
    if name in ("mov", "adr", "adrp") and second.type == _IMM:
        return second.imm & (_MASK if wide else 0xFFFFFFFF), -1, False
    if not wide:
        return nothing
    if name == "mov" and names[1] in _WIDE:
        return None, _NUMBERS[names[1]], False
    if name == "add" and names[1] in _WIDE and operands[2].type == _IMM:
        return operands[2].imm << operands[2].shift.value, _NUMBERS[names[1]], False
    if name == "ldr" and second.type == _MEM and not insn.writeback and not second.mem.index:
        base = insn.reg_name(second.mem.base) or ""
        return (second.mem.disp, _NUMBERS[base], True) if base in _WIDE else nothing
    return nothing


def _find_call(before: bytes) -> str:
    """See Machine. TLS descriptors are called by a blr after instructions that set x0 to the
    descriptor."""
    *_, earlier, call = struct.unpack("<2I", before)
    if call & 0xFC000000 == 0x94000000 or call & 0xFEFFF800 == 0xD63F0800:  # bl; blraa and the like
        return "call"
    if call & 0xFFFFFC1F != 0xD63F0000:  # blr
        return ""
    # add x0, x0, …; adr x0, …
    descriptor = earlier & 0xFF8003FF == 0x91000000 or earlier & 0x9F00001F == 0x10000000
    return "keeping" if descriptor else "call"


_STUB = ((0x9F00001F, 0x90000010), (0xFFC003FF, 0xF9400211), (0xFF8003FF, 0x91000210), (0xFFFFFFFF, 0xD61F0220))
"""adrp x16; ldr x17, [x16, …]; add x16, x16, …; br x17: masks and values."""
_BTI = struct.pack("<I", 0xD503245F)  # bti c


def stub_bytes(code: bytes) -> int:
    """Return the length of the PLT stub at the beginning of `code`; 0 if there is no stub."""
    front = len(_BTI) if code.startswith(_BTI) else 0
    words = struct.unpack_from("<4I", code, front) if len(code) >= front + 16 else ()
    return front + 16 if words and all(word & mask == value for word, (mask, value) in zip(words, _STUB)) else 0


def _in_stub(read: Callable[[int, int], bytes], one: Effect) -> bool:
    """Whether `one` is the load of a PLT stub."""
    try:
        return stub_bytes(read(one.address - 4, 16)) > 0
    except UnreadableMemory:
        return False


AARCH64 = Machine(
    decoder=("CS_ARCH_ARM64", "CS_MODE_ARM"),
    effect=effect,
    mask_of=mask_of,
    general=GENERAL,
    registers=REGISTERS,
    not_taken=0x3FF << 9 | VECTORS,
    if_unknown=VECTORS,
    callee_saved=0x3FF << 19 | _FRAME | 1 << _SP | 0xFF << _VECTORS_AT + 8,
    sometimes_saved=0xFFFF << _VECTORS_AT + 8,
    arguments=GENERAL[:8],
    returned=_RETURNED,
    link=_LINK,
    red_zone=False,
    calls=AARCH64_CALLS,
    before_return=8,
    called=_find_call,
    in_stub=_in_stub,
    stub_bytes=stub_bytes,
)
