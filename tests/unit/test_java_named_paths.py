"""Paths to Java objects begin at a class, a thread or a class loader, if one of these is near."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fake import FakeTarget

from findleaks.runtimes.jvm.engine import FIXED
from findleaks.runtimes.jvm.java_classes import JavaClass
from findleaks.runtimes.jvm.named_paths import NamedPaths
from findleaks.runtimes.jvm.object_graph import JavaGraph

NAMED, BUFFER, OTHER = range(3)
DEAD = 90


class ReferrerGraph:
    """A graph of objects, given the objects that refer to each of them. A root refers to objects without referrers."""

    def __init__(self, referrers: Mapping[int, Sequence[int]]) -> None:
        self._referrers = referrers
        self.searches = 0

    def referrers(self, index: int) -> Sequence[int]:
        self.searches += 1
        return self._referrers.get(index, ())

    def path(self, index: int) -> Sequence[int]:
        found = [index]
        while found[0] in self._referrers:
            found.insert(0, self._referrers[found[0]][0])
        return found


def make_paths(referrers: Mapping[int, Sequence[int]], numbers: Mapping[int, int]) -> tuple[NamedPaths, ReferrerGraph]:
    graph: Any = ReferrerGraph(referrers)
    classes = [numbers.get(index, OTHER) for index in range(100)]
    return NamedPaths(FakeTarget({}), graph, classes, [True, False, False], lambda index: index < DEAD), graph


@pytest.mark.parametrize(
    ("referrers", "numbers", "path", "expected"),
    [
        ({1: [2], 2: [3]}, {3: NAMED}, [1, 0], [3, 2, 1, 0]),
        ({1: [2], 2: [3], 3: [4]}, {3: NAMED}, [1, 0], [4, 3, 2, 1, 0]),  # a class, and the class loader to which a root refers
        ({1: [2], 2: [1]}, {}, [1, 0], [1, 0]),  # two objects that refer to each other
        ({1: [DEAD], DEAD: [3]}, {3: NAMED}, [1, 0], [1, 0]),  # garbage
        ({1: [2], 2: [0], 0: [3]}, {3: NAMED}, [1, 0], [3, 0]),  # the chain to the first object leads through the second one
        ({2: [5], 1: [3]}, {3: NAMED}, [2, 1, 0], [3, 1, 0]),  # a stack refers to 2, whose referrers have no name
        ({1: [2], 2: [3]}, {3: NAMED}, [9, 8, 7, 6, 1], [9, 8, 7, 6, 1]),  # findleaks tries only the first four objects
        ({1: [2], 2: [3]}, {1: NAMED, 3: NAMED}, [1, 0], [1, 0]),
        ({}, {}, [], []),
    ],
)
def test_beginning(referrers: Mapping[int, Sequence[int]], numbers: Mapping[int, int], path: list[int], expected: list[int]) -> None:
    assert list(make_paths(referrers, numbers)[0].extend(path)) == expected


def test_many_referrers() -> None:
    """Many buffers refer to each other. The only referrer of another class is found among them, with a limited number of searches."""
    buffers = list(range(10, 80))
    referrers = {1: [*buffers, 80], 80: [3], **{one: [other for other in buffers if other != one] for one in buffers}}
    numbers = {3: NAMED, **dict.fromkeys(buffers, BUFFER)}
    found, graph = make_paths(referrers, numbers)
    assert list(found.extend([1, 0])) == [3, 80, 1, 0]
    assert graph.searches <= 8
    assert list(found.extend([1, 5])) == [3, 80, 1, 5]
    assert graph.searches <= 8  # the referrers of an object are searched once


class LocalsGraph(JavaGraph):
    """Objects of two threads, in each of which two thread-local variables have the same value."""

    THREADS, ENTRIES, KEYS, VALUE = (0, 1), {2: 6, 3: 7, 4: 6, 5: 7}, (6, 7), 8

    def __init__(self) -> None:
        pass

    def path(self, index: int) -> Sequence[int]:
        return [0, 2, self.VALUE]

    def type_of(self, index: int) -> str:
        return "java.lang.ThreadLocal$ThreadLocalMap$Entry" if index in self.ENTRIES else ""

    def reference(self, index: int, name: str) -> int:
        return self.ENTRIES[index] if name == "referent" else self.VALUE

    def referrers(self, index: int) -> Sequence[int]:
        return list(self.ENTRIES)

    def is_live(self, index: int) -> bool:
        return True

    def text_field(self, index: int, name: str) -> str:
        return "main"

    def name_thread_local(self, key: int) -> str:
        return f"Program.local{key}"

    def _class_of(self, index: int) -> JavaClass:
        return cast(JavaClass, SimpleNamespace(kind=FIXED))

    def _is_thread(self, index: int) -> bool:
        return index in self.THREADS


def test_a_thread_counts_once_for_a_value_in_two_variables() -> None:
    assert LocalsGraph().describe_holder(LocalsGraph.VALUE) == "thread-local variable Program.local6 of 2 threads"
