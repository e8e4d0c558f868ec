"""Conclusions from comparing the reference counts of leaked objects with references."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum

from findleaks.engine.terms import Totals
from findleaks.value_classes import NamedTuple


class CountVerdict(IntEnum):
    """Conclusion from the reference counts of the leaked objects under a leak head."""

    NOTHING = 0  # none of the others; for example, only native memory refers to the objects
    MISSING_DECREF = 1  # an object counts more references than exist
    UNCOLLECTED = 2  # a cycle that the garbage collector has not freed yet
    UNTRACKED_CYCLE = 3  # a cycle with objects that the garbage collector does not track


class MiscountedType(NamedTuple):
    """Leaked objects of one type.

    `objects` is the number of objects that count more references than exist, `excess` the sum of
    these differences, `uncollected` the number of objects that the collector has not freed yet."""

    name: str
    objects: int
    excess: int
    uncollected: int


class ReferenceCounts(NamedTuple):
    """Reference counts of leaked objects, compared with the existing references."""

    verdicts: bytearray  # by block: the CountVerdict of its leak head
    excess: array[int]  # "I", by block: references that its object counts but that do not exist
    totals: Sequence[Totals]  # by CountVerdict, of all leaked blocks
    types: Sequence[MiscountedType]  # those with the most miscounted objects first
    decrement: str = "Py_DECREF"  # what native code calls to drop a reference
