"""Check an allocator's heap for corruption, for `verify` and for the finding about a crash."""

from __future__ import annotations

from findleaks.allocators.base import Allocator, Problem
from findleaks.allocators.in_flight import ThreadInside
from findleaks.audit.corruption import select_first_problems
from findleaks.session import Session

HeapProblems = tuple[list[Problem], list[tuple[Problem, ThreadInside]]]
"""The problems of one allocator, and the excused problems, each with the thread that excuses it."""


def check_heap(session: Session, allocator: Allocator) -> HeapProblems:
    """Return the problems of one allocator, one for each damaged place, and the excused problems. A
    problem is excused if a thread inside the allocator was changing its place. Raises
    Interrupted."""
    found: list[Problem] = []
    phase = f"checking the heap of {allocator.name}"
    # This call may make the problems more exact, so it comes before `allocator.problems` is read.
    for problem in allocator.verify(session.directory.blocks):
        session.report_progress(phase, 0.0)
        if problem is not None:
            found.append(problem)
    left, changed = session.directory.separate_half_changed(found, session.inside)
    return select_first_problems([*allocator.problems, *left]), changed
