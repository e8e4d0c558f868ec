"""Answer the question "are the heaps intact?"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from findleaks.allocators.base import Allocator, Problem
from findleaks.audit.block_rows import check_allocator_name
from findleaks.audit.corruption import Explainer
from findleaks.audit.heap_check import HeapProblems, check_heap
from findleaks.audit.in_flight import find_in_flight
from findleaks.engine.terms import State
from findleaks.results.verify import Damage, HeapCheck, ThreadInside, Verification
from findleaks.session import Session
from findleaks.target.ranges import subtract

# Maximum number of problems of one allocator that are explained; further ones are only counted
MOST = 1000


def verify_heaps(session: Session, allocator: Optional[str] = None) -> Verification:
    """Check the heaps of all allocators, or of those with this name. A live process is read again
    if data looks wrong that a thread may have been changing."""
    check_allocator_name(session, allocator)
    chosen, found = _check(session, allocator)
    while any(problem.corrupt for problems, _ in found for problem in problems) and session.read_again():
        chosen, found = _check(session, allocator)
    explainer = Explainer(session)
    checks, damages = [], []
    for one, (problems, _) in zip(chosen, found):
        damages += explainer.explain_all(one.name, problems[:MOST])
        checks.append(_heap_check(session, one, problems))
    others = [problem for problem in session.directory.problems if not any(problem in one.problems for one in session.directory.allocators)]
    damages += explainer.explain_all("", [problem for problem in others if not allocator and not problem.corrupt])
    corrupt = any(one.problems for one in checks)
    return Verification(
        sound=not corrupt if any(one.blocks for one in checks) else None,
        complete=not (session.target.truncated or _is_heap_missing(session) or any(not one.problem.corrupt for one in damages)),
        allocators=checks,
        problems=[one.result() for one in damages],
        inside=[ThreadInside(one.thread, one.where) for one in session.inside if corrupt and one.allocator in chosen],
        in_flight=find_in_flight(session, [one for _, changed in found for one in changed]),
    )


def first_places(problems: Sequence[Damage], limit: Optional[int]) -> list[Damage]:
    """Return the first `limit` damaged places (0, None: all), each with its parts, and all problems
    that are not corruption."""
    damaged: set[int] = set()
    left_out: set[int] = set()
    for one in problems:
        if one.part_of is None and one.corrupt:
            (left_out if limit and len(damaged) >= limit else damaged).add(one.address)
    left_out -= damaged
    return [one for one in problems if (one.address if one.part_of is None else one.part_of) not in left_out]


def _check(session: Session, name: Optional[str]) -> tuple[list[Allocator], list[HeapProblems]]:
    chosen = [allocator for allocator in session.directory.allocators if name in (None, allocator.name)]
    return chosen, [check_heap(session, allocator) for allocator in chosen]


def _is_heap_missing(session: Session) -> bool:
    """Whether the target lacks a part of a heap. Guard pages of stacks are not counted."""
    heaps = session.heap_ranges()
    left = subtract(heaps, session.target.unread)
    return sum(end - start for start, end in left) < sum(end - start for start, end in heaps)


def _heap_check(session: Session, allocator: Allocator, problems: Sequence[Problem]) -> HeapCheck:
    corrupt = sum(problem.corrupt for problem in problems)
    return HeapCheck(
        allocator.name,
        allocator.version,
        allocator.where,
        allocator.ordinal,
        sound=not corrupt,
        blocks=_count(session, allocator),
        checked=dict(allocator.checked),
        problems=corrupt,
        limits=len(problems) - corrupt,
        not_listed=max(0, len(problems) - MOST),
    )


def _count(session: Session, allocator: Allocator) -> int:
    """Return the number of the allocator's blocks in any state. Blocks with allocator metadata do
    not count."""
    directory = session.directory
    return sum(one.blocks for state, one in zip(State, directory.totals(allocator)) if state != State.METADATA)
