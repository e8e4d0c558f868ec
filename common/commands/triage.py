"""The `triage` command: read many cores, and group equal leaks."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, NoReturn, Optional, TextIO

from findleaks import __version__
from findleaks.arg_types import parse_count, parse_seconds, parse_size
from findleaks.commands import Invocation, Shell, command, emit_result, triage_text
from findleaks.commands.options import add_choice_of_debug_types, add_fail_over
from findleaks.commands.output import add_outputs, format_by_name
from findleaks.errors import FindleaksError, TargetError, UsageError
from findleaks.formatting import format_count
from findleaks.progress import Bar
from findleaks.report.files import write_file
from findleaks.results.triage import Triage
from findleaks.results.written import WrittenFile, document
from findleaks.session import Session
from findleaks.triage import coredumpctl
from findleaks.triage import store as files
from findleaks.triage.examine import Source
from findleaks.triage.fleet import examined_by
from findleaks.triage.groups import group_leaks
from findleaks.triage.pool import Limits, ctrl_c_later, default_limits, examine_all
from findleaks.triage.row import FAILED, OK, PARTIAL, Row, utf8
from findleaks.triage.sources import COREDUMPS, Sources, sources

TOP = 20  # Number of groups printed as text without --top.
INTERRUPTED = 130
FORMATS = ("database", "table", "fleet")  # Formats of files.


def _arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "cores",
        nargs="*",
        metavar="CORE|DIR|@LIST|-",
        help="cores, directories (searched recursively), @LIST: a file with names; -: names on standard input",
    )
    add("--coredumpctl", action="store_true", help=f"also read the cores that systemd keeps in {COREDUMPS}")
    add_outputs(parser, "a database, a table or a page", FORMATS)
    add("--resume", action="store_true", help="resume from the database given by -o: its cores are not read again")
    add("--baseline", metavar="DB", default="", help="an earlier database: leaks that it lacks are marked as new")
    add_fail_over(parser, "a core")
    add("--top", metavar="N", type=parse_count, help=f"groups to print (text: {TOP}; JSON: all); 0: all")
    add(
        "-j",
        "--jobs",
        metavar="N",
        type=parse_count,
        default=0,
        help="number of cores read at a time (default: as many as processors and memory allow)",
    )
    add(
        "--memory", metavar="BYTES", help="limit of memory for all of them together, and for each (default: four fifths of the free memory)"
    )
    add("--scheduler", metavar="ADDRESS", default="", help="let the workers of a dask scheduler read the cores: tcp://host:8786")
    add("--timeout", metavar="SECONDS", type=parse_seconds, default=0.0, help="longest time for a core (default: no limit)")
    add_choice_of_debug_types(parser)


def _in_shell(args: argparse.Namespace, shell: Shell) -> int:
    """Read the cores that are named on the command line. This needs no process."""
    if args.sysroot and not os.path.isdir(args.sysroot):
        raise TargetError(f"--sysroot {args.sysroot}: no such directory")
    return run(args, shell.out, shell.invocation(None), shell.width)


@command(arguments=_arguments, in_shell=_in_shell)
def triage(session: Session, args: argparse.Namespace) -> NoReturn:
    """Read many cores. `triage` prints a row for each core, even if it cannot be read, and one
    group for the same leak in many cores. It compares leaks by what was leaked: type, size,
    indirect blocks, and the first words of the blocks. These are the same at other addresses and in
    other builds of a program.

    Each core is read in a process of its own, several at a time. --json prints one object for each
    core as soon as the core is done (JSON Lines), then one object with the groups. -o FILE.sqlite
    stores each row when it is made: after an interruption, --resume continues, and gives the same
    result. Exit status: 1 if a core has leaked more than --fail-over; otherwise 2 if some cores
    could not be read completely, or if no core could be read; otherwise 0."""
    raise UsageError("triage takes no process: name cores or directories")


class RowResult:
    """The result for one core, which is printed when the core has been read."""

    status = 0

    def __init__(self, row: Row, head: bool, names: Names) -> None:
        self.row, self.head, self.names = row, head, names

    def json(self) -> Iterable[Mapping[str, object]]:
        return [self.row.result().to_json()]

    def text(self, width: int, invocation: Invocation) -> Iterator[str]:
        return triage_text.row_lines(self.row, self.names(self.row.core), self.head, width)


class Names:
    """Shortens the names of cores: the directory that all cores share is omitted."""

    def __init__(self, cores: Sequence[str]) -> None:
        folders = {os.path.dirname(core) for core in cores}
        try:
            self.common = os.path.commonpath(folders) if folders else ""
        except ValueError:  # Raised if both absolute and relative names are given.
            self.common = ""

    def __call__(self, core: str) -> str:
        return core[len(self.common) :].lstrip("/") if self.common and core.startswith(self.common) else core.removeprefix("./")


class Groups:
    """The result for all cores.

    `left`: number of cores that were not read because of Ctrl-C. `before`: rows of the baseline.
    `over`: number of cores that leaked more than `limit`. `written`: files and their sizes in
    bytes."""

    def __init__(self, rows: Sequence[Row], args: argparse.Namespace, left: int = 0, before: Optional[Sequence[Row]] = None) -> None:
        self.left = left
        self.groups, self.rows = group_leaks(rows, before)
        self.top: Optional[int] = args.top
        self.counts = {status: sum(row.status == status for row in rows) for status in (OK, PARTIAL, FAILED)}
        self.limit = parse_size(args.fail_over) if args.fail_over else None
        self.over = sum(row.lost_bytes is not None and self.limit is not None and row.lost_bytes > self.limit for row in rows)
        self.status = self._status()
        self.seconds, self.jobs = 0.0, 1
        self.notes: list[str] = []
        self.written: list[WrittenFile] = []
        self.database = ""

    def _status(self) -> int:
        """Return the exit status. 130: Ctrl-C. 1: a core has leaked more than --fail-over allows.
        2: no core has leaked more, but some cores could not be read completely, or no core could
        be read. 0 otherwise."""
        if self.left:
            return INTERRUPTED
        if self.counts[FAILED] == len(self.rows):
            return 2
        if self.limit is None:
            return 0
        if self.over:
            return 1
        return 0 if self.counts[OK] == len(self.rows) else 2

    def json(self) -> Iterable[Mapping[str, Any]]:
        shown = self.groups[: self.top] if self.top else self.groups
        found = Triage(
            len(self.rows),
            self.left,
            self.counts[OK],
            self.counts[PARTIAL],
            self.counts[FAILED],
            lost_bytes=sum(row.lost_bytes or 0 for row in self.rows),
            seconds=round(self.seconds, 3),
            groups=[group.result() for group in shown],
            written=self.written,
        )
        yield document("triage", found, self.notes)

    def text(self, width: int, invocation: Invocation) -> Iterator[str]:
        return triage_text.summary_lines(self, TOP if self.top is None else self.top, width, invocation)


class _Outputs:
    """The files of -o: a database, which is written row by row, and other files, which are written
    at the end."""

    def __init__(self, args: argparse.Namespace) -> None:
        kinds = [(file, format_by_name(file, FORMATS, remedy="")) for file in args.output]
        databases = [file for file, kind in kinds if kind == "database"]
        if len(databases) > 1:
            raise UsageError("expected one database, got several -o")
        if args.resume and not databases:
            raise UsageError("--resume needs the database: -o FILE.sqlite")
        self.database = databases[0] if databases else ""
        self.tables = [file for file, kind in kinds if kind == "table"]
        self.pages = [file for file, kind in kinds if kind == "fleet"]
        if self.tables:
            from findleaks.triage.parquet import require

            require()  # raises an error before any core is read


def run(args: argparse.Namespace, out: TextIO, invocation: Invocation, width: int) -> int:
    """Read the cores that the arguments name, print their rows and groups, and return the exit
    status."""
    outputs = _Outputs(args)
    before = list(files.rows(args.baseline)) if args.baseline else None
    if args.fail_over:
        parse_size(args.fail_over)  # raises an error before any core is read
    found = _sources(args, outputs.database)
    limits = default_limits(args.jobs or None, parse_size(args.memory) if args.memory else None, args.timeout, args.sysroot)
    began = time.monotonic()
    bar = Bar(sys.stderr)
    rows: list[Row] = []
    left = 0
    names = Names([source.core for source in found.cores])
    try:
        for row in _rows(found.cores, limits, args, outputs, bar):
            bar.clear()
            with ctrl_c_later():  # Rows must be counted if and only if they are printed.
                emit_result(RowResult(row, not rows, names), args.json, out, invocation, width)
                rows.append(row)
            out.flush()
    except KeyboardInterrupt:
        left = len(found.cores) - len(rows)
    finally:
        bar.clear()
    final = Groups(rows, args, left, before)
    final.seconds, final.jobs = time.monotonic() - began, min(limits.jobs, max(len(found.cores), 1))
    final.database = outputs.database
    if args.coredumpctl:
        final.notes += filter(None, [coredumpctl.absent()])
    if found.links:
        final.notes.append(f"{format_count(found.links, 'symbolic link')} in directories not followed")
    _write(final, outputs)
    return emit_result(final, args.json, out, invocation, width)


def _sources(args: argparse.Namespace, database: str) -> Sources:
    words = [*args.cores, *([COREDUMPS] if args.coredumpctl else [])]
    if not words:
        raise UsageError("name cores, or directories of cores: findleaks triage /var/crash")
    if "" in words:
        raise UsageError("the name of a core is empty")
    own = [*args.output, *([f"{database}{end}" for end in ("-journal", "-wal", "-shm")] if database else []), args.baseline]
    found = sources(words, sys.stdin.buffer if "-" in words else None, [file for file in own if file])
    if not found.cores:
        raise FindleaksError(f"no files in {', '.join(words)}")
    return found._replace(cores=[one._replace(debug_types=args.debug_types) for one in found.cores])


def _rows(cores: Sequence[Source], limits: Limits, args: argparse.Namespace, outputs: _Outputs, bar: Bar) -> Iterator[Row]:
    """Yield the rows. The rows of an earlier run come first. Each row is stored in the database
    before it is yielded for printing."""
    with ExitStack() as stack:
        base: Optional[files.Store] = None
        left = list(cores)
        if outputs.database:
            base = (files.resume if args.resume else files.create)(outputs.database, __version__)
            stack.callback(base.close)
            done = base.list_done()
            finished = {source.core for source in cores if done.get(utf8(source.core)) == (source.size, source.changed)}
            left = [source for source in cores if source.core not in finished]
            kept = {utf8(core): core for core in finished}
            yield from (row for row in files.rows(outputs.database) if row.core in kept)
        progress = _Progress(bar, left)
        if args.scheduler:
            # Otherwise each worker would use a sysroot of its own.
            memory = limits.memory if args.memory else None
            found = examined_by(args.scheduler, left, memory, limits.timeout, limits.sysroot, progress.show)
        else:
            found = examine_all(left, limits, progress.show)
        for source, row in stack.enter_context(closing(found)):
            if base is not None:
                base.add(source, row)
            progress.advance(source)
            yield row


class _Progress:
    """Shows the progress of the whole run. It is measured in bytes, because cores differ in
    size."""

    def __init__(self, bar: Bar, left: Sequence[Source]) -> None:
        self._bar, self._began = bar, time.monotonic()
        self._cores, self._bytes = len(left), sum(source.size + 1 for source in left)
        self._read = self._read_bytes = 0

    def advance(self, source: Source) -> None:
        self._read += 1
        self._read_bytes += source.size + 1

    def show(self) -> None:
        part = self._read_bytes / max(self._bytes, 1)
        spent = time.monotonic() - self._began
        left = f", about {triage_text.lasting(spent * (1 - part) / part)}" if part > 0.02 else ""
        unread = triage_text.bytes_of(self._bytes - self._read_bytes)
        said = f"{format_count(self._cores, 'core')}, {self._cores - self._read:,} left ({unread}){left}"
        self._bar(said, part)


def _write(final: Groups, outputs: _Outputs) -> None:
    if outputs.database and os.path.isfile(outputs.database):
        with closing(files.resume(outputs.database, __version__)) as base:
            base.name(final.groups)
    for file in outputs.tables:
        from findleaks.triage.parquet import table

        write_file(file, table(final.rows))
    for file in outputs.pages:
        from findleaks.report.fleet.html import render_html

        page = render_html(final.rows, final.groups, triage_text.headline(final), final.notes)
        write_file(file, page.encode("utf-8", "backslashreplace"))
    files_of = (("database", [outputs.database]), ("table", outputs.tables), ("fleet", outputs.pages))
    found = [(file, form) for form, named in files_of for file in named if os.path.isfile(file)]
    final.written = [WrittenFile(file, os.path.getsize(file), form) for file, form in found]
