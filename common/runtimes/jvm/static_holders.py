"""Name the static variables that refer to an object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from findleaks.formatting import join_words, number
from findleaks.runtimes.object_graph import ObjectGraph

_CLASS = "java.lang.Class of "  # the beginning of the types of objects with static variables
_MOST_REFERRERS = 1 << 12  # objects that are searched for static variables
_NAMED = 3  # variables that a phrase names


def describe_static_holder(graph: ObjectGraph, path: Sequence[int], statics: Callable[[int], Iterable[tuple[str, int]]]) -> str:
    """Return a phrase for the static variable in a path. If several static variables refer to the
    same object, none of them alone retains it: the phrase names the object by up to three of them.
    Return "" if the path contains no static variable. `statics`: see JavaGraph.static_references.
    """
    links = ((one, following) for one, following in zip(path, path[1:]) if graph.type_of(one).startswith(_CLASS))
    named = ((name, value) for one, following in links for name, value in statics(one) if value == following)
    name, value = next(named, ("", -1))
    if not name:
        return ""
    owners = (
        one for one in islice(graph.referrers(value), _MOST_REFERRERS) if graph.type_of(one).startswith(_CLASS) and graph.is_live(one)
    )
    others = sorted({each for one in owners for each, found in statics(one) if found == value} - {name})
    if not others:
        return f"static variable {name}"
    shown = [name, *others[: _NAMED - 1]]
    more = [f"{number(len(others) + 1 - len(shown))} more"] if len(others) >= len(shown) else []
    return f"the object in static variables {join_words([*shown, *more])}"
