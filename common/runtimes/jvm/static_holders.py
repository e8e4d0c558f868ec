"""Name the static variables that refer to an object."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from findleaks.formatting import join_words, number

if TYPE_CHECKING:
    from findleaks.runtimes.jvm.object_graph import JavaGraph

_CLASS = "java.lang.Class of "  # the beginning of the types of objects with static variables
_MOST_REFERRERS = 1 << 12  # objects that are searched for static variables
_NAMED = 3  # variables that a phrase names


def describe_static_holder(graph: JavaGraph, path: Sequence[int]) -> str:
    """Return a phrase for the static variable at which a path goes on, or for the object to which
    several variables refer, because none of them alone retains it. Return "" if the path contains
    no static variable."""
    links = ((one, following) for one, following in zip(path, path[1:]) if graph.type_of(one).startswith(_CLASS))
    named = ((name, value) for one, following in links for name, value in graph.static_references(one) if value == following)
    name, value = next(named, ("", -1))
    if not name:
        return ""
    owners = (
        one for one in islice(graph.referrers(value), _MOST_REFERRERS) if graph.type_of(one).startswith(_CLASS) and graph.is_live(one)
    )
    others = sorted({each for one in owners for each, found in graph.static_references(one) if found == value} - {name})
    if not others:
        return f"static variable {name}"
    shown = [name, *others[: _NAMED - 1]]
    more = [f"{number(len(others) + 1 - len(shown))} more"] if len(others) >= len(shown) else []
    return f"the object in static variables {join_words([*shown, *more])}"
