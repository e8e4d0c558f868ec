"""What makes a result less than certain: corruption, totals that do not reconcile, memory of no known allocator."""

from __future__ import annotations

from findleaks.graph.base import State
from findleaks.report.text import number, size
from findleaks.session import Session

OTHERS = ("libjemalloc", "libtcmalloc", "libmimalloc", "libumem", "libhoard", "libsnmalloc", "ld-musl")
"""Modules whose presence says that malloc may not be glibc's."""

UNOWNED = 0.10
"""Part of the private writable memory that may belong to no known allocator before that is worth a warning."""


def doubts(session: Session) -> list[str]:
    """One line each, with the consequence; [] when nothing was found wanting. Only what was computed already is asked."""
    if "directory" not in session.__dict__:
        return []
    found = [f"{problem.what}" for problem in session.directory.problems]
    return found + _unknown(session)


def trusted(session: Session) -> bool:
    """False when memory that could hold references, or part of a heap, is missing: lost blocks may then not be lost."""
    return not (getattr(session.target, "unread", None) or getattr(session.target, "truncated", False) or session.directory.problems)


def _unknown(session: Session) -> list[str]:
    unowned, total, managed = _anonymous(session)
    others = sorted(
        {
            module.path.rsplit("/", 1)[-1]
            for module in session.target.modules()
            if module.path.rsplit("/", 1)[-1].startswith(OTHERS)
        }
    )
    directory = session.directory
    if others:
        used = sum(directory.blocks.totals(State.IN_USE)[:1])
        return [
            f"{', '.join(others)} is loaded, which findleaks cannot read yet: its blocks are not seen, its memory counts as root memory"
            f" ({size(unowned)} of anonymous writable memory belongs to no known allocator; {number(used)} blocks of the known ones)"
        ]
    if not directory.allocators:
        return [f"no allocator found; {size(unowned)} of anonymous writable memory belongs to none of: glibc. `whatis` still works"]
    if total and unowned > UNOWNED * total and unowned > 1 << 20:
        return [
            f"{size(unowned)} of anonymous writable memory ({unowned * 100 // total} %) belongs to no known allocator"
            f"{managed}: it counts as root memory, and leaks inside it are not seen"
        ]
    return []


def _anonymous(session: Session) -> tuple[int, int, str]:
    """(bytes of no known allocator, all bytes, a remark) of private writable memory outside files and stacks."""
    regions = [r for r in session.target.regions() if r.writable and r.readable and not r.name.startswith(("/", "[stack"))]
    total = sum(r.size for r in regions)
    starts = {(r.start, r.end) for r in regions}
    unowned = sum(
        min(end, r_end) - max(start, r_start)
        for r_start, r_end in starts
        for start, end in _within(session, r_start, r_end)
    )
    managed = "".join(
        f" (a managed heap of {name} would be such memory)"
        for module, name in (("libjvm", "the JVM"), ("node", "V8"), ("libruby", "Ruby"))
        if any(m.path.rsplit("/", 1)[-1].startswith(module) for m in session.target.modules())
    )
    return unowned, total, managed


def _within(session: Session, low: int, high: int) -> list[tuple[int, int]]:
    return [(start, end) for start, end in session.roots if start < high and end > low]
