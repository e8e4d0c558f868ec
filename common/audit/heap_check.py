"""Check heaps for corruption, for `verify`, and for findings about crashes and damaged heaps."""

from __future__ import annotations

from findleaks.allocators.base import Allocator, Problem
from findleaks.allocators.in_flight import ThreadInside
from findleaks.audit.corruption import Damage, Explainer, select_first_problems
from findleaks.session import Session

_EXPLAINED = 8  # damaged places that are examined until the cause of one is known

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


def find_damages(session: Session) -> list[Damage]:
    """Return the damaged places of all heaps, as `verify` reports them. Places are explained in
    this order until the cause of one is known, at most _EXPLAINED. The place with a known cause is
    moved to the front. Raises Interrupted."""
    found: list[Damage] = []
    explainer, cause = Explainer(session), -1
    for allocator in session.directory.allocators:
        problems, _ = check_heap(session, allocator)
        for problem in problems:
            if problem.corrupt:
                is_explained = cause < 0 and len(found) < _EXPLAINED
                found.append(explainer.explain(allocator.name, problem) if is_explained else Damage(problem, allocator.name))
                if found[-1].cause and cause < 0:
                    cause = len(found) - 1
    return [found[cause], *found[:cause], *found[cause + 1 :]] if cause > 0 else found
