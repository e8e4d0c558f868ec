"""Find the function whose frames filled a stack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Optional

from findleaks.unwind.frames import Unwinder
from findleaks.unwind.stacks import NamedFrame
from findleaks.value_classes import NamedTuple

_OFTEN = 8  # fewest frames of one function that count as a recursion


class Recursion(NamedTuple):
    """A function that is on the stack many times. `frames`: the number of its frames among the
    innermost FRAMES frames."""

    frame: NamedFrame
    frames: int


def find_recursion(unwinder: Unwinder, frames: Sequence[NamedFrame]) -> Optional[Recursion]:
    """Return the function that has the most frames; None if it has fewer than _OFTEN. A function
    without a name is named by its start, which the call frame information contains."""
    named = [one if one.function else _at_start(unwinder, one) for one in frames]
    keys = [(one.function, one.module, 0 if one.function else one.offset) for one in named if one.function or one.module]
    key, count = Counter(keys).most_common(1)[0] if keys else (None, 0)
    frame = next((one for one in named if (one.function, one.module, 0 if one.function else one.offset) == key), None)
    return Recursion(frame, count) if frame is not None and count >= _OFTEN else None


def _at_start(unwinder: Unwinder, frame: NamedFrame) -> NamedFrame:
    """Return a frame of the same function at its first instruction."""
    extent = unwinder.extent(frame.address)
    back = frame.address - extent.start if extent is not None else 0
    return frame._replace(address=frame.address - back, offset=frame.offset - back)
