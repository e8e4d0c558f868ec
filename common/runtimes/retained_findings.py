"""Findings of `verdict` about the live objects in a runtime's own heap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.engine.dominators import root_node
from findleaks.engine.terms import Totals
from findleaks.formatting import format_amount, format_count, number, shorten, size, some
from findleaks.quoting import shell_quoted
from findleaks.runtimes.absent_memory import find_resident_bytes
from findleaks.runtimes.base import Runtime, Type
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.joint_members import JointRetainer
from findleaks.runtimes.object_graph import ObjectGraph

RETAINED = "retained-objects"
"""The kind of a finding about the object or the variables that retain most live objects."""
BY_TYPE = "Most live objects by type:"
"""The beginning of the last sentence of such a finding, if nothing is known about its objects."""

LEAST_LIVE = 16 << 20
"""Bytes of live objects. If there are fewer, no retainer of them is reported."""

RETAINED_SHARE = 0.5
"""The fraction of the live objects' bytes that an object or a root must retain to be reported."""

_LARGE = 4 << 20  # bytes of live objects whose types are named
_TYPES = 4  # types that a finding names
_COMPARED = 8  # objects that are compared by resident memory
_LEAST_SHARE = 0.125  # least part of the live objects' bytes for a type whose path is shown


def find_path_remedies(runtime: Runtime, path: str) -> tuple[str, ...]:
    """Return remedies for objects of a runtime. `path`: the text that describes how a root reaches
    them."""
    graph = runtime.object_graph()
    return tuple(graph.path_remedies(path)) if graph is not None else ()


def make_retained_finding(
    runtime: str, address: int, type_: str, root: str, path: str, retained: Totals, title: str, cause: str, resident: Optional[int] = None
) -> Finding:
    """Return the finding about the retainer of most live objects: the object at `address`, or the
    variables with the name `root`, which hold this object. `retained`: what they retain.
    `resident`: the resident bytes of this; None if nearly all of it is resident, or if this is
    unknown."""
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
    return Finding(RETAINED, retained.bytes, title, cause, (), commands, facts, resident)


def find_retainer(
    graph: ObjectGraph,
    runtime: str,
    types: Sequence[Type],
    known: Sequence[Finding] = (),
    least: int = LEAST_LIVE,
    share: float = RETAINED_SHARE,
) -> Iterator[Finding]:
    """Yield a finding if one object retains most of the live objects. `types`: the live objects by
    type. `known`: other findings about disjoint parts of these objects. `least`: fewer bytes of
    live objects are not reported. `share`: the fraction of them that the object must retain."""
    live = sum(one.bytes for one in types)
    if live < least:
        return
    # Memory that was never used is not resident, so it does not make a process large. It counts
    # only if less than `least` is resident.
    resident_live = live - sum(graph.absent.values())
    by_residency = bool(graph.absent) and resident_live >= least
    live = resident_live if by_residency else live
    explained = sum(one.weight if by_residency else one.bytes for one in known)
    joint = graph.find_joint_retainer()
    if joint is not None and joint.retained.bytes >= share * live and joint.retained.bytes > 2 * explained:
        yield _describe_joint(graph, joint, runtime, types)
        return
    rows = [(one, retained, graph.resident_of(one.block, retained)) for one, retained in graph.retainers(_COMPARED if by_residency else 1)]
    weights = [resident if by_residency and resident is not None else retained.bytes for _, retained, resident in rows]
    for weight, (one, retained, resident) in sorted(zip(weights, rows), key=lambda row: -row[0])[:1]:
        if weight < share * live or 2 * explained >= weight:
            return
        root, path = graph.describe_holder(one.block), graph.describe_path(one.block)
        title = f"In use, not leaked: {shorten(root, 120)} retains {format_amount(retained.bytes, resident)} in "
        title += f"{format_count(retained.blocks, 'object')} of {runtime}."
        content = graph.describe_content(one.block)
        cause = f"{content}{' ' if content else ''}The path to the object that retains them: {shorten(path, 400)}."
        cause += "" if content else f" {BY_TYPE} {_largest(types)}."
        yield make_retained_finding(runtime, one.address, one.type, root, path, retained, title, cause, resident)


def _describe_joint(graph: ObjectGraph, joint: JointRetainer, runtime: str, types: Sequence[Type]) -> Finding:
    resident = graph.resident_of(joint.holder, joint.retained)
    title = f"In use, not leaked: {shorten(joint.name, 120)} together retain {format_amount(joint.retained.bytes, resident)} in "
    title += f"{format_count(joint.retained.blocks, 'object')} of {runtime}."
    content = graph.describe_content(joint.holder).replace("It retains", "They retain", 1)
    cause = content or f"{BY_TYPE} {_largest(types)}."
    address, type_, path = graph.extent(joint.holder)[0], graph.type_of(joint.holder), graph.describe_path(joint.holder)
    return make_retained_finding(runtime, address, type_, joint.name, path, joint.retained, title, cause, resident)


def find_large_types(graph: ObjectGraph, runtime: str, types: Sequence[Type], known: Sequence[Finding] = ()) -> Iterator[Finding]:
    """Yield a finding with the largest types and the path to one of their objects, if the live
    objects are large. If the types of most objects are unknown, the finding names the root that
    retains the most. For the arguments, see `find_retainer`."""
    live = sum(one.bytes for one in types)
    resident = live - sum(graph.absent.values()) if graph.absent else None
    explained = 2 * sum(one.bytes for one in known) >= live or (resident is not None and 2 * sum(one.weight for one in known) >= resident)
    if live < _LARGE or explained:
        return
    count = sum(one.objects for one in types)
    # Objects without a known type have no example.
    large = [one for one in _rank(types)[:_TYPES] if one.bytes >= _LEAST_SHARE * live]
    examples = ((one.name, graph.example(one.name)) for one in large)
    name, example = next((one for one in examples if one[1] is not None), ("", None))
    path = graph.describe_example(example) if example is not None else ""
    title = f"In use, not leaked: {number(count)} live objects of {runtime} occupy {format_amount(live, resident)}."
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
        name, totals, present = root
        amount = f"{format_amount(totals.bytes, present)} in {format_count(totals.blocks, 'object')}"
        cause += f" Most of them, {amount}, are retained by {shorten(name, 120)}."
        facts.update(root=name, retained_objects=totals.blocks, retained_bytes=totals.bytes)
    commands = [f"runtime --only {runtime.lower()}", f"path {example:#x}" if example is not None else "roots"]
    if root is not None and example is not None:
        commands[0] = f"roots {shell_quoted(root[0])}"
    yield Finding("live-objects", live, title, cause, (), tuple(commands), facts, resident)


def _find_largest_root(graph: ObjectGraph, live: int, is_any: bool) -> Optional[tuple[str, Totals, Optional[int]]]:
    """Return the name of the root that retains most, what it retains, and the resident bytes of it
    (None: nearly all). Return None if the root is unknown, or if it retains less than half of the
    bytes of live objects (`live`). `is_any`: True if the root may be a single variable; False if it
    must be several variables that retain the objects together."""
    tree = graph.root_tree
    if tree is None:
        return None
    at = max(range(len(tree.groups)), key=lambda at: tree.totals[at].bytes)
    group, most = tree.groups[at], tree.totals[at]
    if 2 * most.bytes < live or not (is_any or group.members):
        return None
    return group.name, most, find_resident_bytes(tree.tree, root_node(at), most.bytes, graph.absent)


def _rank(types: Sequence[Type]) -> list[Type]:
    return sorted(types, key=lambda one: (-one.bytes, one.name))


def _largest(types: Sequence[Type]) -> str:
    """Return the largest types with their objects and bytes, in words."""
    return some([f"{number(one.objects)} {shorten(one.name)} ({size(one.bytes)})" for one in _rank(types)], _TYPES)
