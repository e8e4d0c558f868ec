"""Groups of global handles of V8, and what they retain."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from findleaks.engine.terms import Totals


class HandleGroup(NamedTuple):
    """Global handles of one owner. `name`: a phrase in the plural. `places`: the addresses of the
    handles ("Q"). `variable`: the variable from which most of the handles are reachable, or "".
    `in_variable`: the number of these handles. `objects`: the addresses of the objects of all
    handles ("Q")."""

    name: str
    places: array[int]
    variable: str
    in_variable: int
    objects: array[int]


class RetainingGroup(NamedTuple):
    """A group, its node of the dominator tree, and the objects that it retains."""

    group: HandleGroup
    node: int
    retained: Totals
