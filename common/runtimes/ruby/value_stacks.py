"""Stacks of values of threads and fibers: where they are, and which frame each word belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.unwind.stacks import NamedFrame
from findleaks.value_classes import NamedTuple


class ValueStack(NamedTuple):
    """A stack of values [start, end), and its frames, outermost first. `tops` has, for each frame,
    the end of its part of the stack. `frames` has None for a frame that a backtrace omits.
    `environments` has the environment pointer of each frame."""

    start: int
    end: int
    tops: Sequence[int]
    frames: Sequence[Optional[NamedFrame]]
    environments: Sequence[int] = ()


def name_place(frame: Optional[NamedFrame]) -> str:
    """Return a name for the words in a frame's part of a stack; "" if a backtrace omits the
    frame."""
    if frame is None:
        return ""
    return f"local variable or argument of {name_frame(frame)}"


def name_frame(frame: NamedFrame) -> str:
    """Return the method of a frame, with its line if it has one."""
    name = frame.function or "a method"
    return f"{name} ({frame.file}:{frame.line})" if frame.file else name
