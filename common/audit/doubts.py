"""What makes a result less than certain: corruption, totals that do not reconcile, memory of no known allocator."""

from __future__ import annotations

from findleaks.graph.roots import subtract
from findleaks.report.text import size
from findleaks.session import Session
from findleaks.target.base import Range

OTHERS = ("libjemalloc", "libtcmalloc", "libmimalloc", "libumem", "libhoard", "libsnmalloc", "ld-musl")
"""Modules whose presence says that malloc may not be glibc's."""

MANAGED = (("libjvm", "the JVM"), ("node", "V8"), ("libruby", "Ruby"), ("libpython", "CPython"), ("python", "CPython"))

UNOWNED = 0.10
"""Part of the private writable memory that may belong to no known allocator before that is worth a warning."""


def doubts(session: Session) -> list[str]:
    """One line each, with the consequence; [] when nothing was found wanting."""
    return [problem.what for problem in session.directory.problems] + _unknown(session)


def trusted(session: Session) -> bool:
    """False when memory that could hold references, or part of a heap, or every thread, is missing: lost blocks may then not be lost."""
    target = session.target
    return bool(target.threads()) and not (target.unread or target.truncated or session.directory.problems)


def _unknown(session: Session) -> list[str]:
    """Allocators that cannot be read yet, and anonymous memory that no known one owns."""
    directory = session.directory
    unowned, total = _anonymous(session)
    others = sorted(name for name in _module_names(session) if name.startswith(OTHERS))
    if not directory.allocators:
        loaded = f" ({', '.join(others)} is loaded)" if others else ""
        memory = f"{size(unowned)} of anonymous writable memory belongs to none of: glibc"
        return [f"no allocator found{loaded}: nothing can be said of leaks; {memory}. `whatis` still works"]
    if others:
        return [
            (
                f"{', '.join(others)} is loaded, which findleaks cannot read yet: its blocks are not seen, and its memory counts as root "
                f"memory ({size(unowned)} of anonymous writable memory belongs to no known allocator)"
            )
        ]
    if unowned > max(UNOWNED * total, 1 << 20):
        share = f"{size(unowned)} of anonymous writable memory ({unowned * 100 // total} %) belongs to no known allocator"
        return [f"{share}{_managed(session)}: it counts as root memory, and leaks inside it are not seen"]
    return []


def _anonymous(session: Session) -> tuple[int, int]:
    """Bytes of private writable memory outside files and stacks: those of no known allocator, and all."""
    regions = [r for r in session.target.regions() if r.writable and r.readable and not r.name.startswith(("/", "[stack"))]
    anonymous = [Range(r.start, r.end) for r in regions]
    owned = subtract(anonymous, session.roots)
    total = sum(end - start for start, end in anonymous)
    return total - sum(end - start for start, end in owned), total


def _managed(session: Session) -> str:
    names = list(_module_names(session))
    runtimes = list(dict.fromkeys(runtime for module, runtime in MANAGED if any(name.startswith(module) for name in names)))
    return f" (the managed heap of {' and '.join(runtimes)} would be such memory)" if runtimes else ""


def _module_names(session: Session) -> list[str]:
    return [module.path.rsplit("/", 1)[-1] for module in session.target.modules()]
