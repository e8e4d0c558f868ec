"""Compute what the roots of a managed heap retain in this heap, for runtimes whose object graph has
named roots (Go)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Optional

from findleaks.engine.dominators import SHARED, Dominators, root_node
from findleaks.engine.terms import Totals
from findleaks.runtimes.base import Runtime
from findleaks.runtimes.object_graph import ManagedObject, ObjectGraph, RootGroup, count_labels
from findleaks.session import Session
from findleaks.value_classes import NamedTuple
from findleaks.wildcards import matches

MOST_COUNTED = 1 << 20  # objects of a root whose types are counted


class TypeAmount(NamedTuple):
    """Objects of one type that a root retains."""

    name: str
    totals: Totals


class HeapRoots(NamedTuple):
    """The roots of a heap, those that retain most first, with what each retains."""

    runtime: str
    graph: ObjectGraph
    tree: Dominators
    groups: Sequence[RootGroup]
    numbers: Sequence[int]  # of the groups, in this order: roots of the tree
    totals: Sequence[Totals]  # by group

    def match(self, word: str) -> HeapRoots:
        """Return the groups with this name ("main.cache"), or with names that match a pattern."""
        exact = [at for at, one in enumerate(self.groups) if word in (one.name, one.name.removeprefix("variable "))]
        found = exact or [at for at, one in enumerate(self.groups) if _matches(word, one.name)]
        return self._replace(
            groups=[self.groups[at] for at in found],
            numbers=[self.numbers[at] for at in found],
            totals=[self.totals[at] for at in found],
        )

    def types_of(self, node: int, most: int = MOST_COUNTED) -> list[TypeAmount]:
        """Return the types of the objects that a node of the tree retains (a root or an object),
        those with most bytes first. Of more than `most` objects, the first ones are counted."""
        labels, names = self.graph.labels()
        counts = count_labels(self.graph.engine, self.graph.blocks, labels, self.tree, node, most)
        found: dict[str, Totals] = {}
        for label, totals in counts.items():
            name = names[label] if label < len(names) else "unknown type"
            found[name] = Totals.sum_of((found.get(name, Totals(0, 0)), totals))
        return sorted((TypeAmount(*pair) for pair in found.items()), key=lambda one: (-one.totals.bytes, one.name))

    def holder_of(self, one: ManagedObject) -> str:
        """Return a phrase for the root or the object that retains an object; "" if none does."""
        holder = self.tree.idom(one.block)
        if holder is None:
            return ""
        if holder == SHARED:
            return "several roots"
        if holder >= 0:
            above = self.graph.object(holder)
            return f"{above.type} at {above.address:#x}"
        return next((group.name for group, number in zip(self.groups, self.numbers) if root_node(number) == holder), "")


def list_heap_roots(session: Session) -> list[HeapRoots]:
    """Return the roots of each heap that has named roots. They are computed once for a session."""
    return session.once(list_heap_roots, lambda: list(filter(None, map(partial(_compute, session), session.runtimes))))


def _compute(session: Session, runtime: Runtime) -> Optional[HeapRoots]:
    graph = runtime.object_graph() if runtime.names_roots else None
    if graph is None:
        return None
    session.report_progress(f"computing memory retained by roots of {runtime.name}", 0.0)
    found = graph.root_tree
    if found is None:
        return None
    tree, groups, totals = found
    used = [number for number, total in enumerate(totals) if total.blocks]
    numbers = sorted(used, key=lambda number: (-totals[number].bytes, groups[number].name))
    return HeapRoots(runtime.name, graph, tree, [groups[number] for number in numbers], numbers, [totals[number] for number in numbers])


def _matches(word: str, name: str) -> bool:
    return any(c in word for c in "*?") and (matches(word, name) or matches(word, name.removeprefix("variable ")))
