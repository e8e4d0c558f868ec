"""Takes a snapshot: runs the commands that are compared, with the same options each time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Set
from contextlib import closing
from typing import Any, Optional, cast

from findleaks.audit.accounting import account
from findleaks.audit.mappings import mappings
from findleaks.audit.residency import identity, residency
from findleaks.audit.typed_blocks import typed_blocks
from findleaks.commands import Result, load, parser
from findleaks.commands.verdict import shares_json, totals_json
from findleaks.errors import UsageError
from findleaks.history.figures import COMMANDS, figures, mapping_figures, type_figures
from findleaks.history.sample import taken
from findleaks.history.snapshot import Clock, Identity, Snapshot
from findleaks.session import Session
from findleaks.target.base import Target
from findleaks.target.processes import start_time

_OPTIONS = {
    "find": ["--limit", "0"],
    "caches": ["--limit", "0"],
    "roots": ["--depth", "3"],
    "runtime": ["--limit", "0"],
}
"""Words of each command, so that a figure is never cut off at one moment and there at another."""


def take(session: Session, name: str, sections: Optional[Set[str]] = None) -> Snapshot:
    """The snapshot of a session. Only for figures of some sections, if given: verdict's findings,
    which are no figures, and types, if not wanted, are not looked for then. Raises what the
    commands raise."""
    target = session.target
    clock, rows = _clock(target), mappings(session)
    answers: dict[str, Any] = {}
    for word in COMMANDS:
        answers[word] = _accounting(session) if word == "verdict" and sections is not None else _answer(session, word)
    allocators = tuple(dict.fromkeys(f"{one.name} {one.version}".strip() for one in session.directory.allocators))
    build_id = next((module.build_id for module in target.modules() if module.path == target.exe_path), "")
    started = start_time(target.pid) if target.live else None
    process = Identity(os.path.basename(target.exe_path), build_id, target.pid, started, allocators, identity(target))
    warnings = tuple(dict.fromkeys(text for answer in answers.values() for text in answer["warnings"]))
    types = typed_blocks(session) if sections is None or "type" in sections else ()
    found = [*mapping_figures(rows), *figures(answers), *type_figures(types)]
    return Snapshot(name, clock, process, found, answers, warnings, taken(session))


def _answer(session: Session, word: str) -> Any:
    """A command's JSON."""
    command = load(word)
    args = parser(command, "findleaks").parse_args([*_OPTIONS.get(word, []), "--json"])
    (body,) = cast(Result, command.run(session, args)).json()
    return body


def _accounting(session: Session) -> dict[str, object]:
    """The part of verdict's JSON that has figures."""
    accounting = account(session, residency(session))
    return {**totals_json(accounting), "shares": shares_json(accounting), "warnings": accounting.warnings}


def _clock(target: Target) -> Clock:
    """Now, or when a core's file was last written to."""
    if target.live:
        try:
            with open("/proc/sys/kernel/random/boot_id") as file:
                return Clock(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), file.read().strip())
        except OSError:
            return Clock(time.time())
    try:
        return Clock(os.stat(target.path).st_mtime)
    except OSError:
        return Clock()


def every(session: Session, seconds: float, count: int) -> Iterator[Session]:
    """This session, and then a new one of the same process after each interval, up to `count` in
    all (0: until Ctrl-C). One that is yielded is closed when the next is asked for. Ends without an
    error when the process has ended, or the user pressed Ctrl-C."""
    began, number = time.monotonic(), 1
    yield session
    if not seconds:
        return
    if session.reopen is None:
        raise UsageError("--every needs a process: `--pid PID`")
    pid = session.target.pid
    session.close()
    while not count or number < count:
        due = began + number * seconds
        number = max(number + 1, int((time.monotonic() - began) / seconds) + 1) if not count else number + 1
        try:
            time.sleep(max(0.0, due - time.monotonic()))
        except KeyboardInterrupt:
            return
        if not os.path.isdir(f"/proc/{pid}"):
            return
        with closing(session.reopen()) as again:
            yield again
