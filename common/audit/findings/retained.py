"""Findings about reachable memory: retained by one root, by managed objects, or by many roots.

At most one of them is reported, as all are about the same blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Optional

from findleaks.audit.accounting import Accounting
from findleaks.audit.findings.figures import BlockFigures, Figures, format_amount
from findleaks.audit.findings.free_memory import to_sentence
from findleaks.audit.findings.significance import PART, denominator, denominator_without_files
from findleaks.audit.managed import RuntimeHoldings
from findleaks.audit.owner import Owner, OwnerSort
from findleaks.engine.terms import Kind, Totals
from findleaks.formatting import blocks, number, size, some
from findleaks.quoting import shell_quoted
from findleaks.results.share_sort import ShareSort
from findleaks.runtimes.base import Finding
from findleaks.session import Session

if TYPE_CHECKING:
    from findleaks.audit.retained_rows import RetainedNode
    from findleaks.audit.top_retainer import TopRetainer

HELD, GROWN = 8 << 20, 0.25
"""Bytes in use, and their fraction of the memory without files, from which on the top retainer is
computed."""

SHOWN = 0.05
"""Least fraction of the memory of managed objects that a variable retains if it is named."""

GROWTH = 0.5
"""Least fraction of `denominator` that is in use for a finding about memory that no single root
retains."""

CONCENTRATED, MUCH = 0.5, 256 << 20
"""Managed objects are reported if one type has this fraction of their bytes, if one variable has
half of this fraction, or if they have MUCH bytes. Otherwise they may be the modules that an
interpreter has loaded: objects of many types that no single variable retains."""


def find_retained_memory(session: Session, accounting: Accounting, figures: BlockFigures, scopes: Sequence[Finding]) -> Iterator[Finding]:
    """Yield at most one finding.

    `scopes`: other findings about reachable blocks. Their blocks are not reported again: a finding
    needs more than four times their bytes."""
    grown = _top_retainer(session, accounting)
    reported = sum(one.bytes for one in scopes)
    found = chain(
        _find_managed_objects(accounting, figures, grown),
        _find_one_root(session, accounting, figures, grown),
        _find_many_roots(session, accounting, figures, grown),
    )
    yield from islice((one for one in found if 4 * reported < one.bytes), 1)


def _top_retainer(session: Session, accounting: Accounting) -> Optional[TopRetainer]:
    """Return the root that retains most. This takes a dominator tree of all reachable blocks, which
    is computed only if a finding is possible."""
    used = sum(store.in_use for store in accounting.stores)
    if used < HELD or used < GROWN * denominator_without_files(accounting):
        return None
    from findleaks.audit.top_retainer import find_top_retainer

    return find_top_retainer(session)


def _is_variable(grown: TopRetainer) -> bool:
    """Whether a single variable of a managed language retains most of the reachable memory."""
    return grown.is_most and grown.owner.sort == OwnerSort.MANAGED and grown.totals.bytes >= HELD


def _find_managed_objects(accounting: Accounting, figures: BlockFigures, grown: Optional[TopRetainer]) -> Iterator[Finding]:
    """Yield findings about managed objects: the native memory that they retain, and the variables
    that retain them, if known."""
    for one in accounting.native:
        if one.bytes < HELD or one.bytes < GROWN * denominator_without_files(accounting) or (grown is not None and _is_variable(grown)):
            continue
        one = _exclude_leaked(one)
        if one.bytes < HELD:
            continue
        if grown is not None and not grown.owner.managed and grown.is_most and grown.totals.bytes >= 2 * one.bytes:
            continue
        named = [(owner, held) for owner, held in (grown.variables if grown is not None else ()) if held.bytes >= SHOWN * one.bytes]
        if not (one.unreported or one.bytes >= MUCH or _is_concentrated(one, named)):
            continue
        title = f"In use, not leaked: {one.sentence()}."
        cause, commands, facts = to_sentence(one.cause()), ["runtime"], one.result().to_json()
        remedies = []
        if named:
            cause += f" Variables that retain it: {some([f'{owner.name} ({size(held.bytes)})' for owner, held in named], 6)}."
            # One variable with most of it explains it; else all holders do.
            first, held = named[0]
            commands.append(f"roots {shell_quoted(first.word)} --depth 4" if held.bytes >= CONCENTRATED * one.bytes else "roots")
            facts["variables"] = [{"name": owner.name, "bytes": held.bytes, "blocks": held.blocks} for owner, held in named]
        if one.unreported:
            call = f" by {one.runtime.report_call}" if one.runtime.report_call else ""
            remedies.append(f"report the native memory of these objects to {one.name}{call}, so that it collects in time")
        resident = _resident_upper_bound(one, accounting, figures)
        yield Finding("held-by-managed-objects", one.bytes, title, cause, tuple(remedies), tuple(commands), facts, resident)


def _is_concentrated(one: RuntimeHoldings, named: Sequence[tuple[Owner, Totals]]) -> bool:
    parts = [*(row.bytes for row in one.types), *(2 * held.bytes for _, held in named if held.bytes >= PART * one.bytes)]
    return max(parts, default=0) >= CONCENTRATED * one.bytes


def _resident_upper_bound(one: RuntimeHoldings, accounting: Accounting, figures: BlockFigures) -> Optional[int]:
    """Return an upper bound on the resident bytes of the objects and the memory that they retain:
    the resident bytes of all reachable blocks and of the runtime's heap."""
    reachable = figures.of(Kind.REACHABLE).resident
    if reachable is None:
        return None
    heaps = sum(share.bytes for share in accounting.shares if share.sort == ShareSort.RUNTIME and share.of.startswith(f"{one.name} "))
    return min(one.bytes, reachable + heaps)


def _exclude_leaked(one: RuntimeHoldings) -> RuntimeHoldings:
    """Return the holdings without leaked objects, if these are known."""
    rows = []
    for row in one.types:
        lost = row.leaked or Totals(0, 0)
        kind = row.type._replace(objects=max(row.type.objects - lost.blocks, 0), bytes=max(row.type.bytes - lost.bytes, 0))
        rows.append(row._replace(type=kind))
    return one._replace(types=sorted(rows, key=lambda row: (-row.bytes, -row.type.objects, row.type.name)))


def _find_one_root(session: Session, accounting: Accounting, figures: BlockFigures, found: Optional[TopRetainer]) -> Iterator[Finding]:
    """Yield a finding if a single root retains most of the reachable memory.

    Only the developers can decide whether that is wrong, so the finding names the root."""
    if found is None or not found.is_most or found.totals.bytes < HELD:
        return
    retained = figures.of_blocks(found.members(), Kind.REACHABLE)
    if retained.bytes < HELD:
        return
    facts: dict[str, object] = {"root": found.owner.name, "where": found.owner.where or None, "blocks": retained.blocks}
    part = 100 * retained.bytes // max(figures.of(Kind.REACHABLE).bytes, 1)
    if found.owner.managed:
        yield _retained_by_managed_heap(found, retained, part, facts)
        return
    title = f"In use, not leaked: {found.owner.label} alone retains {retained.amount} in {blocks(retained.blocks)}, "
    title += f"{part} % of the reachable memory."
    cause = ""
    if found.field is not None and (found.field.what or found.field.sort == "block"):
        cause = _describe_field(found.field)
        facts.update({"field": found.field.name, "what": found.field.what, "length": found.length or None})
    variable = _is_variable(found)
    if variable:
        its = [one for one in accounting.native if one.bytes]
        cause = " ".join([cause, *(to_sentence(one.cause()) for one in its)]).strip()
        facts["runtimes"] = [one.result().to_json() for one in its]
    word = found.owner.word
    commands = (f"roots {shell_quoted(word)} --depth 4", "runtime" if variable else "roots") if word else ("roots",)
    yield Finding("held", retained.bytes, title, cause, (), commands, facts, retained.resident)


def _describe_field(one: RetainedNode) -> str:
    """Return a sentence on the part of a root that retains most of it."""
    if one.sort != "block":
        return f"{one.name if one.place else 'Content'}: {one.what}."
    return f"{one.name}, which several fields refer to{f': {one.what}' if one.what else ', retains most of it'}."


def _retained_by_managed_heap(found: TopRetainer, retained: Figures, part: int, facts: dict[str, object]) -> Finding:
    title = f"In use, not leaked: {found.owner.label}, a managed heap, retains {retained.amount} of native memory in "
    title += f"{blocks(retained.blocks)}, {part} % of the reachable memory."
    most, count = found.most_common_size()
    cause = f"{number(count)} of these blocks have {number(most)} B, {size(most * count)} in total, more than any other size."
    facts.update({"size": most, "blocks_of_size": count})
    commands = ("runtime", f"roots {shell_quoted(found.owner.word)} --depth 4", f"blocks --size {most} --limit 10")
    return Finding("held-from-managed-heap", retained.bytes, title, cause, (), commands, facts, retained.resident)


def _find_many_roots(session: Session, accounting: Accounting, figures: BlockFigures, found: Optional[TopRetainer]) -> Iterator[Finding]:
    """Yield a finding about reachable memory that no single root retains, with the size that
    has the
    most bytes. It may be one structure with references from several roots, or many structures."""
    used = sum(store.in_use for store in accounting.stores)
    reached = figures.of(Kind.REACHABLE) if found is not None and not found.is_most else Figures(0, 0, 0)
    # If managed objects retain much memory, their types explain it better.
    managed = any(one.bytes >= HELD for one in accounting.native)
    if (
        managed
        or reached.bytes < HELD
        or used < GROWTH * denominator(accounting)
        or (reached.bytes if reached.resident is None else reached.resident) < GROWTH * used
    ):
        return
    most, count = figures.most_common_size(Kind.REACHABLE)
    amount = format_amount(reached.bytes, reached.resident)
    title = f"In use, not leaked: {amount} in {blocks(reached.blocks)} are reachable, and no single root retains half of it."
    cause = f"{number(count)} of these blocks have {number(most)} B, {size(most * count)} in total, more than any other size."
    facts: dict[str, object] = {"blocks": reached.blocks, "size": most, "blocks_of_size": count}
    from findleaks.audit.top_retainer import find_shared_part

    shared = find_shared_part(session)
    if shared is not None:
        totals, part = shared
        more = f": {part.what}" if part.what else ""
        more += f", reached from {some(part.holders)}" if part.holders else ""
        cause += f" Several roots retain {size(totals.bytes)} together, {size(part.totals.bytes)} of it below {part.name}{more}."
        facts["shared"] = {"bytes": totals.bytes, "part": part.name, "part_bytes": part.totals.bytes, "roots": part.holders}
    commands = ("roots", f"blocks --size {most} --kind reachable --limit 10")
    yield Finding("held-by-many", reached.bytes, title, cause, (), commands, facts, reached.resident)
