"""One moment of one process: what it was, and what the commands said of it then."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from findleaks.history.figures import Figure


@dataclass(frozen=True)
class Moment:
    """`name`: the file it was read from, or the name given to it. `time`: seconds since 1970, None
    if unknown. `program`: base name of the executable, `build_id` its identity ("" if unknown).
    `pid`: None if unknown; `started`: the process's start in clock ticks since boot, with which two
    moments of one pid are known to be of one process. `answers`: the commands' JSON by word."""

    name: str
    time: Optional[float]
    program: str
    build_id: str
    pid: Optional[int]
    started: Optional[int]
    allocators: tuple[str, ...]
    figures: list[Figure]
    answers: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
