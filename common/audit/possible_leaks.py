"""The finding of `verdict` about possible leaks: blocks that only pointers into their middle
hold."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.audit.conventions import sentences
from findleaks.audit.leak import merge, what
from findleaks.audit.leak_groups import lost
from findleaks.engine.terms import Kind, State
from findleaks.formatting import blocks, number, size
from findleaks.runtimes.base import Finding
from findleaks.session import Session

LEAST, PART = 1 << 20, 0.1
"""The finding needs LEAST possible bytes or more, which are also this fraction of the bytes in
use."""

WORTH = 1 << 20
"""Fewest bytes held by the program's conventions that are mentioned."""


def possible(session: Session) -> Iterator[Finding]:
    """One finding, where much of what is in use may be either lost or held."""
    graph = session.latest
    found = graph.totals(Kind.POSSIBLE)
    in_use = session.directory.blocks.totals(State.IN_USE)
    if found.bytes < LEAST or found.bytes < PART * in_use.bytes:
        return
    part = 100 * found.bytes // max(in_use.bytes, 1)
    title = f"Perhaps lost: {size(found.bytes)} in {blocks(found.blocks)}, {part} % of what is in use, are reached only by way of "
    title += "pointers into the middle of a block: stray numbers, or a custom of the program's that does not show."
    groups = merge([leak for leak in lost(session, graph, None) if leak.kind == Kind.POSSIBLE])
    cause, commands = "", ["find --kind possible"]
    if groups and groups[0].examples:
        top = groups[0]
        cause = f"The largest group: {number(top.blocks)} × {what(top)}, {size(top.bytes)}."
        commands += [f"path {top.examples[0]:#x}", f"refs {top.examples[0]:#x}"]
    facts: dict[str, object] = {"blocks": found.blocks, "in_use_bytes": in_use.bytes, "groups": [leak.json() for leak in groups[:3]]}
    remedies = ("see by `path` whether what holds them is theirs",)
    yield Finding("possible", found.bytes, title, cause, remedies, tuple(commands), facts)


def by_custom(session: Session) -> str:
    """A sentence about what is held by the program's conventions; "" for less than WORTH."""
    learned = session.learned
    if learned.held.bytes < WORTH:
        return ""
    said = "; ".join(sentences(learned, session.target.arch.word))
    return f"Held by interior pointers, which count here: {said}."
