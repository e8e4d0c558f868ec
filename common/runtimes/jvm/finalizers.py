"""Describe objects that only the JVM's list of objects with a finalizer retains.

The JVM keeps a java.lang.ref.Finalizer for each such object. When a collection finds that nothing
else refers to the object, it puts the Finalizer into a queue, and a thread calls finalize().

Source: OpenJDK 8 to 25, src/java.base/share/classes/java/lang/ref: Finalizer.java (`unfinalized`,
`queue`), ReferenceQueue.java (`queueLength`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Optional

from findleaks.formatting import format_count, shorten, size
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.jvm.native_roots import is_stack_word
from findleaks.runtimes.jvm.remedies import OF_FINALIZERS, OF_UNUSED_FINALIZERS
from findleaks.target.interruptible import interruptible
from findleaks.value_classes import replace

if TYPE_CHECKING:
    from findleaks.runtimes.jvm.object_graph import JavaGraph

_FINALIZER = "java.lang.ref.Finalizer"
_MOST_COMPARED = 1 << 16  # objects whose retained memory is compared
_SAMPLED = 8  # objects whose paths are searched for


def describe_finalizers(graph: JavaGraph, found: Finding) -> Finding:
    """Return a finding about what the list retains, with a title and a cause that state how many
    objects wait for the thread that calls finalize(). Objects to which only a thread refers are in
    use: for retained sizes, the list counts before the stacks. Raises Interrupted."""
    live = [one for one in graph.instances(_FINALIZER) if graph.is_live(one)]
    others = tuple(one for one in found.remedies if one != OF_FINALIZERS)
    owner = _describe_owner(graph, live, found)
    if owner is not None:
        return replace(owner, remedies=others)
    every = max(len(live) // _SAMPLED, 1)
    sampled = list(islice(live[every // 2 :: every], _SAMPLED))
    paths = [_find_use(graph, graph.reference(one, "referent")) for one in interruptible(graph.target, sampled)]
    used = list(filter(None, paths))
    if 2 * len(used) > len(sampled):
        title = f"In use, not leaked: objects with a finalizer retain {size(found.bytes)}."
        cause = (
            f"Stacks of threads, or native memory, reach {len(used)} of {format_count(len(sampled), 'examined object')} with a finalizer"
        )
        cause += f", one of them by {shorten(graph.describe_chain(used[-1]), 400)}. "
        return replace(found, title=title, cause=cause + found.cause, remedies=others)
    title = f"In use, not leaked: objects that wait for their finalizer retain {size(found.bytes)}."
    waiting = _read_length(graph)
    if not waiting:
        cause = "No object is in the queue of the thread Finalizer: a collection puts them there, and the following one frees them. "
        return replace(found, title=title, cause=cause + found.cause, remedies=(OF_UNUSED_FINALIZERS, *others))
    cause = f"{format_count(waiting, 'object')} {'is' if waiting == 1 else 'are'} in the queue of the thread Finalizer, "
    cause += "which calls finalize() of one object after the other. "
    more = max(len(live) - waiting, 0)
    if more > waiting:
        cause += f"{format_count(more, 'other object')} with a finalizer {'is' if more == 1 else 'are'} not in the queue: "
        cause += "the next collection adds those that are not in use. "
    return replace(found, title=title, cause=cause + found.cause)


def _describe_owner(graph: JavaGraph, live: Sequence[int], found: Finding) -> Optional[Finding]:
    """Return a finding about the one object with a finalizer that retains at least half of the
    bytes and that a thread uses, such as a ThreadPoolExecutor of JDK 8 with its queue. Return None
    if there is none. `live`: the Finalizers. Raises Interrupted."""
    tree = graph.dominators
    if tree is None or len(live) > _MOST_COMPARED:
        return None
    owners = [one for one in (graph.reference(each, "referent") for each in interruptible(graph.target, live)) if one >= 0]
    largest = max(owners, key=lambda one: tree.sum_retained(one).bytes, default=-1)
    retained = tree.sum_retained(largest).bytes if largest >= 0 else 0
    path = _find_use(graph, largest) if 2 * retained >= found.bytes else ()
    if not path:
        return None
    low = graph.blocks.address(path[0])
    stack = next((one.name for one in graph.roots_to(low, low + 1) if one.name and is_stack_word(one)), "")
    text = shorten(f"{stack}: {graph.describe_chain(path)}" if stack else graph.describe_chain(path), 400)
    title = f"In use, not leaked: an object of {shorten(graph.type_of(largest))} retains {size(retained)}."
    cause = f"The object has a finalizer. {'A thread' if stack else 'A thread, or native memory,'} reaches it by {text}. "
    return replace(found, bytes=retained, title=title, cause=cause + found.cause)


def _find_use(graph: JavaGraph, index: int) -> Sequence[int]:
    """Return the path from a thread to an object, () if there is none without a Finalizer."""
    path = graph.path_from_threads(index) if index >= 0 else ()
    return path if all(graph.type_of(one) != _FINALIZER for one in path) else ()


def _read_length(graph: JavaGraph) -> int:
    """Return the number of objects in the queue, 0 if it is unknown."""
    mirror = next((one for one in graph.mirrors() if graph.type_of(one) == f"java.lang.Class of {_FINALIZER}"), -1)
    queue = dict(graph.static_references(mirror)).get(f"{_FINALIZER}.queue", -1) if mirror >= 0 else -1
    return next((one.value for one in graph.fields_of(queue, 0) if one.name == ".queueLength"), 0) if queue >= 0 else 0
