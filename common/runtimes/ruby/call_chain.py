"""How findleaks' stubs in a running process read the control frames of a Ruby thread.

`rb_errinfo` loads a variable that refers to the execution context. In 2.7, this variable is
global, and refers to the context of the thread that holds the global VM lock. In later versions,
the variable is thread-local. The innermost tag of the context is on the native stack.
`rb_iseq_eval` ends with a jump to the function vm_exec. vm_exec executes the control frames up to
the next frame with the flag FINISH.

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
"""Size of a control frame in bytes, by version."""

_ABSOLUTE = -1 & (1 << 64) - 1
_LOADS, _JUMPS = "rb_errinfo", "rb_iseq_eval"


class ControlFrames(NamedTuple):
    """How a stub finds control frames. `variable`: the variable that refers to the execution
    context. `executor`: the code of vm_exec. `size`: the size of a control frame in bytes."""

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
    """Return how a stub finds control frames; None if this is not known."""
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
