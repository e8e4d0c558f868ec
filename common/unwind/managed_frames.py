"""Frames of managed functions (Python, Ruby, Java) and their places between a thread's native
frames.

A native function of an interpreter executes one or more managed functions. Their frames precede its
own frame, as frames of inlined functions do. If a runtime generates code, the frames of this code
are those of managed functions, which replace them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.target.base import Thread
from findleaks.unwind.frames import CodeStep, FrameRegisters, Trace
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.unwind.stacks import NamedFrame

DEEPEST = 4096  # managed frames of one thread that are read


class NativeStack(NamedTuple):
    """The native frames of a thread, and the registers in each."""

    thread: Thread
    trace: Trace
    registers: Sequence[FrameRegisters]

    def find(self, address: int) -> int:
        """Return the index of the frame whose part of the stack has this address; -1 if none
        has."""
        frames = self.trace.frames
        return next((at for at in range(len(frames) - 1) if frames[at].sp <= address < frames[at + 1].sp), -1)


class Segment(NamedTuple):
    """Managed frames that one native function executes, innermost first. `at` is the index of its
    frame, or -1 if it is not among the known native frames. `replaces`: the native frame is one of
    code that the runtime generated, and is not listed."""

    at: int
    frames: tuple[NamedFrame, ...]
    replaces: bool = False


class ManagedFrames:
    """Reads the managed frames of a runtime. `warnings`: sentences on what could not be read so
    far."""

    warnings: Sequence[str] = ()

    def segments(self, stack: NativeStack) -> Sequence[Segment]:
        """Return the managed frames of a thread, innermost first."""
        raise NotImplementedError

    def step(self, pc: int, exact: bool, registers: Mapping[int, int]) -> Optional[CodeStep]:
        """Unwind a frame of code that the runtime generated; see frames.StepCode."""
        return None

    def thread_names(self) -> Mapping[int, str]:
        """Return names of threads, by the kernel's number of the thread."""
        return {}


class Placed(NamedTuple):
    """Managed frames by the index of the native frame that they precede. The index is the number of
    native frames for those that follow all known ones. `replaced`: native frames that are not
    listed."""

    frames: Mapping[int, tuple[NamedFrame, ...]]
    replaced: frozenset[int]


NO_FRAMES = Placed({}, frozenset())


def place_frames(stack: NativeStack, readers: Iterable[ManagedFrames]) -> Placed:
    """Return the managed frames of a thread. They keep the order that their reader gives."""
    placed: dict[int, tuple[NamedFrame, ...]] = {}
    replaced: set[int] = set()
    for reader in readers:
        least = 0
        for at, frames, replaces in reader.segments(stack):
            least = max(least, at if at >= 0 else len(stack.trace.frames))
            placed[least] = placed.get(least, ()) + frames
            if replaces:
                replaced.add(at)
    return Placed(placed, frozenset(replaced))
