"""Findings of `verdict` about the live objects in a runtime's own heap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.engine.terms import Totals
from findleaks.formatting import format_count, number, shorten, size, some
from findleaks.quoting import shell_quoted
from findleaks.runtimes.base import Runtime, Type
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.joint_members import JointRetainer
from findleaks.runtimes.object_graph import ObjectGraph

RETAINED = "retained-objects"
"""The kind of a finding about the object or the variables that retain most live objects."""

LEAST_LIVE = 16 << 20
"""Bytes of live objects. If there are fewer, no retainer of them is reported."""

RETAINED_SHARE = 0.5
"""The fraction of the live objects' bytes that an object or a root must retain to be reported."""

_LARGE = 4 << 20  # bytes of live objects whose types are named
_TYPES = 4  # types that a finding names
_LEAST_SHARE = 0.125  # least part of the live objects' bytes for a type whose path is shown


def find_path_remedies(runtime: Runtime, path: str) -> tuple[str, ...]:
    """Return what frees the objects of a runtime that a root reaches by this path in words; () if
    unknown."""
    graph = runtime.object_graph()
    return tuple(graph.path_remedies(path)) if graph is not None else ()


def make_retained_finding(
    runtime: str, address: int, type_: str, root: str, path: str, retained: Totals, title: str, cause: str
) -> Finding:
    """Return the finding about the retainer of most live objects: the object at `address`, or the
    variables with the name `root`, which hold this object. `retained`: what they retain."""
    facts: dict[str, object] = {
        "runtime": runtime,
        "address": hex(address),
        "type": type_,
        "root": root,
        "path": path,
        "retained_objects": retained.blocks,
        "retained_bytes": retained.bytes,
    }
    commands = (f"path {address:#x}", f"runtime --only {runtime.lower()}")
    return Finding(RETAINED, retained.bytes, title, cause, (), commands, facts)


def find_retainer(
    graph: ObjectGraph, runtime: str, types: Sequence[Type], known: int = 0, least: int = LEAST_LIVE, share: float = RETAINED_SHARE
) -> Iterator[Finding]:
    """Yield a finding if one object retains most of the live objects. `types`: the live objects by
    type. `known`: bytes of the largest other finding about them. `least`: fewer bytes of live
    objects are not reported. `share`: the fraction of them that the object must retain."""
    live = sum(one.bytes for one in types)
    if live < least:
        return
    joint = graph.find_joint_retainer()
    if joint is not None and joint.retained.bytes >= share * live and joint.retained.bytes > 2 * known:
        yield _describe_joint(graph, joint, runtime, types)
        return
    for one, retained in graph.retainers(1):
        if retained.bytes < share * live or 2 * known >= retained.bytes:
            return
        root, path = graph.describe_holder(one.block), graph.describe_path(one.block)
        title = f"In use, not leaked: {shorten(root, 120)} retains {size(retained.bytes)} in "
        title += f"{format_count(retained.blocks, 'object')} of {runtime}."
        content = graph.describe_content(one.block)
        cause = f"{content}{' ' if content else ''}The path to the object that retains them: {shorten(path, 400)}."
        cause += "" if content else f" Most live objects by type: {_largest(types)}."
        yield make_retained_finding(runtime, one.address, one.type, root, path, retained, title, cause)


def _describe_joint(graph: ObjectGraph, joint: JointRetainer, runtime: str, types: Sequence[Type]) -> Finding:
    title = f"In use, not leaked: {shorten(joint.name, 120)} together retain {size(joint.retained.bytes)} in "
    title += f"{format_count(joint.retained.blocks, 'object')} of {runtime}."
    content = graph.describe_content(joint.holder).replace("It retains", "They retain", 1)
    cause = content or f"Most live objects by type: {_largest(types)}."
    address, type_, path = graph.extent(joint.holder)[0], graph.type_of(joint.holder), graph.describe_path(joint.holder)
    return make_retained_finding(runtime, address, type_, joint.name, path, joint.retained, title, cause)


def find_large_types(graph: ObjectGraph, runtime: str, types: Sequence[Type], known: int = 0) -> Iterator[Finding]:
    """Yield a finding with the largest types and the path to one of their objects, if the live
    objects are large. If the types of most objects are unknown, the finding names the root that
    retains the most. For the arguments, see `find_retainer`."""
    live = sum(one.bytes for one in types)
    if live < _LARGE or 2 * known >= live:
        return
    count = sum(one.objects for one in types)
    # Objects without a known type have no example.
    large = [one for one in _rank(types)[:_TYPES] if one.bytes >= _LEAST_SHARE * live]
    examples = ((one.name, graph.example(one.name)) for one in large)
    name, example = next((one for one in examples if one[1] is not None), ("", None))
    path = graph.describe_example(example) if example is not None else ""
    title = f"In use, not leaked: {number(count)} live objects of {runtime} occupy {size(live)}."
    cause = f"Most by type: {_largest(types)}."
    cause += f" One of the {shorten(name)} objects is reached by {shorten(path, 400)}." if path else ""
    facts: dict[str, object] = {
        "runtime": runtime,
        "objects": count,
        "types": [{"type": one.name, "objects": one.objects, "bytes": one.bytes} for one in _rank(types)[:_TYPES]],
        "path": path or None,
    }
    root = _find_largest_root(graph, live, example is None)
    if root is not None:
        name, totals = root
        cause += f" Most of them, {size(totals.bytes)} in {format_count(totals.blocks, 'object')}, are retained by {shorten(name, 120)}."
        facts.update(root=name, retained_objects=totals.blocks, retained_bytes=totals.bytes)
    commands = [f"runtime --only {runtime.lower()}", f"path {example:#x}" if example is not None else "roots"]
    if root is not None and example is not None:
        commands[0] = f"roots {shell_quoted(root[0])}"
    yield Finding("live-objects", live, title, cause, (), tuple(commands), facts)


def _find_largest_root(graph: ObjectGraph, live: int, is_any: bool) -> Optional[tuple[str, Totals]]:
    """Return the name of the root that retains most, and what it retains; None if it is unknown, or
    if it retains less than half of the bytes of live objects (`live`). `is_any`: True if the
    root may be a single variable; False if it must be several variables that retain the objects
    together."""
    tree = graph.root_tree
    if tree is None:
        return None
    group, most = max(zip(tree.groups, tree.totals), key=lambda pair: pair[1].bytes)
    return (group.name, most) if 2 * most.bytes >= live and (is_any or group.members) else None


def _rank(types: Sequence[Type]) -> list[Type]:
    return sorted(types, key=lambda one: (-one.bytes, one.name))


def _largest(types: Sequence[Type]) -> str:
    """Return the largest types with their objects and bytes, in words."""
    return some([f"{number(one.objects)} {shorten(one.name)} ({size(one.bytes)})" for one in _rank(types)], _TYPES)
