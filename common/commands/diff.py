"""The `diff` command: list what grew between samples. A sample is a snapshot, a core, or a stop of
a debugger."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Optional

from findleaks.answers.growth import growth_result
from findleaks.answers.snapshots import take_snapshot
from findleaks.catalogue import suggest_word
from findleaks.commands import Invocation, Shell, command, diff_survivors, emit_result, use_pools
from findleaks.commands.diff_text import ROWS, headline, text
from findleaks.commands.limits import add_limit, in_text
from findleaks.commands.options import add_choice_of_debug_types
from findleaks.commands.output import STACKS, add_output, output_format
from findleaks.commands.result import warning_lines, written_lines
from findleaks.commands.samples import gather
from findleaks.errors import UsageError
from findleaks.formatting import printable, wrap
from findleaks.history.figure_series import all_series
from findleaks.history.figures import DESCRIPTORS
from findleaks.history.growth import RANKED, Grown, Growth
from findleaks.history.snapshot import Snapshot
from findleaks.history.store import is_snapshot
from findleaks.results.growth import Growth as GrowthResult
from findleaks.results.written import WrittenFile, document
from findleaks.session import Session
from findleaks.session.host import debugger_snapshots
from findleaks.target.processes import start_time
from findleaks.target.program import identify_program
from findleaks.target.ptrace import has_ended, is_exiting

SECTIONS = {
    "mapping": ("mapping",),
    "share": ("share",),
    "kind": ("kind",),
    "cache": ("cache", "allocator"),
    "root": ("root", "field", "container", "objects", "heap root"),
    "type": ("type",),
    "lost": ("lost", "garbage type"),
    "runtime": ("runtime type", "native", "heap", "counter"),
    "handles": ("handles", "handle value"),
    "threads": ("threads", "user threads"),
    "descriptors": (DESCRIPTORS,),
}
"""The sections of figures that each word of --by selects."""
FILES = ("page", *STACKS)
"""Formats of files. A file with the suffix .html has the first."""
SURVIVORS = "survivors"
"""The word of --by that selects surviving blocks. They are not figures, so SECTIONS does not
contain them."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "samples",
        nargs="*",
        metavar="SAMPLE",
        help="snapshots, cores, or directories of them, the earliest first; in a debugger, names of snapshots",
    )
    add_output(parser, "a page of curves and tables (.html), or the growth as stacks,", FILES)
    what = (
        f"instead of the rows that explain the growth: all figures of one kind ({', '.join(SECTIONS)}), or the blocks that were not freed"
    )
    parser.add_argument("--by", choices=(*SECTIONS, SURVIVORS), metavar="KIND", help=f"{what} ({SURVIVORS})")
    add_limit(parser, "rows", ROWS)
    add_choice_of_debug_types(parser)


def check(args: argparse.Namespace) -> None:
    """Check the arguments before anything is read. Raises UsageError if they are wrong."""
    output_format(args, FILES)


def sections(args: argparse.Namespace) -> frozenset[str]:
    """Return the sections of figures that the arguments need. The HTML page needs all of them."""
    words = SECTIONS if output_format(args, FILES) == "page" else [args.by] if args.by in SECTIONS else []
    return RANKED.union(*(SECTIONS[word] for word in words))


class Comparison:
    """The result of `diff`.

    `page`: name and size in bytes of the page that was written. `least`: the fewest snapshots that
    the comparison needs. `current`: whether the last snapshot is of the debugger's process, so that
    further commands can be suggested."""

    command, least = "diff", 2
    status = 0

    def __init__(
        self,
        snapshots: Sequence[Snapshot],
        limit: Optional[int] = None,
        by: str = "",
        warnings: Sequence[str] = (),
        current: bool = False,
    ) -> None:
        if len(snapshots) < self.least:
            raise UsageError("diff needs at least two samples: snapshots, cores, or a directory of them")
        self.growth = Growth(snapshots)
        self.current = current
        self.limit, self.by = limit, by
        self.rows = self._by(by) if by in SECTIONS else self.growth.rows
        self.warnings = [printable(warning, 600) for warning in [*warnings, *_common(snapshots)]]
        self.written: Optional[WrittenFile] = None

    def write(self, file: str, form: str) -> None:
        """Write the page, or the growth by stack. Raises FindleaksError if the file cannot be
        written."""
        from findleaks.commands.export import render
        from findleaks.report.files import write_file

        if form == "page":
            from findleaks.commands.diff_page import page

            data = page(self.growth, SECTIONS, self.by, self.warnings)
        else:
            from findleaks.commands.diff_profile import of_growth

            data = render(of_growth(self.growth), form)
        write_file(file, data)
        self.written = WrittenFile(file, len(data), form)

    def _by(self, word: str) -> list[Grown]:
        series = all_series(self.growth.snapshots, frozenset(SECTIONS[word])).values()
        rows = [self.growth.judge(one) for one in series]
        return sorted(rows, key=lambda row: (not row.series.in_bytes, -row.series.delta))

    def result(self) -> GrowthResult:
        """Return the growth, with the rows that are printed."""
        return growth_result(self.growth, self.rows, self.limit)

    def json(self) -> Iterable[Mapping[str, object]]:
        yield document(self.command, self.result(), self.warnings, self.written)

    def text(self, width: int, invocation: Invocation) -> Iterator[str]:
        limit = in_text(self.limit, ROWS)
        if self.by == SURVIVORS:
            yield from wrap(headline(self.growth), width)
            yield from diff_survivors.lines(self.growth.survival, limit, width)
        else:
            yield from text(self.growth, self.rows, limit, width, invocation, self.current or bool(invocation.target))
        yield from written_lines(self.written, width)
        yield from warning_lines(self.warnings, width)


def compare(snapshots: Sequence[Snapshot], args: argparse.Namespace, warnings: Sequence[str] = (), current: bool = False) -> Comparison:
    """Compare the snapshots as the arguments say. If -o was given, write its file."""
    found = Comparison(snapshots, args.limit, args.by or "", warnings, current)
    if args.output:
        found.write(args.output, output_format(args, FILES))
    return found


def _common(snapshots: Sequence[Snapshot]) -> Iterator[str]:
    """Yield each warning of the snapshots once, with the first snapshot that has it."""
    seen: dict[str, list[str]] = {}
    for one in snapshots:
        for warning in one.warnings:
            seen.setdefault(warning, []).append(one.name)
    for warning, names in seen.items():
        yield f"{names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "") + f": {warning}"


def _in_shell(args: argparse.Namespace, shell: Shell) -> int:
    """Compare the samples that are named on the command line. If a live process is among them, it
    is the last."""
    from findleaks.progress import Bar

    bar = Bar(sys.stderr)

    def open_file(path: str) -> Session:
        session = shell.open(path, bar)
        use_pools(session, args)
        session.use_debug_types(args.debug_types)
        return session

    try:
        found, warnings = gather(args.samples, open_file, sections(args), progress=bar)
        if args.pid is not None:
            with closing(open_file("")) as session:
                found.append(take_snapshot(session, f"pid {args.pid}"))
    finally:
        bar.clear()
    invocation = _last_sample(args, shell, found[-1]) if found else shell.invocation(None)
    return emit_result(compare(found, args, warnings), args.json, shell.out, invocation, shell.width)


def _last_sample(args: argparse.Namespace, shell: Shell, last: Snapshot) -> Invocation:
    """Return the Invocation for commands about the core or the process of the last sample. It has
    no target if the sample is neither a core nor a process that still runs."""
    word = "" if args.pid is not None else args.samples[-1]
    if word and os.path.isfile(word) and not is_snapshot(word):
        return shell.invocation(word)
    pid, started = last.identity.pid, last.identity.started
    if pid is None or started is None or last.clock.uptime is None or start_time(pid) != started:
        return shell.invocation(None)
    if has_ended(pid) or is_exiting(pid):
        return shell.invocation(None)
    return shell.invocation(None)._replace(target=f"--pid {pid}")


@command(arguments=_arguments, check=check, takes_snapshots=True, in_shell=_in_shell)
def diff(session: Session, args: argparse.Namespace) -> Comparison:
    """List what grew between two or more samples of a program: leaked blocks, what each root
    retains, and what allocators and runtimes keep. Roots are compared by name, so that addresses
    may differ. SAMPLEs are snapshots, core files, and directories of them, in the order of time. In
    a debugger they are names of snapshots taken there, or files, and the last sample is the current
    one. Without SAMPLEs, `diff` compares all snapshots of the program.

    With three or more samples, `diff` distinguishes growth that continues from growth that has
    ended and from a saw-tooth. The rate is the median of the slopes between samples (Theil–Sen). If
    all samples are of one process, --by survivors lists by size the blocks that were not freed."""
    kept = {name: one for name, one in (debugger_snapshots(session.host) or {}).items() if isinstance(one, Snapshot)}
    words = args.samples or _of_program(session, kept)
    for word in words:
        if word not in kept and not os.path.exists(word):
            known = suggest_word(word, kept) or f"; the snapshots are: {', '.join(kept) or 'none'}"
            raise UsageError(f"no snapshot {word!r}, and no file of that name{known}")
    found, warnings = gather(words, lambda path: _core(session, path), sections(args), kept, session.report_progress)
    return compare([*found, take_snapshot(session, "now")], args, warnings, current=True)


def _of_program(session: Session, kept: Mapping[str, Snapshot]) -> list[str]:
    """Return the names of the snapshots of the session's program. Raises UsageError if there are
    none."""
    program = identify_program(session.target)
    names = [name for name, one in kept.items() if (one.identity.program, one.identity.build_id) == program]
    if names:
        return names
    others = f", only of others: {', '.join(kept)}" if kept else ""
    what = f" of {program[0]}" if kept and program[0] else ""
    raise UsageError(f"no snapshot{what} was taken{others}; run `leaks snapshot NAME` now, and `leaks diff NAME` at a later stop")


def _core(session: Session, path: str) -> Session:
    from findleaks.target.core import open_core

    progress = session.report_progress
    made = Session(open_core(path, progress=progress), progress=session.progress)
    made.pool_file = session.pool_file
    made.use_debug_types(session.debug_types)
    return made
