"""Find what static variables, thread-local variables, timers and class loaders retain in the Java
heap.

A thread-local variable has an entry in the map of each thread: Thread.threadLocals →
ThreadLocal$ThreadLocalMap.table → Entry {referent: the ThreadLocal, value}. A java.util.Timer has a
thread, and a queue with its tasks: TimerThread.queue → TaskQueue.queue → TimerTask[].

Source: OpenJDK 8 to 25, java/lang/Thread.java, java/lang/ThreadLocal.java, java/util/Timer.java."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.engine.dominators import Dominators, node_root, root_node
from findleaks.engine.terms import Totals
from findleaks.formatting import format_count
from findleaks.graph.joint_roots import join_names
from findleaks.runtimes.object_graph import ObjectRoot
from findleaks.target.interruptible import interruptible

if TYPE_CHECKING:
    from findleaks.runtimes.jvm.object_graph import JavaGraph

_STATIC, _THREAD_LOCAL = "static variable", "thread-local variable"
_THREAD, _LOADER = "java.lang.Thread", "java.lang.ClassLoader"
_MAPS = ("threadLocals", "inheritableThreadLocals")
_TIMER_THREAD = "java.util.TimerThread"
_MOST_OBJECTS = 64  # objects that roots refer to, and that get a row
_LEAST_SHARE = 50  # divisor: the part of all objects that such an object must retain
_MOST_LOOKED_AT = 1 << 12  # objects of which a chain of references is searched
# For each object of a chain, all objects are searched for its referrers. Limit for the number of
# objects that are searched in total
_MOST_SEARCHED = 1 << 28
_MOST_KEYS = 64  # ThreadLocals whose fields are searched for
_LEAST = 1024  # bytes that a root must retain to be listed


class NamedRoots:
    """Finds the roots of a graph. `tree`: its dominator tree."""

    def __init__(self, graph: JavaGraph, tree: Dominators) -> None:
        self._graph, self._tree = graph, tree
        self._names: dict[int, str] = {}  # of static variables, by object
        self._phrases: dict[int, str] = {}  # for variables, by object
        self._keys: dict[int, str] = {}  # names of ThreadLocals without a static variable
        self._most_keys = min(_MOST_KEYS, max(_MOST_SEARCHED // max(len(graph.blocks), 1), 1))
        self._attributed: set[int] = set()  # objects that variables retain
        self._special = {*graph.mirrors(), *graph.instances(_THREAD), *graph.instances(_LOADER)}

    def list(self, least: int) -> Sequence[ObjectRoot]:
        """Return the roots, the largest first. The objects of a class loader include those of the
        static variables of its classes. `least`: roots that are neither variables nor class loaders
        must retain this many bytes."""
        found = [*self._statics(), *self._thread_locals(), *self._timers(), *self._loaders()]
        found += self._objects(max(least, self._tree.total().bytes // _LEAST_SHARE))
        listed = (one for one in found if one.retained.bytes >= _LEAST)
        return sorted(listed, key=lambda one: (-one.retained.bytes, one.address, one.name))

    def _root(self, sort: str, name: str, index: int, values: int = 1, retained: Optional[Totals] = None) -> ObjectRoot:
        retained = retained if retained is not None else self._tree.sum_retained(index)
        return ObjectRoot(name, sort, values, self._graph.blocks.address(index), self._graph.type_of(index), retained)

    def _statics(self) -> Iterator[ObjectRoot]:
        """Yield one root for all static variables of a name: classes of different class loaders may
        have the same name."""
        graph = self._graph
        owners: dict[int, int] = {}
        shared: set[int] = set()
        for mirror in interruptible(graph.target, graph.mirrors()):
            for name, index in graph.static_references(mirror):
                if owners.setdefault(index, mirror) != mirror or self._names.get(index, name) != name:
                    shared.add(index)
                self._names.setdefault(index, name)
                self._phrases.setdefault(index, f"{_STATIC} {name}")
        values: dict[str, list[int]] = {}
        for index, mirror in owners.items():
            if index not in shared and index not in self._special and self._retains(mirror, index):
                values.setdefault(self._names[index], []).append(index)
        for one in graph.joint_statics:
            for name, value in zip(one.names, one.values):
                # Classes of other loaders may have the same name.
                values[name] = [index for index in values.get(name, ()) if index != value]
            largest = max(one.values, key=lambda value: self._tree.sum_retained(value).bytes)
            found = self._root("variable", f"{_STATIC}s {join_names(one.names)}", largest, len(one.names), one.retained)
            yield found._replace(members=one.names)
        for name, some in values.items():
            if some:
                yield self._sum("variable", f"{_STATIC} {name}{'' if len(some) == 1 else f' of {len(some):,} classes'}", some)

    def _retains(self, owner: int, value: int) -> bool:
        """Return whether a variable retains an object. Stacks and other memory of the JVM may refer
        to the object, too."""
        found = self._is_below(value, owner)
        if found:
            self._attributed.add(value)
        return found

    def _is_below(self, value: int, owner: int) -> bool:
        """Return whether the immediate dominator of an object is its owner, or a root."""
        found = self._tree.idom(value)
        return found is not None and (found == owner or node_root(found) >= 0)

    def _sum(self, sort: str, name: str, values: Sequence[int]) -> ObjectRoot:
        largest = max(values, key=lambda one: self._tree.sum_retained(one).bytes)
        return self._root(sort, name, largest, len(values), Totals.sum_of(map(self._tree.sum_retained, values)))

    def _thread_locals(self) -> Iterator[ObjectRoot]:
        """Yield one root for all threads' values of a variable."""
        graph = self._graph
        values: dict[str, list[tuple[int, str]]] = {}
        for thread in interruptible(graph.target, graph.instances(_THREAD)):
            entries = [entry for name in _MAPS for entry in self._entries(thread, name)]
            # There may be 100,000 virtual threads without a variable. It takes long to read names.
            owner = graph.text_field(thread, "name") if entries else ""
            for entry in entries:
                value, key = graph.reference(entry, "value"), graph.reference(entry, "referent")
                if value < 0:
                    continue
                name = self._names.get(key) or self._name_key(key)
                self._phrases.setdefault(value, f"{_THREAD_LOCAL} {name} of thread {owner}")
                if value not in self._attributed and self._retains(entry, value):
                    values.setdefault(name, []).append((value, owner))
        for name, some in values.items():
            threads = {owner for _, owner in some}
            whose = f"thread {next(iter(threads))}" if len(threads) == 1 else format_count(len(threads), "thread")
            yield self._sum("thread-local", f"{_THREAD_LOCAL} {name} of {whose}", [value for value, _ in some])

    def _name_key(self, key: int) -> str:
        """Return a name for the ThreadLocal `key` to which no static variable refers: a field that
        refers to it, or its type. Each search for a field examines all objects."""
        if key < 0:
            return "a ThreadLocal that was collected"
        if key not in self._keys:
            name = self._graph.name_thread_local(key) if len(self._keys) < self._most_keys else ""
            self._keys[key] = name or f"a {self._graph.type_of(key)}"
        return self._keys[key]

    def _entries(self, thread: int, field: str) -> Iterator[int]:
        found = self._graph.reference(thread, field)
        table = self._graph.reference(found, "table") if found >= 0 else -1
        return (entry for entry in self._graph.elements(table) if entry >= 0)

    def _timers(self) -> Iterator[ObjectRoot]:
        """Yield one root for the task queues of all timers. The stack of a timer's thread refers to
        the queue and to some of its tasks, too. Therefore the dominator of a queue or task may be a
        root instead of an object."""
        graph, tree = self._graph, self._tree
        queues: dict[int, list[int]] = {}
        for thread in interruptible(graph.target, graph.instances(_TIMER_THREAD)):
            queue = graph.reference(thread, "queue")
            table = graph.reference(queue, "queue")
            parts = [one for one in (queue, table, *graph.elements(table)) if one >= 0 and one not in self._attributed]
            found = [one for one in dict.fromkeys(parts) if self._is_below(one, thread)]
            queues[thread] = sorted(found, key=lambda one: tree.sum_retained(one).bytes)
            self._attributed.update(found)
        totals = {queue: Totals.sum_of(map(tree.sum_retained, parts)) for queue, parts in queues.items() if parts}
        if totals:
            largest = max(totals, key=lambda queue: totals[queue].bytes)
            name = f"task {'queue' if len(queues) == 1 else 'queues'} of {format_count(len(queues), 'timer')}"
            yield self._root("threads", name, queues[largest][-1], len(totals), Totals.sum_of(totals.values()))

    def _loaders(self) -> Iterator[ObjectRoot]:
        """Yield one root for all class loaders of a type."""
        graph, tree = self._graph, self._tree
        types: dict[str, list[int]] = {}
        for loader in graph.instances(_LOADER):
            types.setdefault(graph.type_of(loader), []).append(loader)
        for name, some in types.items():
            outer = [one for one in some if tree.idom(one) not in some] if len(some) < _MOST_LOOKED_AT else some
            largest = max(some, key=lambda one: tree.sum_retained(one).bytes)
            yield self._root(
                "class-loader", f"class loaders of type {name}", largest, len(some), Totals.sum_of(map(tree.sum_retained, outer))
            )

    def _objects(self, least: int) -> Iterator[ObjectRoot]:
        """Yield other objects to which roots refer, and that retain at least this many bytes."""
        roots = range(self._graph.root_count)
        for child in (one for root in roots for one in self._tree.children(root_node(root), _MOST_OBJECTS)):
            # All memory is searched for the roots of an object without a variable.
            if child.block not in self._special and child.block not in self._attributed and child.bytes >= least:
                yield self._root("other", self._name(child.block), child.block)

    def _name(self, index: int) -> str:
        """Describe a root that reaches an object: the last variable on the path to the object if
        there is one."""
        path = self._graph.path(index)
        phrase = next((self._phrases[one] for one in reversed(path) if one in self._phrases), "")
        return phrase or self._graph.describe_root(index)


def list_named_roots(graph: JavaGraph, least: int = 0) -> Sequence[ObjectRoot]:
    """Return what variables and class loaders retain; () if live objects are unknown. For `least`
    see NamedRoots.list."""
    tree = graph.dominators
    return NamedRoots(graph, tree).list(least) if tree is not None else ()
