"""A frame of a managed language."""

from __future__ import annotations

from findleaks.target.base import Range
from findleaks.value_classes import NamedTuple


class Frame(NamedTuple):
    """A function's frame with its local variables. `thread`: tid, 0 if unknown. `owners`: in the
    plural, what the frame belongs to instead of a thread ("suspended greenlets"); frames of one
    function and the same owners count as one."""

    name: str
    thread: int
    range: Range
    owners: str = ""
