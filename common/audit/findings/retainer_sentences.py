"""Sentences on what retains reachable memory, for several findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from findleaks.audit.findings.significance import PART
from findleaks.audit.owner import Owner
from findleaks.formatting import number, size, some
from findleaks.session import Session

if TYPE_CHECKING:
    from findleaks.audit.retained_rows import RetainedNode


def describe_field(one: RetainedNode) -> str:
    """Return a sentence on the part of a root that retains most of it."""
    if one.sort != "block":
        return f"{one.name if one.place else 'Content'}: {one.what}."
    name = f"{one.name}, which several fields refer to"
    return f"{name}: {one.what}." if one.what else f"Most of it is retained by {name}."


def describe_callbacks(owner: Owner) -> str:
    """Return a sentence about the number of callbacks in a list."""
    return f"It has {number(owner.length or 0)} {owner.unit}{f', {owner.what}' if owner.what else ''}."


def describe_size(most: int, count: int) -> str:
    """Return a sentence about the size whose blocks have the most bytes, and the number of these
    blocks."""
    if count == 1:
        return f"The largest of these blocks has {size(most)}."
    return f"{number(count)} of these blocks have {number(most)} B, {size(most * count)} in total, more than any other size."


def describe_shared_part(session: Session, least: float = PART) -> tuple[str, Optional[dict[str, object]]]:
    """Return a sentence and the facts about memory that several roots retain together; ("", None)
    if it is less than the fraction `least` of all reachable memory, or if no part of it is much
    larger than the others."""
    from findleaks.audit.top_retainer import find_shared_part

    shared = find_shared_part(session, least)
    if shared is None:
        return "", None
    totals, part = shared.together, shared.row
    more = f" ({part.what})" if part.what and not part.name.startswith(f"{part.what} at ") else ""
    more += f", reached from {some(part.holders)}" if part.holders else ""
    sentence = f" Several roots retain {size(totals.bytes)} together, {size(part.totals.bytes)} of it through {part.name}{more}."
    facts: dict[str, object] = {"bytes": totals.bytes, "part": part.name, "part_bytes": part.totals.bytes, "roots": part.holders}
    if shared.field is not None:
        facts["content"] = describe_field(shared.field)
        sentence += f" {facts['content']}"
    return sentence, facts
