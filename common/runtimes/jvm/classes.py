"""Counts the JVM's class loaders and classes.

Each class loader has a ClassLoaderData in the list that begins at ClassLoaderDataGraph::_head, and
each of these a list of its classes (OpenJDK 17 and 21, src/hotspot/share, classfile/
classLoaderDataGraph.hpp, classfile/classLoaderData.hpp, oops/klass.hpp). Hidden classes, such as
those of lambdas, may have a ClassLoaderData of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Optional

from findleaks.runtimes.jvm.tables import Tables

MOST = 1 << 20  # most loaders, and most classes, that are counted


class ClassCounts(NamedTuple):
    """The number of class loaders and of classes. `single`: loaders with exactly one class."""

    loaders: int
    classes: int
    single: int


def count_classes(tables: Tables) -> Optional[ClassCounts]:
    """Return the numbers; None if the tables lack the lists, or a list does not end."""
    loaders = classes = single = 0
    for data in _follow(tables, tables.word("ClassLoaderDataGraph", "_head"), "ClassLoaderData", "_next"):
        own = sum(1 for _ in _follow(tables, tables.word("ClassLoaderData", "_klasses", data), "Klass", "_next_link"))
        loaders, classes, single = loaders + 1, classes + own, single + (own == 1)
        if loaders >= MOST or classes >= MOST:
            return None
    return ClassCounts(loaders, classes, single) if loaders else None


def _follow(tables: Tables, first: Optional[int], structure: str, link: str) -> Iterator[int]:
    """Yield the nodes of a list, at most MOST."""
    node = first
    for _ in range(MOST):
        if not node:
            return
        yield node
        node = tables.word(structure, link, node)
