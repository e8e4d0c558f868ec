"""Describe the buffers that a process registered with an io_uring (IORING_REGISTER_BUFFERS).

The kernel uses such memory by numbers, so that no word of the process needs to contain its
address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from findleaks.formatting import format_count, some
from findleaks.target.base import Range, Target
from findleaks.target.kernel_references import REGISTERED_BUFFER
from findleaks.target.ranges import merge_ranges, range_at

_NAMED = 3  # maximum number of descriptors that are named


def describe_registered_buffers(target: Target, ranges: Sequence[Range]) -> str:
    """Return "16 buffers registered with io_uring descriptor 3" for the buffers that begin in these
    ranges; "" if there are none, or if the kernel's references are unknown, as in cores of the
    kernel."""
    state = target.kernel_state()
    registered = [one for one in state.references if one.part == REGISTERED_BUFFER] if state is not None else []
    if not registered:
        return ""
    merged = merge_ranges(ranges)
    found = Counter(one.holder for one in registered if range_at(merged, one.value) is not None)
    buffers = format_count(sum(found.values()), "buffer")
    return f"{buffers} registered with {some(list(found), _NAMED)}" if found else ""
