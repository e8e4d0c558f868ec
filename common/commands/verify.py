"""`verify`: the command that checks heaps for corruption, and shows what was written where."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Optional

from findleaks.allocators.base import Allocator, Problem
from findleaks.allocators.in_flight import Inside
from findleaks.audit.block_rows import check_allocator_name
from findleaks.audit.corruption import Damage, Explainer, Neighbour, select_first_problems
from findleaks.audit.in_flight import find_in_flight, format_in_flight
from findleaks.commands import Invocation, command
from findleaks.commands.limits import add_limit, in_text
from findleaks.commands.result import Plain, fields, warnings_of
from findleaks.engine.terms import State
from findleaks.formatting import again, counted, hanging, number, printable, wrapped
from findleaks.formatting import blocks as blocks_of
from findleaks.session import Session
from findleaks.target.ranges import subtract

LIMIT = 10  # problems printed as text without --limit
MOST = 1000  # problems of one allocator that are explained; further ones are only counted
INDENT = 14  # columns before the further lines of a problem, at most
MAX_PARTS = 5  # further places printed for one run of damage, at most


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--allocator", metavar="NAME", help="only allocators of this name")
    add_limit(parser, "problems", LIMIT)


@command(arguments=_arguments)
def verify(session: Session, args: argparse.Namespace) -> Plain:
    """Look for heap corruption: sizes and flags of all blocks, links of all free lists in both
    directions, counters, canaries, whatever the allocator keeps twice. Of each problem: the first
    wrong byte, the blocks around it (the one in front probably overran), and what was written
    there: a text, a pointer to what, a number, a pattern.

    Exit status: 0 sound, 1 corrupt, 2 nothing can be said, or nothing wrong in what could be read
    of a target that is not whole."""
    chosen = _chosen(session, args.allocator)
    found = [_problems(session, allocator) for allocator in chosen]
    while any(problem.corrupt for problems, _ in found for problem in problems) and session.read_again():
        chosen = _chosen(session, args.allocator)
        found = [_problems(session, allocator) for allocator in chosen]
    entries: list[dict[str, Any]] = []
    findings: list[Damage] = []
    explainer = Explainer(session)
    for allocator, (problems, _) in zip(chosen, found):
        corrupt = [problem for problem in problems if problem.corrupt]
        findings += explainer.explain_all(allocator.name, problems[:MOST])
        entries.append(_entry(session, allocator, corrupt, len(problems) - len(corrupt), max(0, len(problems) - MOST)))
    others = [problem for problem in session.directory.problems if not any(problem in one.problems for one in session.directory.allocators)]
    findings += explainer.explain_all("", [problem for problem in others if not args.allocator and not problem.corrupt])
    doubt = [finding for finding in findings if not finding.problem.corrupt]
    whole = not (session.target.truncated or _unread(session) or doubt)
    corrupt_ = any(entry["problems"] for entry in entries)
    checked = any(entry["blocks"] for entry in entries)
    body = {
        "sound": not corrupt_ if checked else None,
        "complete": whole,
        "allocators": entries,
        "problems": [finding.json() for finding in _limited(findings, args.limit)],
        "inside": [{"thread": one.thread, "where": printable(one.where)} for one in session.inside if corrupt_ and one.allocator in chosen],
        "in_flight": find_in_flight(session, [one for _, changed in found for one in changed]),
    }
    status = 1 if corrupt_ else 0 if whole and checked else 2
    shown = _limited(findings, in_text(args.limit, LIMIT))
    reported = {printable(problem.what, 600) for problem in session.directory.problems if problem.corrupt}
    # Warnings about corruption are listed as problems already.
    warnings = [warning for warning in warnings_of(session) if warning not in reported]
    return Plain(session, "verify", body, partial(_text, body, shown), status, warnings)


def _limited(findings: Sequence[Damage], limit: Optional[int]) -> list[Damage]:
    """The first `limit` damaged places (0, None: all), whole, and all that is not corruption."""
    damaged: set[int] = set()
    left_out: set[int] = set()
    for one in findings:
        if one.part_of is None and one.problem.corrupt:
            (left_out if limit and len(damaged) >= limit else damaged).add(one.place)
    left_out -= damaged
    return [one for one in findings if (one.place if one.part_of is None else one.part_of) not in left_out]


def _chosen(session: Session, name: str | None) -> list[Allocator]:
    check_allocator_name(session, name)
    return [allocator for allocator in session.directory.allocators if name in (None, allocator.name)]


def _problems(session: Session, allocator: Allocator) -> tuple[list[Problem], list[tuple[Problem, Inside]]]:
    """Problems of one allocator, each damaged place once; and those excused, as a thread inside it
    was changing the place. `verify` runs first: it may make `allocator.problems` more exact."""
    found: list[Problem] = []
    phase = f"checking the heap of {allocator.name}"
    for problem in allocator.verify(session.directory.blocks):
        session.report_progress(phase, 0.0)
        if problem is not None:
            found.append(problem)
    left, changed = session.directory.sorted_out(found, session.inside)
    return select_first_problems([*allocator.problems, *left]), changed


def _unread(session: Session) -> bool:
    """Whether part of a heap is missing from the target; guard pages of stacks do not count."""
    heaps = session.heap_ranges()
    left = subtract(heaps, session.target.unread)
    return sum(end - start for start, end in left) < sum(end - start for start, end in heaps)


def _count(session: Session, allocator: Allocator) -> int:
    """Number of the allocator's blocks in any state except its own metadata."""
    directory = session.directory
    states = (State.IN_USE, State.CACHED, State.FREE)
    return sum(directory.blocks.totals(state, start, end).blocks for start, end in directory.of(allocator) for state in states)


def _entry(session: Session, allocator: Allocator, corrupt: Sequence[Problem], doubts: int, more: int) -> dict[str, Any]:
    return {
        **fields(allocator, "name", "version", "where", "ordinal"),
        "sound": not corrupt,
        "blocks": _count(session, allocator),
        "checked": dict(allocator.checked),
        "problems": len(corrupt),
        "limits": doubts,
        "not_listed": more,
    }


def _text(body: Mapping[str, Any], findings: Sequence[Damage], width: int, invocation: Invocation) -> Iterator[str]:
    if not body["allocators"]:
        yield "nothing can be said: no allocator was found"
    damage = [finding for finding in findings if finding.problem.corrupt and finding.part_of is None]
    being_changed = format_in_flight(body["in_flight"]) if body["in_flight"].half_changed else ""
    parts: dict[int, list[Damage]] = {}
    for finding in findings:
        if finding.part_of is not None:
            parts.setdefault(finding.part_of, []).append(finding)
    for entry in body["allocators"]:
        yield from wrapped(_verdict(entry, body["complete"]), width)
    for count, finding in enumerate(damage, 1):
        yield ""
        yield from _finding(finding, count, width)
        for part in parts.get(finding.place, [])[:MAX_PARTS]:
            yield from hanging(f"     also: {part.place:#x}  ", printable(part.problem.what, 600), width, INDENT)
    rest = sum(entry["problems"] for entry in body["allocators"]) - sum(1 + len(parts.get(one.place, ())) for one in damage)
    if rest > 0:
        yield ""
        yield f"  … {counted(rest, 'more problem')} (--limit 0 shows all)"
    for one in body["inside"]:
        yield ""
        line = f"thread {one['thread']} was stopped inside {one['where']}: what it was changing may look wrong for that moment. Ask again"
        yield from wrapped(f"  {line}, or let it run on and stop it elsewhere.", width)
    if being_changed:
        yield ""
        yield from wrapped(f"  {being_changed}", width)
    if damage:
        yield ""
        yield from invocation.next(width, *_next(damage[0]))


def _verdict(entry: Mapping[str, Any], whole: bool) -> str:
    name = again(f"{entry['name']} {entry['version']}".strip(), entry["ordinal"]) + (f" ({entry['where']})" if entry["where"] else "")
    checked = ", ".join(f"{number(count)} {what if count != 1 else what[:-1]}" for what, count in entry["checked"].items())
    if entry["problems"]:
        return f"{name}: CORRUPT, {counted(entry['problems'], 'problem')}; checked: {blocks_of(entry['blocks'])}, {checked}"
    if not entry["blocks"]:
        return f"{name}: no blocks"
    sound = "heap sound" if whole else "nothing wrong in what could be read"
    return f"{name}: {sound}: {blocks_of(entry['blocks'])}" + (f", {checked}" if checked else "") + " checked"


def _finding(finding: Damage, count: int, width: int) -> Iterator[str]:
    yield from hanging(f"{count:3}. {finding.place:#x}  ", printable(finding.problem.what, 600), width, INDENT)
    if finding.written is not None:
        yield from hanging("     written: ", finding.written.phrase + _place(finding), width)
    if finding.cause:
        yield from hanging("     cause:   ", finding.cause, width)
    for name, one in (("before", finding.before), ("in", finding.at), ("after", finding.after)):
        if one is not None:
            yield from hanging(f"     {name + ':':8} ", _block(one), width)


def _place(finding: Damage) -> str:
    """Where the written bytes begin and end, relative to the end of the block before."""
    written, before = finding.written, finding.before
    if written is None or before is None or finding.past_end is None:
        return ""
    end = before.end
    if finding.overrun:
        begins = written.start - before.info.address
        inside = f"from byte {number(begins)} of the block before" if begins >= 0 else "from before the block before"
        most = written.end - end
        least = f"{counted(finding.overrun, 'byte')} past its end"
        return f"; {inside} to " + (least if most == finding.overrun else f"at least {least}, {number(most)} at most")
    if finding.past_end == 0:
        return "; right behind the end of the block before"
    return f"; {number(finding.past_end)} bytes behind the end of the block before"


def _block(one: Neighbour) -> str:
    info = one.info
    return f"{info.address:#x}, {info.kind or info.state} {number(info.size)}-byte block" + (
        f": {printable(one.content, 80)}" if one.content else ""
    )


def _next(finding: Damage) -> list[str]:
    """Suggested commands: the block that overran or was written to, and its references."""
    block = finding.at or finding.before or finding.after
    if block is None:
        return [f"whatis {finding.place:#x}"]
    return [f"whatis {block.info.address:#x}", f"refs {block.info.address:#x}"]
