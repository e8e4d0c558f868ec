"""Conclusions from comparing the reference counts of leaked objects with references."""

from __future__ import annotations

from enum import IntEnum


class CountVerdict(IntEnum):
    """Conclusion from the reference counts of the leaked objects under a leak head."""

    NOTHING = 0  # none of the others; for example, only native memory refers to the objects
    MISSING_DECREF = 1  # an object counts more references than exist
    UNCOLLECTED = 2  # a cycle that the garbage collector has not freed yet
    UNTRACKED_CYCLE = 3  # a cycle with objects that the garbage collector does not track
