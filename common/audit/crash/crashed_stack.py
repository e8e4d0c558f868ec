"""The stack of the thread that crashed, with the registers of each frame."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.audit.crash.uncovered_code import step_through_code
from findleaks.audit.crash.value_origin import Tracer
from findleaks.runtimes.directory import code_tables_of
from findleaks.target.base import Target, Thread
from findleaks.unwind.frames import FrameRegisters, Trace, Unwinder
from findleaks.unwind.stacks import NamedFrame, Namer
from findleaks.value_classes import NamedTuple

FRAMES = 64  # maximum number of frames that are read


class CrashedStack(NamedTuple):
    """The innermost frames of a thread. `places` has the stack pointer and the names of each
    frame."""

    target: Target
    thread: Thread
    unwinder: Unwinder
    trace: Trace
    registers: Sequence[FrameRegisters]
    places: Sequence[tuple[int, NamedFrame]]

    @property
    def frames(self) -> list[NamedFrame]:
        """The names of the frames."""
        return [frame for _, frame in self.places]

    def tracer(self, first: int, is_jump: bool) -> Tracer:
        """Return a tracer of the frames from `first` on. `is_jump`: see Crash.is_jump."""
        frames, registers = self.trace.frames[first:], self.registers[first:]
        return Tracer(self.target, self.unwinder, frames, registers, self.thread.thread_pointer, int(is_jump))


def read_stack(target: Target, thread: Thread) -> CrashedStack:
    """Return the innermost frames of a thread."""
    unwinder = Unwinder(target, code_tables_of(target), step_through_code(target))
    namer = Namer(target, unwinder)
    registers: list[FrameRegisters] = []
    trace = unwinder.trace_with_registers(thread, registers, FRAMES)
    places = [(frame.sp, namer.name(frame)) for frame in trace.frames]
    return CrashedStack(target, thread, unwinder, trace, registers, places)
