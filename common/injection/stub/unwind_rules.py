"""Convert call frame information to unwind rules for the stub, one for each code address.

The address is a return address, or that of a stopped thread. Its rule applies to every stack. The
stub knows only the stack pointer and the frame pointer, which suffice for compiled code. Supported
are: code whose frames are found by either pointer; code with realigned frames (GCC finds these
through a word to which the frame pointer points); code that maintains the chain of frame pointers
(V8's); the kernel's frame around a signal handler; Go's function that calls C on another stack; and
code that the JVM generated. At other code the stack ends, and a reason is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Optional

from findleaks.injection.stub.table import (
    ADDRESS,
    BY_FP,
    BY_SP,
    CHAIN,
    EXACT,
    EXECUTES,
    GENERATED,
    INTERPRETED,
    LAST,
    OWN,
    SENDER,
    SIGNAL,
    SWITCH,
    THROUGH_FP,
    pack,
    unpack,
)
from findleaks.target.encoded_numbers import sleb128
from findleaks.unwind.cfi import Row, Rule
from findleaks.unwind.frames import Frame, Unwinder
from findleaks.unwind.managed_frames import CallFrame

FP, SP = 6, 7  # DWARF's rbp and rsp (System V ABI, AMD64 supplement 1.0, figure 3.36)
_BREG, _DEREF = 0x70, 0x06
# The interrupted stack pointer in the call frame information of glibc's __restore_rt
# (sysdeps/unix/sysv/linux/x86_64/libc_sigaction.c), in the form that _near returns.
_SIGNALLED = (SP, 160, True)
CHAINED = pack(CHAIN, 0, 1, -16)  # at the frame pointer: the caller's, then its pc
_FRAME = range(-(1 << 31), 1 << 31)
_POINTER = range(-(1 << 15), 1 << 15)


class Step(NamedTuple):
    """The rule of a code address. `end`: why a stack that ends here is incomplete ("" if it is
    complete). `code`: whether the address is that of code."""

    value: int
    end: str = ""
    code: bool = True


def step(unwinder: Unwinder, key: int) -> Step:
    """Return the rule of a return address. If the key has EXACT, return the rule of a stopped
    thread's address."""
    pc, exact = key & ADDRESS, bool(key & EXACT)
    if not unwinder.executable(pc):
        return Step(pack(LAST), f"the return address {pc:#x} is not code", False)
    row = unwinder.row(pc if exact else pc - 1)
    value = CHAINED if row is None else _value(row)
    return Step(value) if value is not None else Step(pack(LAST), f"the stub does not support the unwind information for {pc:#x}")


def step_generated(frame: CallFrame, key: int) -> Step:
    """Return the rule of a return address in code that a runtime generated."""
    if key & EXACT:
        return Step(pack(LAST), f"the frame of generated code at {key & ADDRESS:#x} cannot be read where it was interrupted")
    if frame.end:
        return Step(pack(LAST), frame.end)
    if frame.bytecode:
        return Step(pack(INTERPRETED, 0, 0, frame.bytecode))
    return Step(pack(BY_SP, frame.size, 1, -16) if frame.size else CHAINED)


def step_function(distance: int, is_read: bool) -> Step:
    """Return the rule of a return address in code that executes managed functions. `distance`: see
    ManagedFrames.code_distance. `is_read`: whether the stub reads the frames of this code; see
    js_frame of stack_walk.S."""
    return Step(pack(CHAIN | EXECUTES, GENERATED + distance, 1, -16) if is_read else CHAINED)


def follow(value: int, key: int, sp: int, fp: int, low: int, high: int, word: Callable[[int], int]) -> Optional[tuple[int, int, int]]:
    """Step to the caller, as the stub does. Returns its key, stack pointer and frame pointer; None
    if the stack cannot be followed. The key is 0 if there is no caller. `word` reads addresses in
    [low, high), and raises LookupError for other addresses."""
    kind, how, pointer, offset, _ = unpack(value)

    def at(address: int) -> int:
        if not low <= address <= high - 8:
            raise LookupError(address)
        return word(address)

    try:
        if kind == SIGNAL:
            interrupted = at(sp + 168)
            return (interrupted | EXACT, at(sp + 160), at(sp + 120)) if interrupted else (0, sp, fp)
        if kind == SWITCH:
            # Code that is called on another stack preserves the frame pointer.
            return (word(fp + 8), fp + 16, word(fp)) if fp and not fp & 7 else None
        if kind == INTERPRETED:
            if fp & 7 or fp + pointer < sp:
                return None
            after = at(fp + SENDER)
            return at(fp + 8), after if fp + 16 <= after <= high else fp + 16, at(fp)
        if kind == CHAIN:
            if not fp and not key & EXACT:
                return 0, sp, fp
            if fp < sp or fp & 7:
                return None
            after = fp + 16
        elif kind in (BY_SP, BY_FP, THROUGH_FP, OWN):
            after = (sp if kind == BY_SP else fp) + offset
            after = at(after) if kind == THROUGH_FP else after
        else:
            return 0, sp, fp
        if after - 8 < sp:
            return None
        caller = at(after - 8)
        if how:
            fp = at((after if how == 1 else fp) + pointer)
        return caller, after, fp
    except LookupError:
        return None


def frame_of_key(key: int) -> Frame:
    """Build a frame by which the code address can be named."""
    pc = key & ADDRESS
    return Frame(pc, pc if key & EXACT else pc - 1, 0, "")


def _value(row: Row) -> Optional[int]:
    if row.outermost:
        return pack(LAST)
    if row.switches_stack:
        # The function has saved the frame pointer there, so the frame pointer leads to its frame.
        return pack(SWITCH) if row.rules.get(FP) == Rule("offset", -16) else None
    if row.signal:
        return pack(SIGNAL) if _near(row.expression) == _SIGNALLED else None
    saved = row.rules.get(row.return_register)
    if saved is None or saved.how != "offset" or saved.value != -8 or SP in row.rules:
        return None
    where = _near(row.expression) if row.expression else (row.register, row.offset, False)
    pointer = _pointer(row.rules.get(FP))
    if where is None or pointer is None:
        return None
    register, offset, through = where
    kind = {(SP, False): BY_SP, (FP, False): BY_FP, (FP, True): THROUGH_FP}.get((register, through))
    if kind is None or offset not in _FRAME:
        return None
    return pack(kind, offset, *pointer)


def _pointer(rule: Optional[Rule]) -> Optional[tuple[int, int]]:
    if rule is None:
        return 0, 0
    if rule.how == "offset" and rule.value in _POINTER:
        return 1, rule.value
    near = _near(rule.expression) if rule.how == "saved" else None
    return (2, near[1]) if near is not None and near[0] == FP and not near[2] and near[1] in _POINTER else None


def _near(expression: bytes) -> Optional[tuple[int, int, bool]]:
    """Decode the DWARF expression DW_OP_breg, optionally followed by DW_OP_deref (DWARF 5, 2.5.1).
    Returns the register, the offset, and whether the word at that address is loaded; None for any
    other expression."""
    if len(expression) < 2 or not _BREG <= expression[0] < _BREG + 32:
        return None
    try:
        value, end = sleb128(expression[:6], 1)
    except ValueError:
        return None
    rest = expression[end:]
    return (expression[0] - _BREG, value, bool(rest)) if rest in (b"", bytes((_DEREF,))) else None
