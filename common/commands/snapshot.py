"""The `snapshot` command: save the current figures of the process for `diff`, or write a
core."""

from __future__ import annotations

import argparse
import itertools
import os
import re
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Optional, Union

from findleaks import __version__
from findleaks.answers.snapshots import take_snapshot
from findleaks.arg_types import parse_count
from findleaks.commands import Invocation, command
from findleaks.commands.options import add_every
from findleaks.commands.output import add_destination
from findleaks.commands.result import warning_lines
from findleaks.errors import Interrupted, TargetError, UsageError
from findleaks.formatting import format_count, printable, size, wrap
from findleaks.history.snapshot import Snapshot
from findleaks.history.store import save
from findleaks.quoting import shell_quoted
from findleaks.results import snapshots
from findleaks.results.written import document
from findleaks.session import Session
from findleaks.session.host import DebuggerHost, debugger_snapshots
from findleaks.session.repeated_reads import Ended, read_repeatedly
from findleaks.target.base import Target
from findleaks.target.program import program_name

if TYPE_CHECKING:
    from findleaks.target.core_writer import Written

SUFFIX, CORE = ".snapshot", ".core"
_UNUSUAL = re.compile(r"[^\w.+-]+", re.ASCII)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="the name of the snapshot, for `diff NAME`; outside a debugger, the file is NAME.snapshot"
    )
    parser.add_argument("--weight", choices=("summary", "core"), default="summary", help="figures only (summary), or all memory (core)")
    parser.add_argument("--zstd", action="store_true", help="compress the core with zstd")
    parser.add_argument("--fork", action="store_true", help="stop the process only for milliseconds, and copy a clone of it (x86-64)")
    add_destination(parser, "the snapshot or the core", "FILE|DIR")
    add_every(parser, "seconds between snapshots, until Ctrl-C (needs --pid)")
    parser.add_argument("--count", metavar="N", type=parse_count, default=0, help="number of snapshots with --every")


class Taken:
    """The result of `snapshot`: one snapshot. `single`: whether it is not part of a series.
    `replaces`: whether a debugger had an earlier snapshot of this name."""

    status = 0

    def __init__(
        self, snapshot: Snapshot, file: Optional[Path], stopped: Optional[float] = None, single: bool = True, replaces: bool = False
    ) -> None:
        self.snapshot, self.file, self.stopped, self.single, self.replaces = snapshot, file, stopped, single, replaces
        self.warnings = [printable(warning, 600) for warning in snapshot.warnings]

    def json(self) -> Iterable[Mapping[str, object]]:
        yield document("snapshot", self.result(), self.warnings)

    def result(self) -> snapshots.TakenSnapshot:
        """Return the snapshot with its figures."""
        one = self.snapshot
        return snapshots.TakenSnapshot(
            one.name,
            str(self.file) if self.file else None,
            one.clock.time,
            one.identity.program,
            one.identity.build_id,
            one.identity.pid,
            stopped_seconds=self.stopped,
            figures=[
                snapshots.SnapshotFigure(figure.section, figure.within or None, figure.name, figure.number, figure.bytes)
                for figure in one.figures
            ],
        )

    def text(self, width: int, invocation: Invocation) -> Iterator[str]:
        one, total = self.snapshot, self.snapshot.total()
        where = f"{self.file} ({size(os.path.getsize(self.file))})" if self.file else one.name
        still = f"; the process was stopped for {_milliseconds(self.stopped)}" if self.stopped is not None else ""
        what = f"{size(total.bytes or 0)} {total.name}, {format_count(len(one.figures), 'figure')}"
        replaced = "; it replaces the earlier snapshot of this name" if self.replaces else ""
        yield from wrap(f"{where}: {what}{still}{replaced}", width)
        if self.file is None:
            yield from invocation.next(f"diff {shell_quoted(one.name)}")
        elif self.single and ("--pid" in invocation.target or not invocation.target):
            yield from invocation.next(f"diff {shell_quoted(str(self.file))}")
        yield from warning_lines(self.warnings, width)


class WrittenCore:
    """The result of `snapshot --weight core`."""

    status = 0

    def __init__(self, written: Written, target: Target, single: bool) -> None:
        self.written, self.pid, self.stopped, self.single = written, target.pid, _describe_stop(target), single
        self.warnings = [printable(warning, 600) for warning in target.warnings]

    def json(self) -> Iterable[Mapping[str, object]]:
        one = self.written
        found = snapshots.WrittenCore(one.path, self.pid, one.size, one.on_disk, one.threads, self.stopped)
        yield document("snapshot", found, self.warnings)

    def text(self, width: int, invocation: Invocation) -> Iterator[str]:
        one = self.written
        still = f"; the process was stopped for {_milliseconds(self.stopped)}" if self.stopped is not None else ""
        what = f"a core of {size(one.memory)}, {size(one.on_disk)} on the disk, {format_count(one.threads, 'thread')}"
        yield from wrap(f"{one.path}: {what}{still}", width)
        if self.single:
            yield from invocation._replace(target="").next(f"verdict {shell_quoted(one.path)}")
        yield from warning_lines(self.warnings, width)


class Series:
    """The last result of `snapshot --every`: the number of snapshots, their directory, and why the
    series ended."""

    status = 0

    def __init__(self, taken: int, folder: str, ended: Optional[str]) -> None:
        self.taken, self.folder, self.ended = taken, folder or ".", ended if ended is None else printable(ended)

    def json(self) -> Iterable[Mapping[str, object]]:
        yield document("snapshot", snapshots.SnapshotSeries(self.taken, self.folder, self.ended), ())

    def text(self, width: int, invocation: Invocation) -> Iterator[str]:
        why = f"{self.ended}: " if self.ended else ""
        yield from wrap(f"{why}{format_count(self.taken, 'snapshot')} in {self.folder}", width)
        if self.taken > 1:
            yield from invocation._replace(target="").next(f"diff {shell_quoted(self.folder)}")


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


@command(arguments=_arguments, subject="name", takes_snapshots=True)
def snapshot(session: Session, args: argparse.Namespace) -> Generator[Union[Taken, WrittenCore, Series], None, None]:
    """Save the current figures: mappings, shares of memory, size classes, leaks, memory
    retained by roots and fields, runtimes' types and counters, handles, threads by stack. `diff`
    compares snapshots with one another, and with cores.

    On the command line, a snapshot is a file of about 100 KB, an SQLite database (the documentation
    describes its tables). In a debugger, `leaks snapshot NAME` keeps it until the debugger ends.

    --weight core writes an ELF core of the process instead, which GDB, LLDB and findleaks can read.
    The file is sparse and omits memory that was never touched. With --fork the process is stopped
    only until it has cloned itself. findleaks then copies the clone, while the process runs."""
    kept = debugger_snapshots(session.host)
    _check(session, args)
    if args.every and kept is not None:
        raise UsageError("--every needs a running process: run `findleaks snapshot --every … --pid PID` in a shell")
    if kept is not None and not args.output:
        name = args.name or _free_name(kept)
        one = take_snapshot(session, name)
        # The new snapshot is the latest.
        replaces = kept.pop(name, None) is not None
        kept[name] = one
        yield Taken(one, None, replaces=replaces)
        return
    taken, reason = 0, None
    try:
        for current in read_repeatedly(session, args.every, args.count):
            if args.weight == "core":
                yield WrittenCore(_core(current, args, taken + 1), current.target, not args.every)
                taken += 1
                continue
            # Only the name of the file is known before `take_snapshot` reads the process.
            one = take_snapshot(current, args.name or "")
            path = destination(args, one.identity.program, one.identity.pid, one.clock.time, taken + 1)
            one = replace(one, name=path.name)
            save(one, path, __version__)
            taken += 1
            if kept is not None and args.name:
                kept.pop(args.name, None)
                kept[args.name] = replace(one, name=args.name)
            yield Taken(one, path, _describe_stop(current.target), not args.every)
    except Ended as error:
        reason = str(error)
    except (KeyboardInterrupt, Interrupted):
        if not taken:
            raise
    if args.every:
        yield Series(taken, args.output, reason)


def _free_name(kept: Mapping[str, object]) -> str:
    return next(name for number in itertools.count(1) if (name := f"snapshot{number}") not in kept)


def _check(session: Session, args: argparse.Namespace) -> None:
    """Check the arguments. Raises UsageError if they contradict one another, or if the target does
    not support them."""
    core, target = args.weight == "core", session.target
    if args.count and not args.every:
        raise UsageError("--count needs --every SECONDS")
    if args.zstd and not core:
        raise UsageError("--zstd compresses cores: it needs --weight core")
    if isinstance(session.host, DebuggerHost) and (core or args.fork):
        what = " ".join([*["--weight core"] * core, *["--zstd"] * args.zstd, *["--fork"] * args.fork])
        process = f"--pid {target.pid}" if target.live and target.pid else "--pid PID"
        here = "; in the debugger, gcore (GDB) or process save-core (LLDB) write a core" if core else ""
        raise UsageError(
            f"{what} needs a process without a debugger: detach, and type in a shell: findleaks snapshot {what} {process}{here}"
        )
    if not target.live and (core or args.fork):
        raise UsageError(f"{'--fork' if args.fork else '--weight core'} needs a process: --pid PID")


def _describe_stop(target: Target) -> Optional[float]:
    """Return the number of seconds for which the process was stopped for copying. If there were
    several stops, return the longest."""
    stops = getattr(target, "stops", ())
    return max(stops) if stops else getattr(target, "stopped", None)


def _core(session: Session, args: argparse.Namespace, number: int) -> Written:
    from findleaks.target.copied import CopiedProcess
    from findleaks.target.core_writer import check, write_core
    from findleaks.target.live import LiveTarget

    target = session.target
    assert isinstance(target, (CopiedProcess, LiveTarget))
    suffix = CORE + (".zst" if args.zstd else "")
    path = str(destination(args, program_name(target), target.pid, target.taken_at, number, suffix))
    check(path, args.zstd)
    return write_core(target, path, args.zstd, lambda part: session.report_progress("writing the core", part))


def destination(
    args: argparse.Namespace, program: str, pid: Optional[int], taken_at: Optional[float], number: int, suffix: str = SUFFIX
) -> Path:
    """Return the path of the file for a snapshot. `number`: its number in a series. Raises
    TargetError if the directory cannot be created."""
    folder = bool(args.every) or os.path.isdir(args.output) or args.output.endswith("/")
    if args.output and not folder:
        return Path(args.output)
    if args.name and not args.every:
        return Path(args.output) / f"{args.name}{suffix}"
    try:
        Path(args.output or ".").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TargetError(f"{args.output}: the directory cannot be created: {(error.strerror or '').lower()}") from None
    when = time.strftime("%Y%m%dT%H%M%S", time.localtime(taken_at))
    program = _UNUSUAL.sub("_", args.name or program or "process")
    return Path(args.output or ".") / f"{program}-{pid or 0}-{when}-{number:04}{suffix}"
