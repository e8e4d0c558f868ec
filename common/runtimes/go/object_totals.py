"""The numbers and bytes of Go's objects: by type, and by the goroutines that retain them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.engine.terms import Totals
from findleaks.value_classes import NamedTuple


class ObjectType(NamedTuple):
    """The objects of one type: live objects, and garbage that is not collected yet. Bytes are those
    of their slots."""

    name: str
    live: Totals
    garbage: Totals


class Retained(NamedTuple):
    """Objects that only a group of goroutines reaches: their number and bytes, and the types with
    the most bytes. `resident`: their resident bytes; None if nearly all are, or if this is
    unknown."""

    totals: Totals
    types: Sequence[tuple[str, Totals]]
    resident: Optional[int]
