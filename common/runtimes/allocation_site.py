"""Allocation sites that a runtime recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.engine.terms import Totals
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.unwind.stacks import NamedFrame


class Site(NamedTuple):
    """An allocation site, as recorded by the runtime (tracemalloc, NMT, Go's memory profile).

    Frames are innermost first, "file:line" or a function; `calls` are the same frames for profiles.
    `allocated`: all blocks since the start, None if unknown. `rate`: 0, or the mean bytes from one
    sample to the next if figures are estimates."""

    frames: Sequence[str]
    blocks: int
    bytes: int
    calls: Sequence[NamedFrame] = ()
    allocated: Optional[Totals] = None
    rate: int = 0
