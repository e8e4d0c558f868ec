"""Begin paths to Java objects at what the author of a program can identify: a class whose static
variable refers to the object, a thread, or a class loader.

The shortest path from a root often begins at a word on the stack of a thread, or at a word of the
JVM. Such a word may be stale, and a local variable may refer to an object that a static variable
keeps, too. Ending the thread would not free the object then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Optional

from findleaks.engine.contract import Graph
from findleaks.target.base import Target
from findleaks.target.interruptible import interruptible

_MOST_TRIED = 4  # objects at the start of a path that are searched for a chain from a named object
_MOST_STEPS = 12  # references from the named object to the first object of the path
_MOST_PER_STEP, _MOST_OF_CLASS = 12, 2  # objects at one distance whose referrers are searched
# All objects are searched for the referrers of one object. Limits: objects that are examined in
# total, and searches.
_MOST_EXAMINED, _MOST_SEARCHED = 1 << 27, 96


class NamedPaths:
    """Extends paths in a marked graph so that they begin at named objects. `numbers`: the number of
    each object's class. `named`: for each class, whether its objects are java.lang.Class, threads
    or class loaders. `is_live`: whether a root reaches an object."""

    def __init__(self, target: Target, graph: Graph, numbers: Sequence[int], named: Sequence[bool], is_live: Callable[[int], bool]) -> None:
        self._target, self._graph, self._numbers, self._named, self._is_live = target, graph, numbers, named, is_live
        self._searches = min(_MOST_SEARCHED, max(_MOST_EXAMINED // max(len(numbers), 1), 1))
        self._extensions: dict[int, Sequence[int]] = {}  # by the first object of a path

    def extend(self, path: Sequence[int]) -> Sequence[int]:
        """Find a chain of references from a named object to the path's first object. Return the
        path to the named object, the chain and the path. If there is no such chain, objects at the
        start of the path are replaced: a stack may refer to one of many tasks, and each task refers
        to an object that a static variable retains. Return the path unchanged if no chain is found
        nearby."""
        if any(map(self._is_named, path)):
            return path
        for at, first in enumerate(path[:_MOST_TRIED]):
            if first not in self._extensions:
                self._extensions[first] = self._find(first)
            before = self._extensions[first]
            if before and not set(before) & set(path[at:]):
                return [*before, *path[at:]]
        return path

    def _is_named(self, index: int) -> bool:
        return self._named[self._numbers[index]]

    def _choose(self, found: Sequence[int], most: int) -> list[int]:
        """Return at most `most` of the objects, and only a few of each class. For example,
        thousands of buffers may refer to one chunk of a pool; they would exclude the array that
        refers to all of them."""
        counts: Counter[int] = Counter()
        chosen = []
        for one in found:
            counts[self._numbers[one]] += 1
            if counts[self._numbers[one]] <= _MOST_OF_CLASS:
                chosen.append(one)
        return chosen[:most]

    def _find(self, first: int) -> Sequence[int]:
        """Return the objects on a path from a root through a named object to `first`, without
        `first`; () if no such path is found."""
        following: dict[int, int] = {first: -1}
        waiting, left = [first], self._searches
        for _ in range(_MOST_STEPS):
            found: list[int] = []
            for one in interruptible(self._target, self._choose(waiting, min(_MOST_PER_STEP, left))):
                left -= 1
                new = [other for other in self._graph.referrers(one) if other not in following and self._is_live(other)]
                following.update(dict.fromkeys(new, one))
                found += new
            named = next(filter(self._is_named, found), None)
            if named is not None:
                return self._join(named, following)
            waiting = found
            if not waiting or left <= 0:
                break
        return ()

    def _join(self, named: int, following: dict[int, int]) -> Sequence[int]:
        """Return the path from a root to a named object, and the objects between this object and
        `first` of `_find`. `following`: the next object on the chain to `first`, by object."""
        chain: list[int] = []
        at: Optional[int] = following[named]
        while at is not None and at >= 0 and following[at] >= 0:
            chain.append(at)
            at = following[at]
        before = list(self._graph.path(named))
        return [*before, *chain] if not set(before) & set(chain) else ()
