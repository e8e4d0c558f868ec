"""Text of `find`: totals, a table of groups, a summary, and suggested commands."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from findleaks.allocators.base import Allocator
from findleaks.audit.conventions import count_interior_blocks, describe_conventions, describe_structures, summarise_interior_blocks
from findleaks.audit.disguises import describe_disguises as disguise_sentences
from findleaks.audit.in_flight import format_in_flight
from findleaks.audit.leak_commands import select_usable_commands, suggest_about, suggest_track
from findleaks.audit.leak_groups import Leak, describe_leak, is_negligible, unite_leaks
from findleaks.audit.reference_evidence import describe_evidence
from findleaks.audit.unread_memory import find_unread_memory
from findleaks.commands import Invocation
from findleaks.engine.terms import Kind, State
from findleaks.formatting import blocks, format_count, number, printable, size, table, wrap
from findleaks.quoting import shell_quoted
from findleaks.results.amounts import Amount
from findleaks.results.leaks import AllocatorInUse, Leaks
from findleaks.session import Session

SMALL = 0.05
"""If leaks are a smaller fraction of the memory in use than this, they do not explain the size of a
process with a managed runtime."""

HEAD = ("KIND", "BLOCKS", "BYTES", "+ INDIRECT", "WHAT", "EXAMPLE")


def text(session: Session, found: Leaks, leaks: Sequence[Leak], limit: int, width: int, invocation: Invocation) -> Iterator[str]:
    """Yield all lines of the text. `leaks`: the groups of `found`."""
    if not (yield from opening(session, found, width, invocation)):
        return
    rows, rest = _cut(leaks, limit)
    if rows:
        yield from table(HEAD, [_row(leak) for leak in rows], (1, 2, 3), width, cut=4)
        if rest:
            yield f"  … {rest} more group{'' if rest == 1 else 's'} (--limit 0 shows all, --by type or --by size merges)"
        yield ""
    elif found.totals.definite.blocks + found.totals.possible.blocks and not found.suppressed:
        yield "  --kind selects no group"
        yield ""
    yield from closing(session, found, width)
    yield from invocation.next(*select_usable_commands(session, found.next))


def commands(session: Session, leaks: Sequence[Leak], limit: int) -> list[str]:
    """Return suggested commands for the first of these groups."""
    rows, _ = _cut(leaks, limit)
    corrupt = ["verify"] if session.directory.is_corrupt else []
    if not rows:
        return [*corrupt, "verdict"]
    first = rows[0]
    at = f"{first.examples[0]:#x}"
    chosen = f"--type {shell_quoted(first.type)}" if first.runtime else f"--size {first.size_words}"
    found = [f"whatis {at}", suggest_about(first), f"blocks --kind {first.kind.name.lower()} {chosen}"]
    if _are_small(session):
        found.insert(0, "verdict")
    # These commands show which code allocated the blocks, if that was recorded, or which code
    # allocates such blocks from now on.
    return [*corrupt, *found, *(["find --by site"] if session.recorded else []), *suggest_track(session, first)]


def _are_small(session: Session) -> bool:
    """Return whether the leaks are a small part of the memory in use, which includes managed heaps.
    Then something else takes most of the memory. Leaks that the command does not list count,
    too."""
    leaked = sum(session.graph().totals(kind).bytes for kind in (Kind.DEFINITE, Kind.INDIRECT, Kind.POSSIBLE))
    in_use = session.directory.blocks.totals(State.IN_USE).bytes
    managed = sum(part.bytes for runtime in session.runtimes for part in runtime.parts() if not part.inside)
    return leaked < SMALL * max(in_use, managed) if session.runtimes else is_negligible(leaked, in_use)


def opening(session: Session, found: Leaks, width: int, invocation: Invocation) -> Generator[str, None, bool]:
    """Yield the lines before the table. Returns whether a table follows."""
    unread = find_unread_memory(session)
    if unread.is_most:
        yield from wrap(unread.sentences(), width)
    allocators = found_allocators(session.directory.allocators, found.allocators)
    in_use = found.totals.in_use
    seconds = sum(session.seconds.values())
    yield from wrap(f"{blocks(in_use.blocks)} in use, {size(in_use.bytes)} ({allocators}); {seconds:.2f} s", width)
    # If the process's allocator could not be read, "nothing leaked" must not be printed.
    if not in_use.blocks:
        known = any(part.bytes for runtime in session.runtimes for part in runtime.parts())
        yield "no allocator's blocks were found" if known else "leaks cannot be determined: no allocator's blocks were found"
        for note in found.notes:
            yield from wrap(f"  {note}", width)
        yield from invocation.next(*found.next)
        return False
    if not found.trusted:
        yield "NOT TRUSTED: memory is missing or corrupt; blocks reported as leaked may be referenced from the missing memory"
    yield from wrap(format_in_flight(found.in_flight), width)
    for note in found.notes:
        yield from wrap(note, width)
    yield ""
    return True


def closing(session: Session, found: Leaks, width: int) -> Iterator[str]:
    """Yield the lines after the table."""
    yield from _summary(found, _qualifier(session, found.trusted))
    for line in describe_evidence(session):
        yield from ("  " + part for part in wrap(line, width - 2))
    yield from _convention_lines(session, width)


def _cut(leaks: Sequence[Leak], limit: int) -> tuple[Sequence[Leak], int]:
    """Return the rows to print, and the number of rows left out. Groups without a type that exceed
    the limit are merged into one row for each kind."""
    if limit <= 0 or len(leaks) <= limit:
        return leaks, 0
    kept = [leak for leak in leaks if not _plain(leak)]
    merged: dict[Kind, Leak] = {}
    for leak in leaks:
        if _plain(leak):
            merged[leak.kind] = unite_leaks(merged[leak.kind], leak) if leak.kind in merged else leak
    rows = sorted([*kept, *merged.values()], key=lambda leak: leak.weight)
    return rows[:limit], max(0, len(rows) - limit)


def _plain(leak: Leak) -> bool:
    return not leak.type and leak.cycle == 1 and not leak.most_indirect


def _row(leak: Leak) -> tuple[str, ...]:
    indirect = f"{number(leak.indirect_blocks)} / {size(leak.indirect_bytes)}" if leak.indirect_blocks else "–"
    example = hex(leak.examples[0]) if leak.examples else ""
    return leak.kind.name.lower(), number(leak.blocks), size(leak.bytes), indirect, describe_leak(leak), example


def _qualifier(session: Session, trusted: bool) -> str:
    """Return the phrase that limits the statement "nothing is leaked" to the memory that was read;
    "" if this was all memory."""
    if not trusted:
        return " in what could be read"
    unread = find_unread_memory(session)
    if unread.inside is not None and unread.is_inside:
        return f" outside the heap of {unread.inside.what}"
    return f" in the other {size(unread.read)}, which findleaks reads" if unread.is_most else ""


def _summary(found: Leaks, qualifier: str) -> Iterator[str]:
    leaked, possible, mapped = found.leaked, found.totals.possible, found.mappings
    heads = found.totals.definite.blocks - found.garbage_heads
    if mapped.blocks:
        rest = leaked.blocks - mapped.blocks
        others = f" and {size(leaked.bytes - mapped.bytes)} in {blocks(rest)}" if rest else ""
        mappings = format_count(mapped.blocks, "anonymous mapping")
        yield f"  leaked: {size(mapped.bytes)} in {mappings}{others} ({format_count(heads, 'leak')})"
    elif leaked.blocks:
        yield f"  leaked: {size(leaked.bytes)} in {blocks(leaked.blocks)} ({format_count(heads, 'leak')})"
    else:
        yield f"  nothing is leaked{qualifier}"
    doubtful = found.possible_mappings
    if doubtful.blocks:
        mappings = format_count(doubtful.blocks, "anonymous mapping")
        yield f"  possibly lost: {size(doubtful.bytes)} in {mappings} without a plain reference in memory"
        possible = Amount(possible.blocks - doubtful.blocks, possible.bytes - doubtful.bytes)
    if possible.blocks:
        yield f"  possibly lost (reachable only through interior pointers): {size(possible.bytes)} in {blocks(possible.blocks)}"
    for entry in found.suppressed:
        yield f"  of these suppressed by {printable(entry.rule)}: {size(entry.bytes)} in {blocks(entry.blocks)}"


def _convention_lines(session: Session, width: int) -> Iterator[str]:
    """Yield lines about interior and disguised pointers that count as pointers to the start of a
    block."""
    held = summarise_interior_blocks(count_interior_blocks(session))
    if held:
        yield from ("  " + part for part in wrap(held, width - 2))
        for line in (*describe_structures(session.structures.found), *describe_conventions(session.learned, session.target.arch.word)):
            yield from ("    " + part for part in wrap(line, width - 4))
    for line in disguise_sentences(session):
        yield from ("  " + part for part in wrap(line, width - 2))


def found_allocators(allocators: Sequence[Allocator], entries: Sequence[AllocatorInUse]) -> str:
    """Return the allocators as text: "glibc 2.36, 5 arenas; pymalloc also present, 12 blocks".
    `entries`: the blocks in use of each allocator."""
    ordered = sorted(zip(allocators, entries), key=lambda pair: -pair[1].bytes)
    if not ordered:
        return "no allocator found"
    (first, entry), *others = ordered
    arenas = entry.details.get("arenas")
    count = arenas if isinstance(arenas, int) else len(arenas or ())
    words = [_name_place(first, bool(others)) + (f", {format_count(count, 'arena')}" if count else "")]
    for other, entry in others:
        held = f", {blocks(entry.blocks)}" if entry.blocks else ", no block in use"
        words.append(f"{_name_place(other, other.name == first.name)} also present{held}")
    return "; ".join(words)


def _name_place(allocator: Allocator, place: bool) -> str:
    """Return the name, version and file of the allocator. The usual file (libc.so.6 for glibc) is
    omitted unless `place` is set."""
    named = allocator.title
    where, usual = printable(allocator.where, 60), allocator.usual_file
    return f"{named} in {where}" if where and (place or not usual or not where.startswith(usual)) else named
