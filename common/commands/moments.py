"""Takes a moment: runs the commands whose figures are compared, with the same options each time."""

from __future__ import annotations

import os
import time
from typing import Any, Optional

from findleaks.commands import load, parser
from findleaks.history.figures import COMMANDS, figures
from findleaks.history.moment import Moment
from findleaks.session import Session
from findleaks.target.base import Target

_OPTIONS = {
    "find": ["--limit", "0"],
    "caches": ["--limit", "0"],
    "roots": ["--depth", "3"],
    "runtime": ["--limit", "0"],
}
"""Words of each command, so that a figure is never cut off at one moment and there at another."""


def take(session: Session, name: str) -> Moment:
    """The moment of a session. Raises what the commands raise."""
    target = session.target
    answers: dict[str, Any] = {}
    for word in COMMANDS:
        answers[word] = _answer(session, word)
    exe, build_id = _program(target)
    allocators = tuple(f"{one.name} {one.version}".strip() for one in session.directory.allocators)
    warnings = tuple(dict.fromkeys(text for answer in answers.values() for text in answer["warnings"]))
    started = _started(target.pid) if target.live else None
    return Moment(name, _time(target), exe, build_id, target.pid, started, allocators, figures(answers), answers, warnings)


def _answer(session: Session, word: str) -> Any:
    """A command's JSON."""
    command = load(word)
    args = parser(command, "findleaks").parse_args(_OPTIONS.get(word, []) + ["--json"])
    (body,) = command.run(session, args).json()
    return body


def _program(target: Target) -> tuple[str, str]:
    """The executable's base name, and its build-id."""
    found = next((module.build_id for module in target.modules() if module.path == target.exe_path), "")
    return os.path.basename(target.exe_path), found


def _time(target: Target) -> Optional[float]:
    """Seconds since 1970: now, or when a core's file was last written to."""
    if target.live:
        return time.time()
    try:
        return os.stat(target.path).st_mtime
    except OSError:
        return None


def _started(pid: Optional[int]) -> Optional[int]:
    """When a process began, in clock ticks since the machine's start (proc(5), stat, field 22)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
