"""Findings of `verdict` about V8's heap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.formatting import number, shorten, size
from findleaks.runtimes.base import Type
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.garbage import GARBAGE_BYTES
from findleaks.runtimes.node.addon_files import CONTEXT, DEFERRED, FUNCTION, HOOK, REFERENCE, SUFFIX, TASK, plural
from findleaks.runtimes.node.isolate_heaps import IsolateHeap, count_heaps, describe_heaps
from findleaks.runtimes.retained_findings import find_retainer
from findleaks.runtimes.v8.array_bytes import ARRAY_BYTES
from findleaks.target.interruptible import interruptible
from findleaks.value_classes import NamedTuple, replace

if TYPE_CHECKING:
    from findleaks.runtimes.v8.object_graph import V8Graph

LEAST = 8 << 20  # bytes of objects that are reported; an idle Node has 2 to 4 MiB
SHOWN = 5  # constructors that the finding names
PART = 0.01  # of the heap: smaller shares are not named
RETAINED, SHARE = 5 << 20, 0.4  # least live objects, and part of them that one object retains
LEAST_HELD = 1 << 20  # bytes that global handles of one owner retain to be reported
# Number of such handles that are reported even if the rest of the heap is large. An idle Node has 4
# MiB of live objects, so thousands of small objects of an addon may be a small part of the heap.
MANY_HANDLES = 5000
HOLDERS, HELD = 3, 0.05  # most holders that are named; least part of the heap for each
MOST_RETAINERS = 64  # number of objects that retain the most, whose holders are searched
REMEDIES = (
    (plural(REFERENCE), "delete each reference when its object is no longer needed (napi_delete_reference)"),
    (plural(FUNCTION), "release each thread-safe function that is no longer called (napi_release_threadsafe_function)"),
    (plural(DEFERRED), "settle each promise of the addon (napi_resolve_deferred, napi_reject_deferred)"),
    (plural(TASK), "delete each asynchronous task after its completion (napi_delete_async_work)"),
    (plural(HOOK), "remove each hook whose memory is no longer needed (napi_remove_env_cleanup_hook), and free the memory"),
    (plural(CONTEXT), "destroy each asynchronous context that is no longer needed (napi_async_destroy)"),
)
"""What an addon should do with handles, by a part of the name of their group."""
UNREF = "call Unref() for each object that is no longer needed (node::ObjectWrap)"
DROP = "remove each object from the variable or object that refers to it when it is no longer needed"
"""What a script should do with objects to which an addon has attached memory."""
FINALIZE = "pass napi_wrap a function (finalize_cb) that frees the block"
"""What an addon should do with blocks that it attaches to objects."""
RESET = "reset each handle when its object is no longer needed (v8::Global::Reset); settle each promise of an addon (napi_resolve_deferred)"
OF_NODE = (
    ("node::worker::MessagePort", "close each MessagePort that is no longer needed (port.close())"),
    ("node::worker::Worker", "end each worker that is no longer needed (worker.terminate())"),
    ("node::TCPWrap", "destroy each socket that is no longer needed (socket.destroy())"),
    ("node::PipeWrap", "destroy each socket or pipe that is no longer needed (socket.destroy())"),
    ("node::", "close or destroy each JavaScript object of this class that is no longer needed"),
)
"""What a script should do with objects of Node's own classes, by the beginning of the class."""
OWNER = "global handles of "  # precedes the owner in the name of a group
TERMINATE = "end workers that are no longer needed (worker.terminate())"
GENERAL = ("Object", "Array")
"""Names of constructors whose objects belong to many parts of a program."""
LARGE, MOST_IN_LARGE = 1 << 20, 8  # number of objects of a large heap, and MOST_RETAINERS for it


def find_large_heap(types: Sequence[Type], unread: int, graph: Optional[V8Graph], heaps: Sequence[IsolateHeap] = ()) -> Iterator[Finding]:
    """Yield one finding, if the objects of V8's heap are large, or one object retains most of them.
    `types`: see JavaScript.types. `unread`: bytes of the heap that cannot be read as objects.
    `heaps`: see list_isolate_heaps."""
    total, garbage = sum(one.bytes for one in types), sum(one.own.get(GARBAGE_BYTES, 0) for one in types)
    for found in _find_holders(graph, types) if graph is not None else ():
        yield _add_heap(found, heaps)
        if total + garbage < 2 * found.bytes:
            return
    if total + garbage < LEAST:
        return
    objects = sum(one.objects for one in types)
    ranked = sorted(types, key=lambda one: (-_whole(one), one.name))
    named = [one for one in ranked if is_constructor(one.name)][:SHOWN]
    others = [one for one in ranked if not is_constructor(one.name) and one.bytes >= PART * total][:SHOWN]
    least = "at least " if unread else ""
    title = f"{count_heaps(heaps)} {least}{number(objects)} live objects of {size(total)}"
    if garbage >= PART * total:
        doubt = f". {size(garbage)} more are garbage or live: {size(unread)} of the heap cannot be read, and its objects may refer to them."
        title += doubt if unread else f", and {size(garbage)} of garbage that was not collected yet."
    else:
        title += "."
    shares = "; ".join(_amount(one) for one in named if _whole(one) >= PART * total)
    cause = describe_heaps(heaps)
    cause += f"{' ' if cause else ''}Most memory by constructor, with the arrays of objects: {shares}." if shares else ""
    internal = "; ".join(map(_amount, others))
    cause += f"{' ' if cause else ''}Arrays and other data: {internal}." if internal else ""
    holders = _name_holders(graph) if graph is not None else []
    holders = [one for one in holders if one.bytes >= HELD * total][:HOLDERS]
    held = "; ".join(f"{shorten(one.name, 120)}: {size(one.bytes)}{_in_objects(one.objects)}" for one in holders)
    cause += f"{' ' if cause else ''}Retained by: {held}." if held else ""
    most, example = _find_example(graph, [one for one in named if _whole(one) >= PART * total]) if graph is not None else ("", None)
    path = graph.describe_example(example) if graph is not None and example is not None else ""
    cause += f"{' ' if cause else ''}One of the {shorten(most)} objects is reached by {shorten(path, 400)}." if path else ""
    facts: dict[str, object] = {
        "objects": objects,
        "bytes": total,
        GARBAGE_BYTES: garbage,
        "types": [{"name": one.name, "objects": one.objects, "bytes": one.bytes, **one.own} for one in ranked[: 2 * SHOWN]],
    }
    if heaps:
        facts["heaps"] = [one.to_json() for one in heaps]
    addresses = [*(one.address for one in holders[:1]), *([example] if example is not None else [])]
    commands = (*(f"path {one:#x}" for one in addresses[:1]), "runtime --only node")
    remedy = "compare two snapshots with `findleaks runtime --only node`: objects of a leaking constructor become more"
    of_workers = sum(one.bytes for one in heaps if one.is_worker)
    remedies = (TERMINATE, remedy) if 2 * of_workers > total else (remedy,)
    yield Finding("large-v8-heap", total + garbage, title, cause, remedies, commands, facts)


def _add_heap(found: Finding, heaps: Sequence[IsolateHeap]) -> Finding:
    """Return the finding about retained objects with the thread whose heap they are in, if there
    are several heaps."""
    address = found.facts.get("address")
    one = next((one for one in heaps if address and one.contains(int(str(address), 0))), None)
    if one is None:
        return found
    cause = f"{found.cause} These objects are in the heap of {one.label()}."
    return replace(found, cause=cause, facts={**found.facts, "heap": one.to_json()})


def _find_example(graph: V8Graph, named: Sequence[Type]) -> tuple[str, Optional[int]]:
    """Return the constructor with the most bytes whose name is not general, and one of its
    objects."""
    name = next((one.name for one in named if one.name not in GENERAL), "")
    return name, graph.example(name) if name else None


class _Holder(NamedTuple):
    """A holder of objects that retain the most: the last object with a name on a path to them.
    `address`: the address of one of these objects. `objects`: their number. `bytes`: the bytes that
    they retain."""

    name: str
    address: int
    objects: int
    bytes: int


def _name_holders(graph: V8Graph) -> list[_Holder]:
    """Return the holders of the objects that retain the most, the one with the most bytes first.
    Raises Interrupted."""
    found: dict[str, _Holder] = {}
    # The search for a holder takes time proportional to the size of the heap.
    most = MOST_IN_LARGE if len(graph.blocks) > LARGE else MOST_RETAINERS
    for one in interruptible(graph.target, graph.retainers(MOST_RETAINERS)[:most]):
        name = graph.describe_holder(one.object.block)
        known = found.get(name, _Holder(name, one.object.address, 0, 0))
        found[name] = known._replace(objects=known.objects + 1, bytes=known.bytes + one.retained.bytes)
    return sorted(found.values(), key=lambda one: -one.bytes)


def _in_objects(count: int) -> str:
    return f" in {number(count)} objects" if count > 1 else ""


def _find_holders(graph: V8Graph, types: Sequence[Type]) -> Iterator[Finding]:
    """Yield a finding about the global handles, or about the object, that retain most of the live
    objects. `types`: see JavaScript.types."""
    live = sum(one.bytes for one in types)
    for group, node, retained in graph.retaining_groups()[:1]:
        is_large = retained.bytes >= SHARE * live
        if retained.bytes < LEAST_HELD or not (is_large or len(group.places) >= MANY_HANDLES):
            break
        name = shorten(group.name, 200)
        title = f"{number(len(group.places))} {name} retain {size(retained.bytes)} in {number(retained.blocks)} objects of Node."
        content = graph.describe_content(node).replace("It retains", "They retain", 1)
        if group.variable:
            reached = f"The addon's variable {group.variable} refers to {number(group.in_variable)} of them, directly or indirectly."
            content = f"{reached} {content}".rstrip()
        facts: dict[str, object] = {
            "runtime": "Node",
            "root": group.name,
            **({"variable": group.variable, "handles_in_variable": group.in_variable} if group.variable else {}),
            "handles": len(group.places),
            "retained_objects": retained.blocks,
            "retained_bytes": retained.bytes,
        }
        remedy = next((text for word, text in REMEDIES if word in group.name), "") or suggest_closing(group.name.removeprefix(OWNER))
        commands = (f"path {group.objects[len(group.objects) // 2]:#x}", "runtime --only node")
        yield Finding("retained-objects", retained.bytes, f"In use, not leaked: {title}", content, (remedy or RESET,), commands, facts)
        if is_large:
            return
    yield from find_retainer(graph, "Node", types, least=RETAINED, share=SHARE)


def suggest_closing(owner: str) -> str:
    """Return what a script should do with objects of a class of Node; "" for other owners."""
    return next((text for beginning, text in OF_NODE if owner.startswith(beginning)), "")


def suggest_deleting(type_name: str, chain: str = "") -> str:
    """Return what an addon or a script should do with objects of a type of Node-API, or of a class
    of an addon ("Session (/app/a.node)"); "" for other types.

    `chain`: the root of one of the objects and the path from there, or "". References that an
    addon wraps objects with (napi_wrap) are weak. If another root reaches the objects, their
    references are not the cause."""
    if chain and type_name.endswith(f"{SUFFIX})") and not type_name.startswith(("Node-API", "ArrayBuffer")):
        return UNREF if chain.startswith(f"global handle of {type_name.partition(' (')[0]}") else DROP
    if type_name.startswith(REFERENCE) and chain and "Node-API" not in chain.partition(":")[0]:
        return DROP
    return next((text for beginning, text in REMEDIES if plural(type_name).startswith(beginning)), "")


def is_constructor(name: str) -> bool:
    """Whether objects of this name have a constructor; others are internal to V8."""
    return not name.startswith("(") and name != "system / Context"


def _amount(one: Type) -> str:
    return f"{one.name}: {number(one.objects)}, {size(_whole(one))}"


def _whole(one: Type) -> int:
    """Return the bytes of objects and of the arrays that belong to them."""
    return one.bytes + one.own.get(ARRAY_BYTES, 0)
