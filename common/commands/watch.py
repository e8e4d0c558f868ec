"""The `watch` command: show what grows in a running process."""

from __future__ import annotations

import argparse
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Optional

from findleaks import __version__
from findleaks.answers.snapshots import take_snapshot
from findleaks.commands import Invocation, command
from findleaks.commands.diff import Comparison
from findleaks.commands.diff_text import ROWS, duration
from findleaks.commands.limits import add_limit
from findleaks.commands.options import add_every, add_seconds
from findleaks.commands.output import add_destination
from findleaks.commands.snapshot import destination
from findleaks.errors import UsageError
from findleaks.formatting import format_count, printable, size, wrap
from findleaks.history.growth import RANKED
from findleaks.history.series import Thinned, only
from findleaks.history.snapshot import Snapshot
from findleaks.history.store import save
from findleaks.results.growth import Watched as WatchedResult
from findleaks.session import Session
from findleaks.session.host import DebuggerHost, LiveHost
from findleaks.session.repeated_reads import Ended, read_repeatedly

EVERY = 5.0
"""Default interval between two snapshots, in seconds."""
COMPARED = RANKED | {"total"}
"""Sections of figures that `watch` stores for each snapshot."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_every(parser, "seconds between two samples", EVERY)
    add_seconds(parser)
    add_destination(parser, "all samples, as `snapshot --every` does", "DIR")
    add_limit(parser, "rows", ROWS)
    parser.set_defaults(name=None)  # The names of the files begin with the name of the program.


class Watched(Comparison):
    """The result of `watch`: what has grown so far. `ended`: why no further result will follow;
    None if one will follow."""

    command, least = "watch", 1

    def __init__(self, snapshots: Sequence[Snapshot], args: argparse.Namespace, taken: int, ended: Optional[str] = None) -> None:
        super().__init__(snapshots, args.limit)
        self.taken, self.every, self.folder = taken, args.every, args.output
        self.ended = ended if ended is None else printable(ended)

    def result(self) -> WatchedResult:
        return WatchedResult(**vars(super().result()), ended=self.ended)

    def json(self) -> Iterable[Mapping[str, object]]:
        return super().json() if len(self.growth.snapshots) > 1 or self.ended else ()

    def text(self, width: int, invocation: Invocation) -> Iterator[str]:
        first, last = self.growth.snapshots[0], self.growth.snapshots[-1]
        total, name = last.total(), last.identity.program or "the program"
        head = f"{last.name}: {name}, pid {last.identity.pid}: {size(total.bytes or 0)} {total.name}, {format_count(self.taken, 'sample')}"
        head += f" since {first.name}" if self.taken > 1 else ""
        yield from wrap(head + (f", kept in {self.folder}" if self.folder else ""), width)
        if len(self.growth.snapshots) > 1:
            yield from super().text(width, invocation)
        elif not self.ended:
            yield f"  the first comparison follows in {duration(self.every)}"
        if self.ended:
            yield f"  {self.ended}"
        yield ""


@command(arguments=_arguments)
def watch(session: Session, args: argparse.Namespace) -> Generator[Watched, None, None]:
    """Show what grows in a running process. `watch` takes a snapshot at each interval, and compares
    it with all earlier ones, as `diff` does. On a terminal the table is redrawn in place, until `q`
    or Ctrl-C. Otherwise `watch` prints a table after each interval; with --json, an object.

    The process is stopped only while it is copied. Snapshots are kept in memory, and thinned out if
    there are many; -o saves all of them as files."""
    if isinstance(session.host, DebuggerHost):
        process = f"--pid {session.target.pid}" if session.target.live else "--pid PID"
        raise UsageError(f"watch needs a running process without a debugger: detach, and type in a shell: findleaks watch {process}")
    if not isinstance(session.host, LiveHost):
        raise UsageError("watch needs a running process, not a core: `findleaks watch --pid PID`, or `findleaks diff` of several cores")
    kept, taken = Thinned(), 0
    try:
        for current in read_repeatedly(session, args.every, lasting=args.seconds or float("inf")):
            one = take_snapshot(current, time.strftime("%H:%M:%S"))
            taken += 1
            if args.output:
                save(one, destination(args, one.identity.program, one.identity.pid, one.clock.time, taken), __version__)
            kept.add(only(one, COMPARED))
            yield Watched(kept.snapshots, args, taken)
    except Ended as reason:
        yield Watched(kept.snapshots, args, taken, str(reason))
