"""Report a heap that is corrupt, although the process did not crash yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from findleaks.audit.corruption import Damage
from findleaks.audit.heap_check import find_damages
from findleaks.formatting import format_count, shorten
from findleaks.runtimes.finding import Finding
from findleaks.session import Session


def find_damaged_heap(session: Session) -> Iterator[Finding]:
    """Yield one finding if a heap is corrupt."""
    damages = find_damages(session)
    if damages:
        first, count = damages[0], len(damages)
        yield Finding("damaged-heap", 0, describe_damage(first, count), "", (), ("verify",), damage_facts(first, count), 0)


def describe_damage(damage: Optional[Damage], count: int) -> str:
    """Return sentences about the first of `count` damaged places; "" if there is none."""
    if damage is None:
        return ""
    more = f" ({format_count(count, 'damaged place')})" if count > 1 else ""
    # A problem's first sentence describes the damage; further sentences describe how reading
    # continued.
    what = shorten(damage.problem.what, 600).split(". ")[0]
    written = f" It contains {damage.written.phrase}." if damage.written is not None else ""
    cause = f" Probable cause: {damage.cause}." if damage.cause else ""
    return f"The heap is corrupt{more}: {what}.{written}{cause}"


def damage_facts(damage: Optional[Damage], count: int) -> dict[str, object]:
    """Return the same as facts of a finding."""
    return {"damaged_places": count, "damage": damage.result().to_json() if damage is not None else None}
