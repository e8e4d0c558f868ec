"""`snapshot`: the command that keeps what the others say of this moment, to compare it later."""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

from findleaks import __version__
from findleaks.arg_types import count_word, seconds_word
from findleaks.commands import SCHEMA, Invocation, command
from findleaks.commands.result import warning_lines
from findleaks.commands.taking import every, take
from findleaks.errors import TargetError, UsageError
from findleaks.formatting import counted, printable, size, wrapped
from findleaks.history.snapshot import Snapshot
from findleaks.history.store import save
from findleaks.quoting import shell_quoted
from findleaks.session import Session

SUFFIX = ".snapshot"
_UNUSUAL = re.compile(r"[^\w.+-]+", re.ASCII)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="its name, for `diff NAME`; outside of a debugger a file NAME.snapshot")
    parser.add_argument("-o", "--output", metavar="FILE|FOLDER", default="", help="the file to write, or the folder for it")
    parser.add_argument("--every", metavar="SECONDS", type=seconds_word, default=0.0, help="take one so often, until Ctrl-C (needs --pid)")
    parser.add_argument("--count", metavar="N", type=count_word, default=0, help="how many to take with --every")


class Taken:
    """Result of `snapshot`: one that was taken."""

    status = 0

    def __init__(self, snapshot: Snapshot, file: Optional[Path], stopped: Optional[float]) -> None:
        self.snapshot, self.file, self.stopped = snapshot, file, stopped
        self.warnings = [printable(warning, 600) for warning in snapshot.warnings]

    def json(self) -> Iterable[Mapping[str, object]]:
        one = self.snapshot
        yield {
            "schema": SCHEMA,
            "command": "snapshot",
            "name": one.name,
            "file": str(self.file) if self.file else None,
            "time": one.clock.time,
            "program": one.identity.program,
            "build_id": one.identity.build_id,
            "pid": one.identity.pid,
            "stopped_seconds": self.stopped,
            "figures": [_figure(figure) for figure in one.figures],
            "warnings": self.warnings,
        }

    def text(self, width: int, invocation: Invocation) -> Iterator[str]:
        one, total = self.snapshot, self.snapshot.total()
        where = f"{self.file} ({size(os.path.getsize(self.file))})" if self.file else one.name
        still = f"; the process stood still for {_milliseconds(self.stopped)}" if self.stopped is not None else ""
        what = f"{size(total.bytes or 0)} {total.name}, {counted(len(one.figures), 'figure')}"
        yield from wrapped(f"{where}: {what}{still}", width)
        if self.file is None:
            yield from invocation.next(width, f"diff {shell_quoted(one.name)}")
        elif "--pid" in invocation.target:
            yield from invocation.next(width, f"diff {shell_quoted(str(self.file))}")
        yield from warning_lines(self.warnings, width)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _figure(figure: Any) -> dict[str, Any]:
    return {
        "what": figure.section,
        "within": figure.within or None,
        "name": figure.name,
        "count": figure.number,
        "bytes": figure.bytes,
    }


@command(arguments=_arguments, subject="name")
def snapshot(session: Session, args: argparse.Namespace) -> Generator[Taken, None, None]:
    """Keep what the commands say of this moment: mappings, shares of memory, size classes, what is
    lost, what each root and field holds, runtimes' types and counters, handles, threads by stack.
    `diff` compares snapshots with one another, and with cores.

    Outside of a debugger it is a file of some 100 KB, an SQLite database (its tables are in the
    documentation); in one, `leaks snapshot NAME` keeps it as long as the debugger runs."""
    kept = session.kept
    if kept is not None and not args.output:
        if args.every:
            raise UsageError("--every needs a process that runs: `findleaks snapshot --every … --pid PID` in a shell")
        name = args.name or f"snapshot{len(kept) + 1}"
        kept[name] = one = take(session, name)
        yield Taken(one, None, None)
        return
    for number, moment in enumerate(every(session, args.every, args.count), 1):
        # Only the name to be written to is known before; `take` reads the process.
        one = take(moment, args.name or "")
        path = destination(args, one, number)
        one = replace(one, name=path.name)
        save(one, path, __version__)
        if kept is not None and args.name:
            kept[args.name] = one
        yield Taken(one, path, getattr(moment.target, "stopped", None))


def destination(args: argparse.Namespace, one: Snapshot, number: int) -> Path:
    """The file for a snapshot. TargetError where its folder cannot be made."""
    folder = bool(args.every) or os.path.isdir(args.output) or args.output.endswith("/")
    if args.output and not folder:
        return Path(args.output)
    if args.name and not args.every:
        return Path(args.output) / f"{args.name}{SUFFIX}"
    try:
        Path(args.output or ".").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TargetError(f"{args.output}: the folder cannot be made: {(error.strerror or '').lower()}") from None
    when = time.strftime("%Y%m%dT%H%M%S", time.localtime(one.clock.time))
    program = _UNUSUAL.sub("_", args.name or one.identity.program or "process")
    return Path(args.output or ".") / f"{program}-{one.identity.pid or 0}-{when}-{number:04}{SUFFIX}"
