"""Find the pointer or index that made an instruction of AArch64 fault, and where it came from.

Source of the semantics: Arm Architecture Reference Manual for A-profile (DDI 0487), C6.2."""

from __future__ import annotations

from typing import Any, Optional

from findleaks.audit.crash.aarch64_code import INSTRUCTION, MASK, MEMORY, SP, StraightAArch64
from findleaks.audit.crash.fault import may_be_distance
from findleaks.audit.crash.overwritten_base import Siblings
from findleaks.audit.crash.value_origin import Origin, Tracer
from findleaks.target.ranges import region_at
from findleaks.value_classes import NamedTuple

_REACH = 64  # bytes: an access that faults is less than this beyond the operand's address


class Access(NamedTuple):
    """What an instruction used. `kind`: "pointer", "index" or "call"; see Fault. `array`: the
    address to which the index was added; None if it is unknown."""

    kind: str
    name: str
    register: int
    value: int
    origin: Optional[Origin]
    array: Optional[int] = None
    siblings: Optional[Siblings] = None


def find_access(tracer: Tracer, address: int) -> Optional[Access]:
    """Return the pointer or index with which the innermost frame of a thread accessed, or called,
    `address`; None if it is unknown. Raises CapstoneMissing."""
    pc = tracer.frames[0].pc
    if pc == address:
        return _find_call(tracer, address)
    code = StraightAArch64(tracer, 0, pc)
    insn = code.last()
    return _find_operand(tracer, code, insn, address) if insn is not None else None


def name_instruction(tracer: Tracer) -> str:
    """Return the name of the instruction at which a thread was interrupted; "" if it is unknown.
    Raises CapstoneMissing."""
    insn = StraightAArch64(tracer, 0, tracer.frames[0].pc).last()
    return str(insn.insn_name()) if insn is not None else ""


def _find_call(tracer: Tracer, address: int) -> Optional[Access]:
    """Return the pointer that a frame called. The called address is not code."""
    code = StraightAArch64(tracer, 1, tracer.frames[1].pc - INSTRUCTION) if len(tracer.frames) > 1 else None
    last = code.steps[-1][1] if code is not None and code.steps else None
    if code is None or last is None or last.flow != "call" or last.via < 0 or code.registers.get(last.via) != address:
        return None
    return _describe(code, "call", last.via, address)


def _find_operand(tracer: Tracer, code: StraightAArch64, insn: Any, address: int) -> Optional[Access]:
    place = next((one for one in insn.operands if one.type == MEMORY), None)
    base = code.number(place.mem.base) if place is not None else -1
    if place is None or base in (-1, SP) or base not in code.registers:
        return None
    value, name = code.registers[base], insn.insn_name()
    is_mapped = region_at(tracer.target.regions(), value) is not None
    index = code.number(place.mem.index) if place.mem.index else -1
    if index < 0:
        starts = (value + place.mem.disp, value)  # the displacement may be added after the access
        if is_mapped or not any(0 <= address - (start & MASK) < _REACH for start in starts):
            return None
        return _describe(code, "pointer", base, value)
    if index not in code.registers:
        return None
    raw, shift = code.registers[index], place.shift.value if place.shift.type else 0
    signed = (raw & 0xFFFFFFFF) - ((raw & 1 << 31) << 1)
    used = next((one for one in (raw, raw & 0xFFFFFFFF, signed) if 0 <= address - (value + (one << shift) & MASK) < _REACH), None)
    origin = code.origin(index, None) if used is not None else None
    # If the origin of the index is unknown, it may be the distance between two pointers.
    if used is None or not is_mapped or origin is None or may_be_distance(tracer.target, value, (used << shift) & MASK):
        return None
    return Access("index", name, index, used - (1 << 64) if used >> 63 > 0 else used, origin, value)


def _describe(code: StraightAArch64, kind: str, register: int, value: int) -> Access:
    """Return the use of the pointer `value` in a register."""
    origin = code.origin(register, value)
    return Access(kind, code.steps[-1][0].insn_name(), register, value, origin, siblings=None if origin else code.find_siblings(register))
