"""The `find` command, which is the main command: list leaked blocks in groups."""

from __future__ import annotations

import argparse
from functools import partial

from findleaks.answers.leaks import SITE, find_leaks
from findleaks.answers.warnings import warnings_of
from findleaks.arg_types import check_choice, parse_size
from findleaks.audit.unread_memory import find_unread_memory
from findleaks.commands import command
from findleaks.commands.find_text import commands, text
from findleaks.commands.limits import add_limit, first, in_text
from findleaks.commands.options import add_debug_types, add_fail_over, add_frames
from findleaks.commands.output import BLOCKS, STACKS, add_output, output_format
from findleaks.commands.result import Plain, answer_status, blocks_status
from findleaks.engine.terms import Heuristic, Kind
from findleaks.errors import UsageError
from findleaks.session import Session
from findleaks.value_classes import replace

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
FILES = (*STACKS, "heap", *BLOCKS)  # Formats of files.
GROUPS = 20  # Maximum number of groups printed as text without --limit.
SITE_FRAMES = 12  # Maximum number of frames of a site's stack printed as text without --frames.


def _arguments(parser: argparse.ArgumentParser) -> None:
    words = "merge groups of one type, size or kind; site: group by the call stack that allocated the blocks, if recorded"
    parser.add_argument("--by", choices=("type", "size", "kind", "site"), help=words)
    add_frames(parser, SITE_FRAMES)
    parser.add_argument("--kind", default="definite,possible", help="groups to show, comma-separated (definite,possible)")
    add_limit(parser, "groups", GROUPS)
    parser.add_argument(
        "--suppressions", metavar="FILE", help="suppress groups that a line of FILE matches: leak:PATTERN, type:GLOB, size:A-B"
    )
    words = (
        f"interior pointers that count as references: auto (the program's conventions; the default), none, all, or {', '.join(HEURISTICS)}"
    )
    parser.add_argument("--heuristics", default="auto", metavar="auto|none|LIST", help=words)
    add_output(parser, "all these groups, or their blocks,", FILES)
    add_fail_over(parser, "the process")
    what = "list the blocks whose type would give the most other blocks a type, if you pass it with --type"
    parser.add_argument("--untyped", action="store_true", help=what)
    add_debug_types(parser)


@command(arguments=_arguments)
def find(session: Session, args: argparse.Namespace) -> Plain:
    """List leaked blocks in groups. A leaked block is in use, but no chain of references from a
    root reaches it. Roots are registers, live stacks, global variables and other writable memory.
    The kinds are memcheck's.

    No block refers to a definite block, except the blocks of its own cycle, if any. An indirect
    block is reachable only from definite blocks, and is counted with them. A possible block is
    reachable only through pointers into the middle of a block.

    Some programs and libraries put a header at the start of their blocks, and keep only pointers to
    the data after the header. If nearly all interior pointers have the same offset, they count as
    pointers to the start (--heuristics auto)."""
    if args.untyped:
        from findleaks.commands.find_untyped import list_untyped  # few calls have this option

        return list_untyped(session, args)
    form = output_format(args, FILES)
    if args.suppressions and (form in BLOCKS or (form and args.by == SITE)):
        raise UsageError("--suppressions applies to groups, but this file contains blocks; omit one of the two")
    if form == "heap" and args.by != SITE:
        raise UsageError("a heap profile needs the call stacks that allocated the blocks: add --by site")
    if "reachable" in args.kind.split(","):
        raise UsageError("reachable blocks are not leaked: `blocks --by type --kind reachable` sums them by type")
    kinds = {Kind[check_choice(word, KINDS, "kind").upper()] for word in args.kind.split(",")}
    session = session.with_heuristics(_heuristics(args.heuristics))
    fail_over = parse_size(args.fail_over) if args.fail_over else None
    suppressions = None
    if args.suppressions:
        # Few calls have the option, so this is imported here.
        from findleaks.audit.suppressions import load_suppressions

        suppressions = load_suppressions(args.suppressions)
    found, groups = find_leaks(session, kinds, args.by, args.heuristics, suppressions, args.limit or 0)
    shown = in_text(args.limit, GROUPS)
    if args.by == SITE:
        # Few processes have recorded stacks, so this is imported here.
        from findleaks.commands.find_sites import next_of_sites, site_text

        found = replace(found, next=next_of_sites(session, found, groups, shown))
        say = partial(site_text, session, found, groups, shown, args.frames)
    else:
        found = replace(found, next=commands(session, groups, shown))
        say = partial(text, session, found, groups, shown)
    status = _status(session, found.trusted, fail_over, max(0, found.definite - found.garbage.bytes))
    body = replace(found, groups=first(found.groups, args.limit))
    result = Plain(session, "find", body, say, status, warnings_of(session, find_unread_memory(session).is_most))
    if form:
        from findleaks.commands.find_file import write

        result.written = write(session, args.output, form, kinds, None if args.by == SITE else groups)
    return result


def _status(session: Session, sure: bool, fail_over: int | None, lost_bytes: int) -> int:
    """Return the exit status. 1: more bytes leaked than --fail-over allows. 2: no blocks were
    found, or memory is missing or corrupt and not more leaked than allowed. 0 otherwise. Without
    --fail-over, the status is 0 for a process whose only heap is that of its runtime."""
    if fail_over is None:
        return answer_status(session)
    if blocks_status(session):
        return blocks_status(session)
    return 1 if lost_bytes > fail_over else 0 if sure else 2


def _heuristics(words: str) -> Heuristic:
    made = Heuristic.NONE
    for word in words.split(","):
        made |= HEURISTIC_WORDS[check_choice(word, HEURISTIC_WORDS, "heuristic")]
    return made
