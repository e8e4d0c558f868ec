"""The finding about a class of which there are very many live objects, such as a logger for each
request, or whose objects together retain most of the heap.

These objects are often spread over several variables, or the heap is too small for the other
findings. Two variables may also refer to each object: no variable alone retains an open ZipFile,
because a table of the JDK refers to it, too. Collections, strings, numbers, dates and similar parts
of larger objects are not named."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from findleaks.engine.terms import Totals
from findleaks.formatting import format_count, number, shorten, size, some
from findleaks.runtimes.base import Type
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.retained_findings import LEAST_LIVE, RETAINED_SHARE, make_retained_finding
from findleaks.value_classes import replace

if TYPE_CHECKING:
    from findleaks.runtimes.jvm.object_graph import JavaGraph

_MANY = 10_000  # objects
_LEAST, _SHARE = 1 << 20, 0.2  # bytes that they retain, and the part of all live objects
_TYPES = 3  # other types that the finding names
_PARTS = re.compile(
    r"java\.(lang|math|time|security)\.|java\.util\.([A-Z]|concurrent\.)|java\.sql\.(Date|Time|Timestamp)$|jdk\.|sun\."
    r"|kotlin\.|scala\.|clojure\.lang\.|groovy\.lang\."
    r"|com\.google\.common\.(cache|collect)\.|com\.github\.benmanes\.caffeine\.|it\.unimi\.dsi\.fastutil\.|.*\[\]$"
)
_JDK = re.compile(r"(java|javax|jdk|sun|com\.sun)\.")
# A program may have other classes with the name Logger or Category.
_LOGGER = re.compile(
    r"java\.util\.logging\.Logger|org\.apache\.(log4j\.(Logger|Category)|logging\.log4j\..*Logger)"
    r"|ch\.qos\.logback\.classic\.Logger|org\.jboss\.logmanager\.Logger"
)
_OF_LOGGERS = (
    "one logger for each class, not for each object or request: the registry of loggers keeps the names, even of collected loggers"
)


def find_numerous_objects(graph: JavaGraph, types: Sequence[Type]) -> Iterator[Finding]:
    """Yield at most one finding. `types`: the live objects by type. A class of the program is
    preferred to a class of the JDK."""
    live = sum(one.bytes for one in types)
    most = max(LEAST_LIVE, int(RETAINED_SHARE * live))  # for classes with fewer objects
    named = {one.name: one for one in types if not _PARTS.match(one.name)}
    many = {name: one for name, one in named.items() if one.objects >= _MANY}
    tree = graph.dominators if many or live >= most else None
    if tree is None:
        return
    labels, names = graph.labels()
    rows = {name: at for at, name in enumerate(dict.fromkeys(names))}
    by_row = tree.by_label(labels, array("I", (rows[name] for name in names)))
    retained: dict[str, Totals] = {name: by_row[rows[name]] for name in named if name in rows}
    ranked = sorted(retained, key=lambda name: (bool(_JDK.match(name)), -retained[name].bytes, name))
    least = max(_LEAST, int(_SHARE * live))
    best = next((name for name in ranked if name in many and retained[name].bytes >= least), None)
    best = best or next((name for name in ranked if retained[name].bytes >= most), None)
    address = graph.example(best) if best is not None else None
    if best is None or address is None:
        return
    index, totals = graph.blocks.find(address), retained[best]
    count = format_count(named[best].objects, "object")
    title = f"In use, not leaked: {count} of {shorten(best)} retain{'s' if named[best].objects == 1 else ''} {size(totals.bytes)}, "
    title += f"{100 * totals.bytes // live} % of the bytes of all live objects of the JVM."
    it = "It" if named[best].objects == 1 else "One of them"
    cause = f"{it} is reached by {shorten(graph.describe_example(address), 400)}."
    others = sorted((name for name in many if name in retained and name != best), key=lambda name: (-retained[name].bytes, name))
    listed = [f"{number(many[name].objects)} {shorten(name)}" for name in others]
    cause += f" Other classes with many objects: {some(listed, _TYPES)}." if listed else ""
    holder, path = graph.describe_holder(index), graph.describe_path(index)
    made = make_retained_finding("JVM", address, best, holder, path, totals, title, cause)
    remedies = list(graph.path_remedies(f"{holder} {path}"))
    if any(_LOGGER.match(name) for name in (best, *others)):
        remedies.insert(0, _OF_LOGGERS)
    yield replace(made, remedies=tuple(remedies), commands=(f"path {address:#x}", "roots"))
