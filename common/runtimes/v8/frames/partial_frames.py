"""Determine how much of its frame code of V8 has at an instruction at which it was interrupted.

Functions push rbp and copy rsp to it, and remove the frame before they return or jump to another
function. Functions that need no frame on the likely path create it later or never.

Sources: V8 7.8 to 13.6 (Node 12 to 24), src/compiler/backend/x64/code-generator-x64.cc
(AssembleConstructFrame, AssembleReturn), src/codegen/x64/macro-assembler-x64.cc (EnterFrame)."""

from __future__ import annotations

from findleaks.disasm.capstone_loader import CapstoneMissing
from findleaks.disasm.functions import instructions_at
from findleaks.disasm.registers import RBP, RSP
from findleaks.target.base import Target

ABSENT, PUSHED, COMPLETE = range(3)
"""States of a frame: rbp is the caller's; it is pushed; it is the function's own."""

_MOST_CODE = 1 << 17  # bytes of one function


def frame_state(target: Target, start: int, pc: int, calls_setup: bool = False) -> int:
    """Return the state of the frame of the function that starts at `start`, at the instruction
    `pc`. If it is unknown, the frame is likely complete.

    Code is read in the order of its addresses. Behind a return or jump, the frame exists if it
    existed anywhere before. `calls_setup`: a builtin may create the frame, which the function calls
    first. Liftoff's code of WebAssembly does this."""
    if not start <= pc < start + _MOST_CODE:
        return COMPLETE
    state, has_frame = ABSENT, False
    try:
        for one in instructions_at(target, start, pc - start) if pc > start else ():
            if one.name == "push" and one.source == RBP:
                state = PUSHED
            elif (one.name == "mov" and one.destination == RBP and one.source == RSP) or (
                calls_setup and one.name == "call" and not has_frame
            ):
                state, has_frame = COMPLETE, True
            elif (one.name == "pop" and one.destination == RBP) or one.name == "leave":
                state = ABSENT
            elif one.name in ("ret", "jmp", "int3", "ud2") and state == ABSENT and has_frame:
                state = COMPLETE
    except CapstoneMissing:
        return COMPLETE
    return state
