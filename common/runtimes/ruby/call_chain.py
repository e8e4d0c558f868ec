"""The control frames that a Ruby thread executes, as stubs in a running process read them.

The execution context of a thread is in a variable that `rb_errinfo` loads: a thread-local one, in
2.7 the one of the thread that holds the lock. Its innermost tag is on the native stack. The
function vm_exec, to which `rb_iseq_eval` jumps at its end, executes the control frames up to one
with the flag FINISH.

Sources: vm_core.h, eval_intern.h, vm.c and iseq.c of 2.7.4, 3.1.2, 3.3.8 and 3.4.11."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.disasm.capstone_loader import CapstoneMissing
from findleaks.disasm.functions import instructions_at, resolve_stub
from findleaks.runtimes import gil
from findleaks.runtimes.ruby.instruction_sequences import entry_bytes, lines_after
from findleaks.target.base import Range, Target
from findleaks.target.ranges import region_at
from findleaks.unwind.cfi import FrameTable
from findleaks.value_classes import NamedTuple

CONTROL_FRAMES = 4  # the kind of chain, as in stack_walk.S
LOCATION = 64  # offset of the location in the body of an instruction sequence
FRAME_BYTES = {(2, 7): 56, (3, 1): 64, (3, 3): 56, (3, 4): 56}
"""Bytes of a control frame, by version."""

_ABSOLUTE = -1 & (1 << 64) - 1
_LOADS, _JUMPS = "rb_errinfo", "rb_iseq_eval"


class ControlFrames(NamedTuple):
    """How a stub finds control frames. `variable`: the one with the execution context. `executor`:
    the code of vm_exec. `size`: bytes of a control frame."""

    variable: gil.Lock
    executor: Range
    size: int

    def settings(self, version: tuple[int, int], has_lengths: bool) -> Sequence[int]:
        """Return the words at CHAIN_KIND of stack_walk.S. `has_lengths`: whether a string that is
        embedded in its object begins with its length."""
        variable, module = self.variable, self.variable.module
        if variable.address:
            module = _ABSOLUTE
        lines = LOCATION + lines_after(version)
        words = variable.address or variable.offset, module, self.size, LOCATION, lines, entry_bytes(version), int(has_lengths)
        return (CONTROL_FRAMES, *(word & (1 << 64) - 1 for word in words))


def find_control_frames(target: Target, version: tuple[int, int]) -> Optional[ControlFrames]:
    """Return how control frames are found; None if that is not known."""
    size = FRAME_BYTES.get(version)
    if size is None:
        return None
    try:
        variable, executor = gil.loaded_by(target, _LOADS), _find_executor(target)
    except CapstoneMissing:
        return None
    return ControlFrames(variable, executor, size) if variable is not None and executor is not None else None


def _find_executor(target: Target) -> Optional[Range]:
    symbol = target.symbol(_JUMPS)
    if symbol is None:
        return None
    end = symbol.address + symbol.size
    jumps = [one.target for one in instructions_at(target, symbol.address, symbol.size) if one.name == "jmp" and one.target is not None]
    outer = {resolve_stub(target, one) for one in jumps if not symbol.address <= one < end}
    start = outer.pop() if len(outer) == 1 else 0
    module = region_at(target.modules(), start)
    extent = FrameTable(target, module).extent(start) if module is not None else None
    return extent if extent is not None and extent.start == start else None
