"""Findings of `verdict` about the Java heap."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from findleaks.formatting import format_count, number, shorten, size
from findleaks.quoting import shell_quoted
from findleaks.runtimes.base import Part, Type
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.garbage import GARBAGE_BYTES
from findleaks.runtimes.jvm.java_classes import STACK_CHUNK, VIRTUAL_THREAD
from findleaks.runtimes.jvm.remedies import OF_CLEANERS, OWN_ACTIONS
from findleaks.runtimes.retained_findings import BY_TYPE, LEAST_LIVE, RETAINED_SHARE, find_retainer, make_retained_finding
from findleaks.target.base import Target
from findleaks.value_classes import replace

if TYPE_CHECKING:
    from findleaks.runtimes.jvm.object_graph import JavaGraph

# Less unused memory is not reported: bytes, and 1 / _PART of the resident heap.
_LEAST, _PART = 64 << 20, 2
_MOST_RETAINED = 8  # objects on the path to what an object retains
_NAME = "JVM"
_OF_STACKS = ("java.lang.VirtualThread", "java.lang.ref.Finalizer.", OF_CLEANERS)
"""Parts of paths to objects that a waiting thread keeps; `stacks` shows what it waits for."""
_FINALIZERS = "java.lang.Class of java.lang.ref.Finalizer"  # in paths to objects with a finalizer
_OF_VIRTUAL_THREADS = "find out what the virtual threads wait for: each keeps the objects to which its frames refer"


def find_unused_heap(target: Target, heap: Part, types: Sequence[Type], collector: str) -> Iterator[Finding]:
    """Yield one finding if live objects take less than half of a large resident Java heap."""
    counts = [target.resident(start, end) for start, end in heap.ranges]
    if not types or any(count is None for count in counts):
        return
    resident = sum(count or 0 for count in counts)
    live, garbage = sum(one.bytes for one in types), sum(one.own.get(GARBAGE_BYTES, 0) for one in types)
    unused = resident - live
    if unused < _LEAST or unused * _PART < resident:
        return
    title = f"Not a leak: the Java heap has {size(resident)} of resident memory, and live objects take {size(live)} of it."
    cause = f"Objects that were not collected yet take {size(min(garbage, unused))}; the rest is free memory that the JVM keeps."
    remedies = ["a smaller -Xmx or -XX:SoftMaxHeapSize, so that the collector runs earlier"]
    if collector == "G1":
        remedies.append("-XX:G1PeriodicGCInterval=MILLISECONDS, with which G1 returns memory of idle programs")
    facts: dict[str, object] = {"resident_bytes": resident, "live_bytes": live, GARBAGE_BYTES: garbage}
    yield Finding("unused-java-heap", unused, title, cause, tuple(remedies), ("runtime --only jvm",), facts, unused)


def find_in_graph(graph: JavaGraph, types: Sequence[Type]) -> Iterator[Finding]:
    """Yield the findings for which the references between objects are needed. `types`: the live
    objects by type."""
    from findleaks.runtimes.jvm.virtual_deadlocks import find_virtual_deadlocks  # since JDK 21 only

    yield from find_virtual_deadlocks(graph, types)
    yield from find_retained_objects(graph, types)


def find_retained_objects(graph: JavaGraph, types: Sequence[Type]) -> Iterator[Finding]:
    """Yield at most one finding about what retains most of the live objects: one object, or the
    roots with one name, such as the values of a thread-local variable in all threads of a pool.
    `types`: the live objects by type."""
    found = next(find_retainer(graph, _NAME, types), None) or next(_find_named_root(graph, types), None)
    if found is None:
        from findleaks.runtimes.jvm.numerous_objects import find_numerous_objects  # seldom needed

        made = next(_find_virtual_threads(graph, types), None) or next(find_numerous_objects(graph, types), None)
        yield from [made] if made is not None else []
        return
    address = int(str(found.facts["address"]), 16)
    example = _describe_example(graph, types, address) or _describe_retained(graph, address)
    # The numbers of objects by type name classes that do not retain the objects.
    reached = found.cause.partition(BY_TYPE)[0]
    text = f"{found.facts['root']} {found.facts['path']} {reached} {example}"
    if OF_CLEANERS in text and graph.own_actions:
        own = f" {format_count(graph.own_actions, 'object')} live only because a Cleaner has an action for them that refers to them."
        yield replace(found, cause=found.cause + example + own, remedies=(OWN_ACTIONS,))
        return
    commands = (*found.commands, "stacks") if any(name in text for name in _OF_STACKS) else found.commands
    made = replace(found, cause=found.cause + example, remedies=tuple(graph.path_remedies(text)), commands=commands)
    if _FINALIZERS in str(found.facts["path"]):
        from findleaks.runtimes.jvm.finalizers import describe_finalizers  # seldom needed

        made = describe_finalizers(graph, made)
    yield made


def _find_named_root(graph: JavaGraph, types: Sequence[Type]) -> Iterator[Finding]:
    from findleaks.runtimes.jvm.named_roots import list_named_roots  # `find` does not need it

    live = sum(one.bytes for one in types)
    least = RETAINED_SHARE * live
    root = next(iter(list_named_roots(graph, int(least))), None) if live >= LEAST_LIVE else None
    if root is None or root.retained.bytes < least:
        return
    is_plural = root.sort == "class-loader" or root.name.startswith("task queues")
    verb = "together retain" if root.members else "retain" if is_plural else "retains"
    title = f"In use, not leaked: {shorten(root.name, 120)} {verb} {size(root.retained.bytes)} in "
    title += f"{format_count(root.retained.blocks, 'object')} of {_NAME}."
    path = graph.describe_path(graph.blocks.find(root.address))
    one = f"The largest of {number(root.values)} objects" if root.values > 1 else "The object"
    cause = f"{one} is reached by {shorten(graph.describe_example(root.address), 400)}."
    made = make_retained_finding(_NAME, root.address, root.type, root.name, path, root.retained, title, cause)
    yield replace(made, commands=(f"roots {shell_quoted(root.name)}", f"path {root.address:#x}"))


def _find_virtual_threads(graph: JavaGraph, types: Sequence[Type]) -> Iterator[Finding]:
    """Yield a finding if the virtual threads retain most of the live objects. Several objects of
    the JDK refer to a waiting virtual thread, so that no single variable retains it."""
    live, count = sum(one.bytes for one in types), sum(one.objects for one in types if one.name == VIRTUAL_THREAD)
    address, tree = graph.example(VIRTUAL_THREAD) if count else None, graph.dominators
    if live < LEAST_LIVE or address is None or tree is None:
        return
    labels, names = graph.labels()
    retained = tree.by_label(labels, array("I", range(len(names))))[list(names).index(VIRTUAL_THREAD)]
    if retained.bytes < RETAINED_SHARE * live:
        return
    title = f"In use, not leaked: {format_count(count, 'object')} of {VIRTUAL_THREAD} retain {size(retained.bytes)} in "
    title += f"{format_count(retained.blocks, 'object')} of {_NAME}."
    chunks = sum(one.objects for one in types if one.name == STACK_CHUNK)
    index = graph.blocks.find(address)
    frames = f"The frames of virtual threads that wait are in the Java heap, in {format_count(chunks, 'object')} of {STACK_CHUNK}. "
    cause = f"{frames if chunks else ''}One of the virtual threads is reached by {shorten(graph.describe_example(address), 400)}."
    holder, path = graph.describe_holder(index), graph.describe_path(index)
    made = make_retained_finding(_NAME, address, VIRTUAL_THREAD, holder, path, retained, title, cause)
    yield replace(made, remedies=(_OF_VIRTUAL_THREADS,), commands=("stacks", f"path {address:#x}"))


def _describe_example(graph: JavaGraph, types: Sequence[Type], retainer: int) -> str:
    """Return a sentence with the path from the object at `retainer` to an object of the largest
    type; "" if no path to such an object is known that contains the retainer. If the path has only
    classes of the JDK, another sentence names a class of the program, such as the task of a
    FutureTask."""
    largest = max(types, key=lambda one: (one.bytes, one.name))
    example = graph.example(largest.name)
    path = list(graph.path(graph.blocks.find(example))) if example is not None else []
    index = graph.blocks.find(retainer)
    if index not in path[:-1]:
        return ""
    path = path[path.index(index) :]
    text = f" One of {number(largest.objects)} {shorten(largest.name)} is reached by {shorten(graph.describe_chain(path), 400)}."
    inner = () if any(_is_of_program(graph, one) for one in path) else _descend_to_program(graph, path[-1])
    return f"{text} It retains an object of the program: {shorten(graph.describe_chain([path[-1], *inner]), 400)}." if inner else text


def _descend_to_program(graph: JavaGraph, index: int) -> Sequence[int]:
    """Return the objects on the path from an object, without it, to an object of a class of the
    program; see _list_largest. Return () if there is none."""
    path = list(islice(_list_largest(graph, index), _MOST_RETAINED))
    last = next((at for at, one in enumerate(path, 1) if _is_of_program(graph, one)), 0)
    return path[:last]


def _is_of_program(graph: JavaGraph, index: int) -> bool:
    """Return whether the class of an object is neither an array nor a class of the JDK."""
    name = graph.type_of(index)
    return not name.startswith(graph.plain_types) and not name.endswith("[]")


def _describe_retained(graph: JavaGraph, retainer: int) -> str:
    """Return a sentence with a path from the object at `retainer`. Each step goes to the largest
    object that the object before it retains. "" if the first object refers to none."""
    path = [graph.blocks.find(retainer)]
    path += islice(_list_largest(graph, path[0]), _MOST_RETAINED - 1)
    return f" The path to the largest object that it retains: {shorten(graph.describe_chain(path), 400)}." if len(path) > 1 else ""


def _list_largest(graph: JavaGraph, index: int) -> Iterator[int]:
    """Yield the largest object that an object retains and refers to, then the largest one that this
    object retains, and so on."""
    tree = graph.dominators
    while tree is not None:
        largest = next(iter(tree.children(index, 1)), None)
        if largest is None or not graph.link(index, largest.block).address:
            return
        index = largest.block
        yield index
