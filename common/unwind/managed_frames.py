"""Frames of managed functions (Python, Ruby) and their places between a thread's native frames.

A native function of the interpreter executes one or more managed functions. Their frames precede
its own frame, as frames of inlined functions do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from findleaks.target.base import Thread
from findleaks.unwind.frames import FrameRegisters, Trace
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
    frame, or -1 if it is not among the known native frames."""

    at: int
    frames: tuple[NamedFrame, ...]


class ManagedFrames(Protocol):
    """Reads the managed frames of a runtime."""

    @property
    def warnings(self) -> Sequence[str]:
        """Return sentences on what could not be read so far."""
        ...

    def segments(self, stack: NativeStack) -> Sequence[Segment]:
        """Return the managed frames of a thread, innermost first."""
        ...


Placed = Mapping[int, tuple["NamedFrame", ...]]
"""Managed frames by the index of the native frame that they precede. The index is the number of
native frames for those that follow all known ones."""


def place_frames(stack: NativeStack, readers: Iterable[ManagedFrames]) -> Placed:
    """Return the managed frames of a thread. They keep the order that their reader gives."""
    placed: dict[int, tuple[NamedFrame, ...]] = {}
    for reader in readers:
        least = 0
        for at, frames in reader.segments(stack):
            least = max(least, at if at >= 0 else len(stack.trace.frames))
            placed[least] = placed.get(least, ()) + frames
    return placed
