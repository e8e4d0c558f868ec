"""Examine one core, from its file to its row."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple, Optional

from findleaks.answers.verdict import assess_memory
from findleaks.audit.crash import crashed_frames, own_frame, signal_name
from findleaks.audit.diagnostics import is_trusted, result_warnings, target_warnings
from findleaks.engine.terms import Kind, State
from findleaks.errors import FindleaksError, Interrupted
from findleaks.formatting import shorten
from findleaks.runtimes.finding import Finding
from findleaks.session import Progress, Session
from findleaks.target.base import Target
from findleaks.target.core import open_core
from findleaks.target.program import identify_program
from findleaks.triage.row import FAILED, OK, PARTIAL, FindingLine, Row
from findleaks.triage.signature import leak_sums
from findleaks.unwind.stacks import without_parameters

FINDINGS, WARNINGS = 20, 50  # Maximum number of findings, and of warnings, in a row.

Opened = Callable[[Target], None]
"""A function that is called when the core is open, before its heaps are read."""


class Source(NamedTuple):
    """A file to examine. `path` is used to open it, and `core` is its name in the row.

    The other fields are known before the file is read: `size` in bytes; `changed`, the time of its
    last change (nanoseconds since 1970); `program` and `time` from the file names that systemd
    gives."""

    path: str
    core: str
    size: int = 0
    changed: int = 0
    program: str = ""
    time: Optional[float] = None
    debug_types: Optional[bool] = None  # See Session.use_debug_types.


def examine(source: Source, sysroot: str = "", progress: Optional[Progress] = None, opened: Opened = lambda target: None) -> Row:
    """Return the row of a core. There is a row for any file, even if it cannot be read. Raises
    Interrupted if the user wants to stop."""
    began = time.perf_counter()
    row = _row(source, sysroot, progress, opened)
    return replace(row, seconds=time.perf_counter() - began)


def make_failure(source: Source, why: str) -> Row:
    """Return the row of a core that cannot be read."""
    when = source.time if source.time is not None else source.changed / 1e9 or None
    return Row(source.core, FAILED, program=source.program, time=when, error=shorten(why, 600), size=source.size)


def _row(source: Source, sysroot: str, progress: Optional[Progress], opened: Opened) -> Row:
    try:
        mode = os.stat(source.path).st_mode
        if not stat.S_ISREG(mode):
            return make_failure(source, f"{kind_of_file(mode)}, not a core file")
        report = progress or (lambda phase, part: None)
        with closing(open_core(source.path, sysroot=sysroot, progress=report)) as target:
            opened(target)
            session = Session(target, progress=progress)
            session.use_debug_types(source.debug_types)
            return _of_session(source, session)
    except Interrupted:
        raise
    except FindleaksError as error:
        return make_failure(source, _why(source, str(error)))
    except (OSError, ValueError) as error:
        return make_failure(source, getattr(error, "strerror", None) or str(error))
    except MemoryError:
        return make_failure(source, "out of memory: examine this core alone, or with a larger --memory")
    except Exception as error:
        return make_failure(source, f"internal error: {type(error).__name__}: {error}")


def _why(source: Source, text: str) -> str:
    """Return a message without the name of the file, because the row contains it."""
    return text.removeprefix(f"{source.path}: ").removeprefix(f"{os.path.basename(source.path)}: ")


def _of_session(source: Source, session: Session) -> Row:
    target = session.target
    accounting, found = assess_memory(session)
    name, build_id = identify_program(target)
    name = name or source.program
    known = session.directory.blocks.totals(State.IN_USE).blocks > 0
    lost = [session.graph().totals(kind) for kind in (Kind.DEFINITE, Kind.INDIRECT)]
    warnings = [*target_warnings(session), *result_warnings(session), *accounting.warnings]
    return Row(
        source.core,
        OK if is_trusted(session) and not target.lacks else PARTIAL,
        program=name,
        build_id=build_id,
        signal=signal_name(target.signal),
        frame=_frame(target, found),
        time=source.time if source.time is not None else target.taken_at or source.changed / 1e9 or None,
        lost_blocks=sum(one.blocks for one in lost) if known else None,
        lost_bytes=sum(one.bytes for one in lost) if known else None,
        findings=tuple(FindingLine(one.kind, one.bytes, one.title) for one in found[:FINDINGS]),
        signatures=tuple(leak_sums(session, name)),
        warnings=tuple(dict.fromkeys(warnings[:WARNINGS])),
        error=shorten(_why(source, target.lacks), 600),
        size=source.size,
    )


def _frame(target: Target, found: Sequence[Finding]) -> str:
    """Return the function in which the process ended. This is the function that the crash finding
    names: the innermost one outside the C library, or else the managed function. If the finding
    names none, or there is no finding, return the innermost frame outside the C library."""
    crash = next((one.facts for one in found if one.kind == "crash"), {})
    managed = crash.get("managed_frame")
    if crash.get("function"):
        return shorten(without_parameters(str(crash["function"])), 200)
    if isinstance(managed, dict):
        return shorten(str(managed["function"]), 200)
    frame = own_frame(crashed_frames(target))
    return shorten(frame.short_name(), 200) if frame is not None else ""


def kind_of_file(mode: int) -> str:
    """Return a phrase for a file that is not a regular file."""
    kinds = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISBLK, "a block device"), (stat.S_ISCHR, "a device"))
    return next((name for test, name in (*kinds, (stat.S_ISDIR, "a directory")) if test(mode)), "not a regular file")
