"""Takes a snapshot: asks for the answers that are compared, with the same options each time."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import closing
from typing import Any, Optional, cast

from findleaks.answers.caches import describe_caches
from findleaks.answers.leaks import find_leaks
from findleaks.answers.roots import all_roots
from findleaks.answers.runtimes import describe_runtimes
from findleaks.answers.verdict import account_for_memory, memory_shares, memory_totals
from findleaks.audit.accounting import account_memory
from findleaks.audit.mappings import list_mappings
from findleaks.audit.residency import identify_process, read_residency
from findleaks.audit.typed_blocks import list_typed_blocks
from findleaks.audit.unread_memory import find_unread_memory
from findleaks.commands import Result, load, parser
from findleaks.commands.result import warnings_of
from findleaks.errors import TargetError, UsageError
from findleaks.formatting import printable
from findleaks.history.figures import COMMANDS, figures, mapping_figures, type_figures
from findleaks.history.sample import taken
from findleaks.history.snapshot import Clock, Identity, Snapshot
from findleaks.results.record import SCHEMA, Record
from findleaks.session import Session
from findleaks.target.base import Target
from findleaks.target.modules import DELETED
from findleaks.target.notes import AT_ENTRY, AT_PHDR, AT_RANDOM
from findleaks.target.process import LocalProcess
from findleaks.target.processes import start_time
from findleaks.target.ptrace import ended, is_exiting

DEPTH = 3  # levels of fields below each root


def take(session: Session, name: str, sections: Optional[Set[str]] = None) -> Snapshot:
    """The snapshot of a session. Only for figures of some sections, if given: verdict's findings,
    which are no figures, and types, if not wanted, are not looked for then. Raises what the
    commands raise."""
    target = session.target
    if target.lacks:
        raise TargetError(target.lacks)
    clock, rows = _clock(target), list_mappings(session)
    answers: dict[str, Any] = {}
    for word in COMMANDS:
        answers[word] = _accounting(session) if word == "verdict" and sections is not None else _answer(session, word)
    allocators = tuple(dict.fromkeys(f"{one.name} {one.version}".strip() for one in session.directory.allocators))
    # A process behind a debugger's stub may be on another machine.
    started = start_time(target.pid) if isinstance(target, LocalProcess) else target.start_time
    process = Identity(*program_of(target), target.pid, started, allocators, identify_process(target))
    warnings = tuple(dict.fromkeys(text for answer in answers.values() for text in answer["warnings"]))
    types = list_typed_blocks(session) if sections is None or "type" in sections else ()
    found = [*mapping_figures(rows), *figures(answers), *type_figures(types)]
    return Snapshot(name, clock, process, found, answers, warnings, taken(session))


def name_of(target: Target) -> str:
    """The program's name: that of its file, unless it was called by one that is no part of it."""
    name = os.path.basename(target.exe_path).removesuffix(DELETED)
    return name if name.startswith(target.called) else target.called


def program_of(target: Target) -> tuple[str, str]:
    """The program's name and its build-id; "" where one is unknown."""
    path = target.exe_path.removesuffix(DELETED)
    build_id = next((module.build_id for module in target.modules() if module.path.removesuffix(DELETED) == path), "")
    return name_of(target), build_id


def _answer(session: Session, word: str) -> Any:
    """A command's JSON, with all rows: a figure must not be cut off at one moment and be there at
    another."""
    if word in _ANSWERS:
        found, warnings = _ANSWERS[word](session)
        unread_reported = word in ("find", "verdict") and find_unread_memory(session).is_most
        every = [*warnings_of(session, unread_reported), *(printable(warning, 600) for warning in warnings)]
        return {"schema": SCHEMA, "command": word, **found.to_json(), "warnings": every}
    command = load(word)
    (body,) = cast(Result, command.run(session, parser(command, "findleaks").parse_args(["--json"]))).json()
    return body


_Answer = tuple[Record, Iterable[str]]
"""A result, and further warnings."""


def _verdict(session: Session) -> _Answer:
    found = account_for_memory(session)
    return found.result, found.accounting.warnings


def _caches(session: Session) -> _Answer:
    found = describe_caches(session)
    return found.result, [problem for holding in found.holdings for problem in holding.problems]


def _runtime(session: Session) -> _Answer:
    found = describe_runtimes(session)
    return found.result, [problem.what for one in found.holdings for problem in one.runtime.problems]


_ANSWERS: dict[str, Callable[[Session], _Answer]] = {
    "verdict": _verdict,
    "find": lambda session: (find_leaks(session).result, ()),
    "caches": _caches,
    "roots": lambda session: (all_roots(session, DEPTH)[0], ()),
    "runtime": _runtime,
}
"""What computes the answers of commands that have typed results."""


def _accounting(session: Session) -> dict[str, object]:
    """The part of verdict's JSON that has figures."""
    accounting = account_memory(session, read_residency(session))
    resident, mapped = memory_totals(accounting)
    shares = [share.to_json() for share in memory_shares(accounting)]
    return {"resident": resident, "mapped": mapped, "shares": shares, "warnings": accounting.warnings}


def _clock(target: Target) -> Clock:
    """Now, or when a core's file was last written to."""
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


class Ended(TargetError):
    """The process of which moments are taken has ended, or runs another program."""


def every(session: Session, seconds: float, count: int = 0, lasting: float = math.inf) -> Iterator[Session]:
    """This session, and then a new one of the same process after each interval, up to `count` in
    all (0: any number) and for `lasting` seconds. One that is yielded is closed when the next is
    asked for. Ends at Ctrl-C between two of them; raises Ended when the process has ended, or has
    called exec."""
    if not seconds:
        yield session
        return
    if session.reopen is None:
        raise UsageError("--every needs a process: `--pid PID`")
    began, number = time.monotonic(), 1
    program = _program(session.target)
    yield session
    session.close()
    while not count or number < count:
        due = number * seconds
        if due > lasting:
            return
        number = max(number + 1, int((time.monotonic() - began) / seconds) + 1) if not count else number + 1
        try:
            session.wait(max(0.0, began + due - time.monotonic()))
        except KeyboardInterrupt:
            return
        with closing(_again(session)) as again:
            if _program(again.target) != program:
                if not again.target.auxv:  # it had begun to exit when that was read, after the stop
                    raise Ended(f"pid {session.target.pid} has ended")
                name = name_of(again.target)
                raise Ended(f"pid {again.target.pid} runs another program now" + (f": {name}" if name else ""))
            yield again


def _again(session: Session) -> Session:
    assert session.reopen is not None
    try:
        return session.reopen()
    except TargetError:
        pid = session.target.pid
        if pid is not None and (ended(pid) or is_exiting(pid)):
            raise Ended(f"pid {pid} has ended") from None
        raise


def _program(target: Target) -> tuple[Optional[int], ...]:
    """What differs after an exec, and in a later process of the same number: when the process
    began, and where the kernel put the program and its random bytes (getauxval(3))."""
    auxv = target.auxv
    return start_time(target.pid), auxv.get(AT_RANDOM), auxv.get(AT_PHDR), auxv.get(AT_ENTRY)
