"""`find`, the main command: leaked blocks in groups."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from findleaks.allocators.base import Allocator
from findleaks.arg_types import count_word, one_of, size_word
from findleaks.audit.conventions import conventions_json
from findleaks.audit.diagnostics import notes, trusted
from findleaks.audit.in_flight import in_flight_json
from findleaks.audit.kernel_held import kernel_json, kernel_notes
from findleaks.audit.leak_groups import lost, merge
from findleaks.audit.reference_evidence import evidence_json, garbage_totals, is_garbage
from findleaks.audit.site_groups import lost_by_site
from findleaks.audit.suppressions import load
from findleaks.audit.unread_memory import unread_memory
from findleaks.commands import command
from findleaks.commands.find_text import commands, text
from findleaks.commands.limits import add_limit, first, in_text
from findleaks.commands.output import BLOCKS, STACKS, add_output, output_format
from findleaks.commands.result import Plain, answer_status, blocks_status, fields, warnings_of
from findleaks.engine.contract import Graph
from findleaks.engine.terms import Heuristic, Kind, State, Totals
from findleaks.errors import UsageError
from findleaks.session import Session

HEURISTICS = {
    "length64": Heuristic.LENGTH64,
    "newarray": Heuristic.NEWARRAY,
    "multipleinheritance": Heuristic.MULTIPLE_INHERITANCE,
    "stdstring": Heuristic.STDSTRING,
}
HEURISTIC_WORDS = {
    **HEURISTICS,
    "auto": Heuristic.AUTO,
    "all": Heuristic.LENGTH64 | Heuristic.NEWARRAY | Heuristic.MULTIPLE_INHERITANCE | Heuristic.STDSTRING,
    "none": Heuristic.NONE,
}
KINDS = ("definite", "possible")
FILES = (*STACKS, "heap", *BLOCKS)  # formats of files
GROUPS = 20  # groups printed as text without --limit
SITE_FRAMES = 12  # frames of a site's stack printed as text without --frames


def _arguments(parser: argparse.ArgumentParser) -> None:
    words = "merge all sizes of a type, types of a size, or all of a kind; site: by the stack that allocated them, where recorded"
    parser.add_argument("--by", choices=("type", "size", "kind", "site"), help=words)
    parser.add_argument("--frames", type=count_word, default=SITE_FRAMES, help=f"frames of a site's stack as text ({SITE_FRAMES}; 0: all)")
    parser.add_argument("--kind", default="definite,possible", help="groups to show, comma-separated (definite,possible)")
    add_limit(parser, "groups", GROUPS)
    parser.add_argument("--suppressions", metavar="FILE", help="leave out what its lines match: leak:PATTERN, type:GLOB, size:A-B")
    words = f"interior pointers that hold a block: auto (the program's own customs; the default), none, all, or {', '.join(HEURISTICS)}"
    parser.add_argument("--heuristics", default="auto", metavar="auto|none|LIST", help=words)
    add_output(parser, "all these groups, or their blocks,", FILES)
    parser.add_argument("--fail-over", metavar="BYTES", help="exit status 1 if more than this is lost for sure, e.g. 0 or 64k")


@command(arguments=_arguments)
def find(session: Session, args: argparse.Namespace) -> Plain:
    """Find lost memory: blocks in use that no chain of pointers from a root (registers, live
    stacks, global and other writable memory) reaches. definite: nothing points to it, or only its
    own cycle does. indirect: hangs from a definite one, and is counted with it. possible: reached
    only through pointers into the middle of a block. Where nearly all such pointers go to one
    offset, behind a header that the program or a library puts in front of its blocks, they count as
    pointers to the start: --heuristics auto."""
    form = output_format(args, FILES)
    if args.suppressions and (form in BLOCKS or (form and args.by == "site")):
        raise UsageError("--suppressions leaves out groups, and such a file has blocks: give one of the two")
    if form == "heap" and args.by != "site":
        raise UsageError("a heap profile has the stacks that allocated the blocks: add --by site")
    kinds = {Kind[one_of(word, KINDS, "kind").upper()] for word in args.kind.split(",")}
    heuristics = _heuristics(args.heuristics)
    fail_over = size_word(args.fail_over) if args.fail_over else None
    suppressions = load(args.suppressions) if args.suppressions else None
    graph = session.graph(heuristics)
    leaks = lost_by_site(session, graph, suppressions) if args.by == "site" else lost(session, graph, suppressions)
    lost_bytes = sum(leak.bytes + leak.indirect_bytes for leak in leaks if leak.kind == Kind.DEFINITE)
    lost_bytes = max(0, lost_bytes - garbage_totals(session)[0].bytes)
    wanted = [leak for leak in leaks if leak.kind in kinds]
    shown = wanted if args.by == "site" else merge(wanted, args.by)
    body: dict[str, object] = {
        "trusted": trusted(session),
        "allocators": [_allocator(session, allocator) for allocator in session.directory.allocators],
        "totals": _totals(session, graph),
        "heuristics": conventions_json(session, args.heuristics),
        "reference_counts": evidence_json(session),
        "in_flight": in_flight_json(session),
        "unread": unread_memory(session).json(),
        "notes": [*notes(session), *kernel_notes(session)],
        "kernel": kernel_json(session),
        "groups": [{**leak.json(), "garbage": is_garbage(session, leak)} for leak in first(shown, args.limit)],
        "next": commands(session, shown, in_text(args.limit, GROUPS)),
        "suppressed": [],
        "unused_suppressions": [],
    }
    if suppressions:
        body["suppressed"] = [{"rule": str(rule), **fields(use, "groups", "blocks", "bytes")} for rule, use in suppressions.uses.items()]
        body["unused_suppressions"] = [str(rule) for rule in suppressions.unused()]
    status = _status(session, bool(body["trusted"]), fail_over, lost_bytes)
    say = partial(text, session, body, shown, in_text(args.limit, GROUPS))
    if args.by == "site":
        # few processes have recorded stacks
        from findleaks.commands.find_sites import add_sites, site_text

        add_sites(session, body, first(shown, args.limit), in_text(args.limit, GROUPS))
        say = partial(site_text, session, body, shown, in_text(args.limit, GROUPS), args.frames)
    result = Plain(session, "find", body, say, status, warnings_of(session, unread_memory(session).is_most))
    if form:
        from findleaks.commands.find_file import write

        result.written = write(session, args.output, form, kinds, None if args.by == "site" else shown)
    return result


def _status(session: Session, sure: bool, fail_over: int | None, lost_bytes: int) -> int:
    """Exit status: 1 if more leaked than --fail-over allows; 2 if no blocks were found, or if the
    limit is kept but missing or corrupt memory makes that inconclusive; else 0. Without a limit, a
    process whose only heap is its runtime's ends with 0."""
    if fail_over is None:
        return answer_status(session)
    if blocks_status(session):
        return blocks_status(session)
    return 1 if lost_bytes > fail_over else 0 if sure else 2


def _allocator(session: Session, allocator: Allocator) -> dict[str, Any]:
    directory = session.directory
    totals = [directory.blocks.totals(State.IN_USE, start, end) for start, end in directory.of(allocator)]
    held = Totals(sum(t.blocks for t in totals), sum(t.bytes for t in totals))
    return {**fields(allocator, "name", "version", "where"), **fields(held, "blocks", "bytes"), **allocator.summary()}


def _totals(session: Session, graph: Graph) -> dict[str, dict[str, int]]:
    kinds = (Kind.REACHABLE, Kind.POSSIBLE, Kind.DEFINITE, Kind.INDIRECT)
    totals = {"in_use": session.directory.blocks.totals(State.IN_USE), **{kind.name.lower(): graph.totals(kind) for kind in kinds}}
    return {name: fields(one, "blocks", "bytes") for name, one in totals.items()}


def _heuristics(words: str) -> Heuristic:
    made = Heuristic.NONE
    for word in words.split(","):
        made |= HEURISTIC_WORDS[one_of(word, HEURISTIC_WORDS, "heuristic")]
    return made
