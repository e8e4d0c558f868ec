"""A thread that a runtime schedules itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.target.base import Range
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.unwind.stacks import NamedFrame


class UserThread(NamedTuple):
    """A thread that the runtime schedules itself, such as a goroutine.

    `number` is the runtime's (0: it has none), `state` and `reason` ("" if unknown) are the
    runtime's words. [`sp`, stack.end) is live. `waiting`: nanoseconds, None if unknown. `creator`:
    the place of its creation. `thread`: the kernel's number of the thread that runs it, 0 if none
    does. `kind`: what the runtime calls it, if this is not Runtime.user_thread."""

    number: int
    state: str
    reason: str
    sp: int
    pc: int
    stack: Range
    frames: Sequence[NamedFrame]  # innermost first
    creator: Optional[NamedFrame] = None
    waiting: Optional[int] = None
    thread: int = 0
    is_internal: bool = False  # of the runtime itself
    kind: str = ""
