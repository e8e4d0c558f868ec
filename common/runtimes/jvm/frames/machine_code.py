"""Determine how much of its frame compiled code has at an instruction at which it was interrupted.

Source: OpenJDK 8 to 25, src/hotspot/cpu/x86/macroAssembler_x86.cpp and x86_64.ad. At its entry,
code pushes rbp and subtracts from rsp, or subtracts and stores rbp. At its end, it adds to rsp,
pops rbp, reads the address of a safepoint poll, and returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.disasm.capstone_loader import CapstoneMissing
from findleaks.disasm.functions import instructions_at
from findleaks.disasm.instruction import Instruction
from findleaks.disasm.registers import RBP, RSP
from findleaks.runtimes.jvm.frames.code_cache import CodeBlob
from findleaks.target.base import Target
from findleaks.value_classes import NamedTuple

_MOST_ENTRY = 256  # bytes of the code at an entry
_EPILOGUE_BYTES, _EPILOGUE = 80, 12  # bytes and instructions that are read to find a `ret`
_WORD = 8
# Instructions of an epilogue, except branches
_HARMLESS = ("test", "cmp", "vzeroupper", "nop", "mov")


class PartialFrame(NamedTuple):
    """The part of a frame that exists. `size`: the distance in bytes from the stack pointer to that
    of the caller. `has_saved`: whether the caller's rbp is below the return address."""

    size: int
    has_saved: bool


def partial_frame(target: Target, blob: CodeBlob, entries: Sequence[int], pc: int) -> Optional[PartialFrame]:
    """Return the part of its frame that code has at the instruction `pc`. `entries`: the addresses
    at which the code is entered. None if it cannot be determined."""
    if not blob.frame_bytes:
        return None
    try:
        if pc < blob.complete:
            entry = max((one for one in entries if one <= pc), default=0)
            return _after_entry(target, entry, pc) if entry and pc - entry <= _MOST_ENTRY else None
        return _before_return(target, blob, pc) or PartialFrame(blob.frame_bytes, True)
    except CapstoneMissing:
        return None


def _after_entry(target: Target, entry: int, pc: int) -> Optional[PartialFrame]:
    """Execute the instructions from an entry up to `pc`."""
    size, has_saved, at = _WORD, False, entry
    for one in instructions_at(target, entry, pc - entry) if pc > entry else ():
        if one.name == "push":
            size, has_saved = size + _WORD, has_saved or one.source == RBP
        elif one.name == "sub" and one.destination == RSP and one.immediate is not None:
            size += one.immediate
        elif one.stores and one.base == RSP and one.source == RBP:
            has_saved = True
        elif _changes_stack(one):
            return None
        at = one.end
    return PartialFrame(size, has_saved) if at == pc else None


def _before_return(target: Target, blob: CodeBlob, pc: int) -> Optional[PartialFrame]:
    """Return the rest of the frame if the next instructions remove it and return; else None."""
    size, has_saved = _WORD, False
    for number, one in enumerate(instructions_at(target, pc, min(blob.end - pc, _EPILOGUE_BYTES))):
        if one.name == "ret":
            return PartialFrame(size, has_saved)
        if one.name == "pop" and one.destination == RBP:
            size, has_saved = size + _WORD, True
        elif one.name == "add" and one.destination == RSP and one.immediate is not None:
            size += one.immediate
        elif number >= _EPILOGUE or _changes_stack(one) or not (one.name in _HARMLESS or (one.name.startswith("j") and one.name != "jmp")):
            return None
    return None


def _changes_stack(one: Instruction) -> bool:
    return (one.destination == RSP and one.name not in ("cmp", "test")) or one.name in ("pop", "call", "leave", "enter")
