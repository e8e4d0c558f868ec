"""Take a snapshot: compute the results that `diff` compares. The arguments are the same for each
snapshot."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Set
from typing import Any, NamedTuple, Optional

from findleaks.answers.caches import describe_caches
from findleaks.answers.leaks import find_leaks
from findleaks.answers.roots import all_roots
from findleaks.answers.runtimes import describe_runtimes
from findleaks.answers.scopes import describe_scopes
from findleaks.answers.stacks import group_stacks
from findleaks.answers.verdict import account_for_memory, memory_shares, memory_totals
from findleaks.answers.warnings import warnings_of
from findleaks.audit.accounting import account_memory
from findleaks.audit.mappings import list_mappings
from findleaks.audit.residency import identify_process, read_residency
from findleaks.audit.typed_blocks import list_typed_blocks
from findleaks.audit.unread_memory import find_unread_memory
from findleaks.errors import TargetError
from findleaks.history.figures import COMMANDS, descriptor_figures, figures, mapping_figures, type_figures
from findleaks.history.sample import take_sample
from findleaks.history.snapshot import Clock, Identity, Snapshot
from findleaks.results.record import Record
from findleaks.results.written import document
from findleaks.session import Session
from findleaks.target.base import Target
from findleaks.target.process import LocalProcess
from findleaks.target.processes import start_time
from findleaks.target.program import identify_program

DEPTH = 3  # levels of fields below each root


def take_snapshot(session: Session, name: str, sections: Optional[Set[str]] = None) -> Snapshot:
    """Return a snapshot of a session. Raises the same errors as the functions that compute the
    results.

    `sections`: only figures of these sections are computed. Findings, which are not figures, are
    then left out, and so are types unless a section needs them."""
    target = session.target
    if target.lacks:
        raise TargetError(target.lacks)
    clock, rows = _clock(target), list_mappings(session)
    answers: dict[str, Any] = {}
    for word in COMMANDS:
        answers[word] = _accounting(session) if word == "verdict" and sections is not None else _json(session, word)
    allocators = tuple(dict.fromkeys(f"{one.name} {one.version}".strip() for one in session.directory.allocators))
    # A debugger may be connected to a process on another machine.
    started = start_time(target.pid) if isinstance(target, LocalProcess) else target.start_time
    process = Identity(*identify_program(target), target.pid, started, allocators, identify_process(target))
    warnings = tuple(dict.fromkeys(text for answer in answers.values() for text in answer["warnings"]))
    types = list_typed_blocks(session) if sections is None or "type" in sections else ()
    found = [*mapping_figures(rows), *figures(answers), *type_figures(types), *descriptor_figures(target.kernel_state())]
    return Snapshot(name, clock, process, found, answers, warnings, take_sample(session))


class _Answer(NamedTuple):
    """A result with its warnings, as the command with the same name prints them."""

    result: Record
    warnings: Iterable[str]


def _json(session: Session, word: str) -> dict[str, Any]:
    """Return the output of a command with --json and all rows. With a limit, a figure could be
    missing from one snapshot and listed in another."""
    found, warnings = _ANSWERS[word](session)
    return document(word, found, warnings)


def _verdict(session: Session) -> _Answer:
    found = account_for_memory(session)
    warnings = warnings_of(session, find_unread_memory(session).is_most)
    return _Answer(found.result, [*warnings, *found.accounting.warnings])


def _find(session: Session) -> _Answer:
    found = find_leaks(session).result
    return _Answer(found, warnings_of(session, find_unread_memory(session).is_most))


def _caches(session: Session) -> _Answer:
    found = describe_caches(session)
    return _Answer(found.result, [*warnings_of(session), *(problem for holding in found.holdings for problem in holding.problems)])


def _roots(session: Session) -> _Answer:
    found, _ = all_roots(session, DEPTH)
    return _Answer(found, warnings_of(session))


def _runtime(session: Session) -> _Answer:
    found = describe_runtimes(session)
    problems = [problem.what for one in found.holdings for problem in one.runtime.problems]
    return _Answer(found.result, [*warnings_of(session), *problems])


def _scopes(session: Session) -> _Answer:
    return _Answer(*describe_scopes(session))


def _stacks(session: Session) -> _Answer:
    found = group_stacks(session)
    return _Answer(found.result, found.warnings)


_ANSWERS: dict[str, Callable[[Session], _Answer]] = {
    "verdict": _verdict,
    "find": _find,
    "caches": _caches,
    "roots": _roots,
    "runtime": _runtime,
    "scopes": _scopes,
    "stacks": _stacks,
}
"""For each command of history.figures.COMMANDS, the function that computes its result."""


def _accounting(session: Session) -> dict[str, object]:
    """Return the figures in the JSON of `verdict`."""
    accounting = account_memory(session, read_residency(session))
    resident, mapped = memory_totals(accounting)
    shares = [share.to_json() for share in memory_shares(accounting)]
    return {"resident": resident, "mapped": mapped, "shares": shares, "warnings": accounting.warnings}


def _clock(target: Target) -> Clock:
    """Return the current time. For a core, return the time at which its file was last changed."""
    if target.live:
        taken_at = target.taken_at or time.time()
        try:
            with open("/proc/sys/kernel/random/boot_id") as file:
                return Clock(taken_at, time.clock_gettime(time.CLOCK_BOOTTIME), file.read().strip())
        except OSError:
            return Clock(taken_at)
    if target.taken_at is not None:
        return Clock(target.taken_at)
    try:
        return Clock(os.stat(target.path).st_mtime)
    except OSError:
        return Clock()
