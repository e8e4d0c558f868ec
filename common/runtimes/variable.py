"""Variables of managed languages."""

from __future__ import annotations

from typing import Optional

from findleaks.value_classes import NamedTuple


class Variable(NamedTuple):
    """A variable of the managed language ("shop.orders.cache").

    `address` is the address of the reference, `value` that of the object. `table` is the block with
    the object's storage (a dictionary's), or 0. `what`: the type of the object, "" if unknown.
    `length`: of a collection, in `unit`s. `is_local`: objects that are also reachable from other
    variables are attributed to the other variables."""

    name: str
    address: int
    value: int
    table: int = 0
    what: str = ""
    length: Optional[int] = None
    unit: str = ""
    is_local: bool = False
