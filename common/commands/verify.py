"""The `verify` command: check heaps for corruption, and print what was written where."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial

from findleaks.answers.verify import first_places, verify_heaps
from findleaks.answers.warnings import warnings_of
from findleaks.audit.in_flight import format_in_flight
from findleaks.commands import Invocation, command
from findleaks.commands.limits import add_limit, in_text
from findleaks.commands.options import add_allocator
from findleaks.commands.result import Plain
from findleaks.formatting import again, format_count, hanging, number, printable, wrap
from findleaks.formatting import blocks as blocks_of
from findleaks.results.verify import Damage, HeapCheck, Neighbour, Verification
from findleaks.session import Session
from findleaks.value_classes import replace

LIMIT = 10  # Maximum number of problems printed as text without --limit.
INDENT = 14  # Maximum number of columns before the continuation lines of a problem.
MAX_PARTS = 5  # Maximum number of further places printed for one run of damaged bytes.


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_allocator(parser)
    add_limit(parser, "problems", LIMIT)


@command(arguments=_arguments)
def verify(session: Session, args: argparse.Namespace) -> Plain:
    """Check the heaps for corruption: sizes and flags of all blocks, links of all free lists in
    both directions, counters, canaries, and all redundant data of the allocator. For each problem,
    `verify` prints the first wrong byte, the blocks around it (often the program wrote past the end
    of the preceding block), and what was written there: a text, a pointer and its target, a number,
    a pattern.

    Exit status: 0 sound, 1 corrupt, 2 unknown: nothing could be checked, or the target is
    incomplete and the part that could be read is sound."""
    found = verify_heaps(session, args.allocator)
    shown = first_places(found.problems, in_text(args.limit, LIMIT))
    reported = {printable(problem.what, 600) for problem in session.directory.problems if problem.corrupt}
    # Warnings about corruption are omitted, because the problems are listed.
    warnings = [warning for warning in warnings_of(session) if warning not in reported]
    body = replace(found, problems=first_places(found.problems, args.limit))
    return Plain(session, "verify", body, partial(_text, found, shown), _status(found), warnings)


def _status(found: Verification) -> int:
    if any(one.problems for one in found.allocators):
        return 1
    return 0 if found.complete and any(one.blocks for one in found.allocators) else 2


def _text(found: Verification, problems: Sequence[Damage], width: int, invocation: Invocation) -> Iterator[str]:
    if not found.allocators:
        yield "the heap cannot be checked: no allocator was found"
    damage = [one for one in problems if one.corrupt and one.part_of is None]
    parts: dict[int, list[Damage]] = {}
    for one in problems:
        if one.part_of is not None:
            parts.setdefault(one.part_of, []).append(one)
    for check in found.allocators:
        yield from wrap(_verdict(check, found.complete), width)
    for count, one in enumerate(damage, 1):
        yield ""
        yield from _finding(one, count, width)
        for part in parts.get(one.address, [])[:MAX_PARTS]:
            yield from hanging(f"     also: {part.address:#x}  ", part.what, width, INDENT)
    rest = sum(check.problems for check in found.allocators) - sum(1 + len(parts.get(one.address, ())) for one in damage)
    if rest > 0:
        yield ""
        yield f"  … {format_count(rest, 'more problem')} (--limit 0 shows all)"
    yield from _threads_inside(found, width)
    if damage:
        yield ""
        yield from invocation.next(*_next(damage[0]))


def _threads_inside(found: Verification, width: int) -> Iterator[str]:
    """Yield lines about places that may look wrong because a thread was changing them."""
    for one in found.inside:
        yield ""
        line = f"thread {one.thread} was stopped inside {one.where}: data that it was changing may look wrong. Check again"
        yield from wrap(f"  {line}, or resume it and stop it elsewhere.", width)
    if found.in_flight.half_changed:
        yield ""
        yield from wrap(f"  {format_in_flight(found.in_flight)}", width)


def _verdict(check: HeapCheck, whole: bool) -> str:
    name = again(f"{check.name} {check.version}".strip(), check.ordinal) + (f" ({check.where})" if check.where else "")
    checked = ", ".join(f"{number(count)} {what if count != 1 else what[:-1]}" for what, count in check.checked.items())
    if check.problems:
        return f"{name}: CORRUPT, {format_count(check.problems, 'problem')}; checked: {blocks_of(check.blocks)}, {checked}"
    if not check.blocks:
        return f"{name}: no blocks"
    sound = "heap sound" if whole else "nothing wrong in what could be read"
    return f"{name}: {sound}: {blocks_of(check.blocks)}" + (f", {checked}" if checked else "") + " checked"


def _finding(one: Damage, count: int, width: int) -> Iterator[str]:
    yield from hanging(f"{count:3}. {one.address:#x}  ", one.what, width, INDENT)
    if one.written is not None:
        yield from hanging("     written: ", one.written.description + _place(one), width)
    if one.cause:
        yield from hanging("     cause:   ", one.cause, width)
    around = one.neighbours
    for name, block in (("before", around.before), ("in", around.at), ("after", around.after)):
        if block is not None:
            yield from hanging(f"     {name + ':':8} ", _block(block), width)


def _place(one: Damage) -> str:
    """Return where the written bytes begin and end, relative to the end of the preceding block."""
    written, before = one.written, one.neighbours.before
    if written is None or before is None or one.past_end is None:
        return ""
    if one.overrun:
        begins = written.address - before.address
        inside = f"from byte {number(begins)} of the preceding block" if begins >= 0 else "from an address before the preceding block"
        most = written.address + written.bytes - before.end
        end = format_count(one.overrun, "byte") if most == one.overrun else f"between {number(one.overrun)} and {number(most)} bytes"
        return f"; {inside} to {end} past its end"
    if one.past_end == 0:
        return "; directly after the end of the preceding block"
    return f"; {number(one.past_end)} bytes after the end of the preceding block"


def _block(one: Neighbour) -> str:
    return f"{one.address:#x}, {one.kind or one.state} {number(one.size)}-byte block" + (
        f": {printable(one.content, 80)}" if one.content else ""
    )


def _next(one: Damage) -> list[str]:
    """Return suggested commands: about the block that overran or was overwritten, and about its
    references."""
    block = one.neighbours.at or one.neighbours.before or one.neighbours.after
    if block is None:
        return [f"whatis {one.address:#x}"]
    return [f"whatis {block.address:#x}", f"refs {block.address:#x}"]
