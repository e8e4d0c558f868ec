"""Compute what the roots of a managed heap retain in this heap, for runtimes whose roots have
names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.engine.dominators import SHARED, Dominators, root_node
from findleaks.engine.terms import Totals
from findleaks.runtimes.base import Runtime
from findleaks.runtimes.object_graph import ManagedObject, ObjectGraph, ObjectRoot, count_labels
from findleaks.runtimes.root_groups import RootGroup
from findleaks.session import Session
from findleaks.value_classes import NamedTuple
from findleaks.wildcards import matches

MOST_COUNTED = 1 << 20  # objects of a root whose types are counted
# Beginnings of names
_VARIABLES = ("variable ", "variables ", "static variable ", "static variables ", "thread-local variable ")


class TypeAmount(NamedTuple):
    """Objects of one type that a root retains."""

    name: str
    totals: Totals


class HeapRoot(NamedTuple):
    """A root, or several of the same name, and the objects that only these retain.

    `node` is the node of the dominator tree below which these objects are; None if there are
    several nodes. `values` is `count` of the result; the other fields have the same names there."""

    name: str
    sort: str
    totals: Totals
    node: Optional[int]
    address: int = 0
    threads: int = 0
    type: str = ""
    values: int = 0
    members: Sequence[str] = ()


class HeapRoots(NamedTuple):
    """The roots of a heap, those that retain most first. `is_partition`: whether no object is
    retained by two of them."""

    runtime: str
    graph: ObjectGraph
    tree: Dominators
    roots: Sequence[HeapRoot]
    is_partition: bool

    def match(self, word: str) -> HeapRoots:
        """Return the roots with this name ("main.cache"), or with names that match a pattern."""
        exact = [one for one in self.roots if word in _names(one)]
        is_pattern = any(c in word for c in "*?")
        return self._replace(roots=exact or [one for one in self.roots if is_pattern and any(matches(word, name) for name in _names(one))])

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
        root = next((root.name for root in self.roots if root.node == (holder if self.is_partition else one.block)), "")
        if not root and holder >= 0:
            above = self.graph.object(holder)
            return f"{above.type} at {above.address:#x}"
        return root


def list_heap_roots(session: Session) -> list[HeapRoots]:
    """Return the roots of each heap that has named roots. They are computed once for a session."""
    return session.once(list_heap_roots, lambda: [*list_partitions(session), *_list_overlapping(session)])


def list_partitions(session: Session) -> list[HeapRoots]:
    """Return the roots of those heaps in which each object is retained by at most one of them."""
    return session.once(list_partitions, lambda: [found for one in session.runtimes if (found := _partition(session, one)) is not None])


def _partition(session: Session, runtime: Runtime) -> Optional[HeapRoots]:
    graph = runtime.object_graph() if runtime.names_roots else None
    if graph is None:
        return None
    session.report_progress(f"computing memory retained by roots of {runtime.name}", 0.0)
    found = graph.root_tree
    if found is None:
        return None
    roots = [_root_of_group(*one) for one in enumerate(zip(found.groups, found.totals))]
    used = sorted((one for one in roots if one.totals.blocks), key=lambda one: (-one.totals.bytes, one.name))
    return HeapRoots(runtime.name, graph, found.tree, used, True)


def _root_of_group(number: int, group: tuple[RootGroup, Totals]) -> HeapRoot:
    one, totals = group
    return HeapRoot(one.name, one.sort, totals, root_node(number), one.address, one.threads, members=one.members)


def _list_overlapping(session: Session) -> list[HeapRoots]:
    found = []
    for runtime in session.runtimes:
        roots = runtime.named_roots()
        graph = runtime.object_graph() if roots else None
        tree = graph.dominators if graph is not None else None
        if graph is not None and tree is not None:
            found.append(HeapRoots(runtime.name, graph, tree, [_root_of_object(graph, one) for one in roots], False))
    return found


def _root_of_object(graph: ObjectGraph, one: ObjectRoot) -> HeapRoot:
    node = graph.blocks.find(one.address) if one.values == 1 else None
    return HeapRoot(one.name, one.sort, one.retained, node, one.address, type=one.type, values=one.values, members=one.members)


def _names(root: HeapRoot) -> set[str]:
    """Return the name of a root, and the shorter names of a variable.
    Example: "thread-local variable App.user of 3 threads", "App.user of 3 threads", "thread-local
    variable App.user", "App.user"."""
    words = next((one for one in _VARIABLES if root.name.startswith(one)), None)
    if words is None:
        return {root.name, *root.members}
    variable = root.name.partition(" of ")[0]
    return {root.name, root.name[len(words) :], variable, variable[len(words) :], *root.members}
