"""Count the JVM's class loaders and classes.

Each class loader has a ClassLoaderData in the list that begins at ClassLoaderDataGraph::_head. Each
ClassLoaderData has a list of the loader's classes (OpenJDK 17 and 21, src/hotspot/share,
classfile/classLoaderDataGraph.hpp, classfile/classLoaderData.hpp, oops/klass.hpp). A hidden class,
such as that of a lambda, may have a separate ClassLoaderData."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Optional

from findleaks.runtimes.jvm.tables import Tables

MOST = 1 << 20  # maximum number of loaders, and of classes, that are counted


class ClassCounts(NamedTuple):
    """The number of class loaders and of classes. `single`: loaders with exactly one class."""

    loaders: int
    classes: int
    single: int


def list_loader_data(tables: Tables) -> Iterator[int]:
    """Yield the addresses of the class loaders' ClassLoaderData."""
    return _follow(tables, tables.word("ClassLoaderDataGraph", "_head"), "ClassLoaderData", "_next")


def list_classes(tables: Tables, data: int) -> Iterator[int]:
    """Yield the addresses of the classes of a class loader."""
    return _follow(tables, tables.word("ClassLoaderData", "_klasses", data), "Klass", "_next_link")


def count_classes(tables: Tables) -> Optional[ClassCounts]:
    """Return the numbers. Returns None if the tables lack the lists, or if a list does not end."""
    loaders = classes = single = 0
    for data in list_loader_data(tables):
        own = sum(1 for _ in list_classes(tables, data))
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
