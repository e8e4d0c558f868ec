"""`find`: what leaked, grouped; the main command."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from findleaks.audit.doubts import trusted
from findleaks.commands import command
from findleaks.commands.find_text import text
from findleaks.commands.result import Plain
from findleaks.describe import HINT
from findleaks.errors import UnreadableMemory, UsageError
from findleaks.graph.base import Graph, Group, Heuristic, Kind, State
from findleaks.leaks import Leak, merge
from findleaks.report.text import printable
from findleaks.session import Session
from findleaks.suppressions import Suppressions, load
from findleaks.words import size_word

HEURISTICS = {
    "length64": Heuristic.LENGTH64,
    "newarray": Heuristic.NEWARRAY,
    "multipleinheritance": Heuristic.MULTIPLE_INHERITANCE,
    "stdstring": Heuristic.STDSTRING,
}
KINDS = ("definite", "possible")
HINTED = 200
"""Groups whose example is read for a type by array cookie or a readable string."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--by", choices=("type", "size", "kind"), help="merge all sizes of a type, types of a size, or all of a kind")
    parser.add_argument("--kind", default="definite,possible", help="groups to show, comma-separated (definite,possible)")
    parser.add_argument("--limit", type=int, default=20, help="groups to print as text (20; 0: all); JSON has all")
    parser.add_argument("--suppressions", metavar="FILE", help="leave out what its lines match: leak:PATTERN, type:GLOB, size:A-B")
    parser.add_argument("--heuristics", default="none", help=f"interior pointers that hold a block: {', '.join(HEURISTICS)}, all")
    parser.add_argument("--fail-over", metavar="BYTES", help="exit status 1 if more than this is lost for sure, e.g. 0 or 64k")


@command(arguments=_arguments)
def find(session: Session, args: argparse.Namespace) -> Plain:
    """Find lost memory: blocks in use that no chain of pointers from a root (registers, live stacks, global and other writable
    memory) reaches. definite: nothing points to it, or only its own cycle does. indirect: hangs from a definite one, and is counted
    with it. possible: reached only through pointers into the middle of a block."""
    kinds = _kinds(args.kind)
    heuristics = _heuristics(args.heuristics)
    fail_over = size_word(args.fail_over) if args.fail_over else None
    suppressions = load(args.suppressions) if args.suppressions else None
    graph = session.graph(heuristics)
    leaks = _leaks(session, graph, suppressions)
    lost = sum(leak.bytes + leak.indirect_bytes for leak in leaks if leak.kind == Kind.DEFINITE)
    shown = merge([leak for leak in leaks if leak.kind in kinds], args.by)
    body: dict[str, object] = {
        "trusted": trusted(session),
        "allocators": _allocators(session),
        "totals": _totals(session, graph),
        "groups": [leak.json() for leak in shown],
        "suppressed": [
            {"rule": str(rule), "groups": use.groups, "blocks": use.blocks, "bytes": use.bytes} for rule, use in suppressions.uses.items()
        ]
        if suppressions
        else [],
        "unused_suppressions": [str(rule) for rule in suppressions.unused()] if suppressions else [],
    }
    status = 2 if not session.directory.blocks.totals(State.IN_USE).blocks else int(fail_over is not None and lost > fail_over)
    return Plain(session, "find", body, lambda width, door: text(session, body, shown, args.limit, width, door), status)


def _leaks(session: Session, graph: Graph, suppressions: Suppressions | None) -> list[Leak]:
    """All groups as leaks, less those suppressed, which `suppressions` counts."""
    leaks: list[Leak] = []
    pieces = session.pieces(session.heap_ranges(), "reading the lost")
    for count, group in enumerate(graph.groups(pieces, session.types.ranges())):
        leak = _leak(session, group, count < HINTED or suppressions is not None)
        rule = suppressions.match(leak.type, leak.size, leak.hint, _module(session, group.type_word)) if suppressions else None
        if suppressions is None or rule is None:
            leaks.append(leak)
        else:
            suppressions.add(rule, leak.blocks + leak.indirect_blocks, leak.bytes + leak.indirect_bytes)
    return leaks


def _leak(session: Session, group: Group, look: bool) -> Leak:
    name = session.types.name(group.type_word) if group.type_word else ""
    hint = ""
    if look and not name and group.examples:
        # The first word says nothing here: what the words after it tell must be the same of all examples to count for the group.
        names = {session.types.of_block(example, group.size) for example in group.examples}
        name = names.pop() if len(names) == 1 else ""
        if not name:
            try:
                hint = session.types.hint(session.target.read(group.examples[0], min(group.size, HINT)))
            except UnreadableMemory:
                hint = ""
    return Leak(
        kind=group.kind,
        type=printable(name),
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


def _module(session: Session, word: int) -> str:
    for module in session.target.modules():
        if module.start <= word < module.end:
            return module.path
    return ""


def _allocators(session: Session) -> list[dict[str, object]]:
    """Per allocator found: name, version, and the blocks in use of its heaps."""
    made: list[dict[str, object]] = []
    directory = session.directory
    for allocator in directory.allocators:
        ranges = [(owned.heap.start, owned.heap.end) for owned in directory.heaps if owned.allocator is allocator]
        totals = [directory.blocks.totals(State.IN_USE, start, end) for start, end in ranges]
        made.append(
            {
                "name": allocator.name,
                "version": allocator.version,
                "where": allocator.where,
                "blocks": sum(t.blocks for t in totals),
                "bytes": sum(t.bytes for t in totals),
                **allocator.summary(),
            }
        )
    return made


def _totals(session: Session, graph: Graph) -> dict[str, dict[str, int]]:
    in_use = session.directory.blocks.totals(State.IN_USE)
    made = {"in_use": {"blocks": in_use.blocks, "bytes": in_use.bytes}}
    for name in ("reachable", "possible", "definite", "indirect"):
        blocks, size = graph.totals(Kind[name.upper()])
        made[name] = {"blocks": blocks, "bytes": size}
    return made


def _kinds(words: str) -> set[Kind]:
    return {Kind[_one_of(word, KINDS, "kind").upper()] for word in words.split(",")}


def _heuristics(words: str) -> Heuristic:
    made = Heuristic.NONE
    for word in words.split(","):
        if _one_of(word, (*HEURISTICS, "all", "none"), "heuristic") == "all":
            for one in HEURISTICS.values():
                made |= one
        elif word != "none":
            made |= HEURISTICS[word]
    return made


def _one_of(word: str, known: Sequence[str] | Iterable[str], what: str) -> str:
    names = list(known)
    if word not in names:
        raise UsageError(f"no {what} {word!r}; there are: {', '.join(names)}")
    return word
