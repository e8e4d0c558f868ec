"""Lost blocks grouped by their content, without those that the user suppresses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from findleaks.audit.leak import EXAMPLES, Leak
from findleaks.audit.suppressions import Rule, Suppressions
from findleaks.engine.contract import Graph
from findleaks.engine.terms import Group, Kind, Totals
from findleaks.errors import UnreadableMemory
from findleaks.formatting import printable
from findleaks.session import Session
from findleaks.target.ranges import holding, inside

HINT = 64
"""Bytes of a block that are searched for a readable string."""

MANY = 10_000
"""Most lost blocks without a type in their first word that are examined one by one: about 0.1 s. Of
more, only an example of each group is examined."""

_LEADING = re.compile(b"[" + bytes([Kind.POSSIBLE, Kind.DEFINITE]) + b"]")


def lost(session: Session, graph: Graph, suppressions: Suppressions | None) -> list[Leak]:
    """Groups of DEFINITE and POSSIBLE blocks, unordered. Suppressed ones are left out, and counted
    by `suppressions`.

    The engine groups blocks by their first word where that is a type. Others (arrays with a cookie,
    strings, plain structures) are examined one by one: a rule must not suppress a block because
    another of the same size matches.
    """
    groups = graph.groups(session.pieces(session.heap_ranges(), "reading the lost"), session.types.ranges())
    typed = [_typed(session, group) for group in groups if group.type_word]
    plain = [group for group in groups if not group.type_word]
    each = suppressions is not None or sum(group.blocks for group in plain) <= MANY
    leaks = _by_content(session, graph, suppressions is not None) if each else [_by_example(session, group) for group in plain]
    if suppressions is None:
        return [leak for leak, _ in typed] + list(leaks)
    return list(_unsuppressed([*typed, *((leak, "") for leak in leaks)], suppressions))


def _unsuppressed(leaks: Iterable[tuple[Leak, str]], suppressions: Suppressions) -> Iterator[Leak]:
    """The leaks that no rule covers, from pairs of a leak and the file of its type."""
    for leak, module in leaks:
        rule: Rule | None = suppressions.match(leak.type, leak.size, leak.hint, module)
        if rule is None:
            yield leak
        else:
            suppressions.add(rule, leak.blocks + leak.indirect_blocks, leak.bytes + leak.indirect_bytes)


def _typed(session: Session, group: Group) -> tuple[Leak, str]:
    module = holding(session.target.modules(), group.type_word)
    return _leak(group, printable(session.types.name(group.type_word)), ""), module.path if module is not None else ""


def _by_example(session: Session, group: Group) -> Leak:
    """A group of many blocks: the content of its first block is a hint, not the type of all."""
    start = group.examples[0]
    return _leak(group, "", printable(session.types.of_block(start, group.size)) or hint_of(session, start, group.size))


def _by_content(session: Session, graph: Graph, hints: bool) -> Iterator[Leak]:
    """DEFINITE and POSSIBLE blocks whose first word is no type, each examined. They are grouped by
    kind, type, size, cycle, and whether they have indirect blocks.

    With `hints` they are also grouped by hint; else a group has the hint of its first block.
    """
    blocks, types = session.directory.blocks, session.types
    ranges = types.ranges()
    kinds = graph.kinds()
    members: dict[tuple[int, str, str, int, int, bool], list[tuple[int, Totals]]] = {}
    for count, match in enumerate(_LEADING.finditer(kinds)):
        if count % 1024 == 0:
            session.report_progress("looking at the lost", match.start() / len(kinds))
        index = match.start()
        start, size = blocks.address(index), blocks.size(index)
        if inside(ranges, _first_word(session, start, size)):
            continue
        name = printable(types.of_block(start, size))
        hint = hint_of(session, start, size) if hints and not name else ""
        leads = kinds[index] == Kind.DEFINITE
        hanging = graph.indirect_totals(index) if leads else Totals(0, 0)
        key = (kinds[index], name, hint, size, graph.cycle(index) if hanging.blocks else 1, hanging.blocks > 0)
        members.setdefault(key, []).append((start, hanging))
    for (kind, name, hint, size, cycle, _), alike in members.items():
        counts = [totals.blocks for _, totals in alike]
        first = alike[0][0]
        group = Group(
            kind=Kind(kind),
            type_word=0,
            size=size,
            cycle=cycle,
            blocks=len(alike),
            bytes=size * len(alike),
            indirect_blocks=sum(counts),
            indirect_bytes=sum(totals.bytes for _, totals in alike),
            least_indirect=min(counts),
            most_indirect=max(counts),
            examples=tuple(start for start, _ in alike[:EXAMPLES]),
        )
        yield _leak(group, name, hint if hints or name else hint_of(session, first, size))


def _first_word(session: Session, start: int, size: int) -> int:
    """The first word as the engine reads it: 0 where a block has no whole, aligned word."""
    word = session.target.arch.word
    if start % word or size < word:
        return 0
    try:
        return session.target.word(start)
    except UnreadableMemory:
        return 0


def hint_of(session: Session, start: int, size: int) -> str:
    """A readable string at the beginning of a block, or ""."""
    try:
        return session.types.hint(session.target.read(start, min(size, HINT)))
    except UnreadableMemory:
        return ""


def _leak(group: Group, name: str, hint: str) -> Leak:
    return Leak(
        kind=group.kind,
        type=name,
        hint=hint,
        smallest=group.size,
        largest=group.size,
        cycle=group.cycle,
        blocks=group.blocks,
        bytes=group.bytes,
        indirect_blocks=group.indirect_blocks,
        indirect_bytes=group.indirect_bytes,
        least_indirect=group.least_indirect,
        most_indirect=group.most_indirect,
        examples=group.examples,
    )
