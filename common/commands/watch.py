"""`watch`: the command that follows what grows in a running process."""

from __future__ import annotations

import argparse
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Optional

from findleaks import __version__
from findleaks.arg_types import parse_seconds
from findleaks.commands import Invocation, command, load, parser
from findleaks.commands.diff import Comparison
from findleaks.commands.diff_text import ROWS, duration
from findleaks.commands.limits import add_limit
from findleaks.commands.snapshot import destination
from findleaks.commands.taking import Ended, every, take
from findleaks.errors import UsageError
from findleaks.formatting import counted, printable, size, wrapped
from findleaks.history.growth import RANKED
from findleaks.history.series import Thinned, only
from findleaks.history.snapshot import Snapshot
from findleaks.history.store import save
from findleaks.session import Session

EVERY = 5.0
"""Seconds between two moments by default."""
COMPARED = RANKED | {"total"}
"""Sections of figures that are kept of a moment."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--every", metavar="SECONDS", type=parse_seconds, default=EVERY, help=f"how often ({EVERY:.0f})")
    parser.add_argument("--for", metavar="SECONDS", dest="seconds", type=parse_seconds, help="end after that time")
    parser.add_argument("-o", "--output", metavar="FOLDER", default="", help="keep each moment there, as `snapshot --every` does")
    add_limit(parser, "rows", ROWS)
    parser.set_defaults(name=None)  # of the files: the program's


class Watched(Comparison):
    """Result of `watch`: what grew up to now. `ended`: why there will be no further one; None while
    it goes on."""

    command, least = "watch", 1

    def __init__(self, snapshots: Sequence[Snapshot], args: argparse.Namespace, taken: int, ended: Optional[str] = None) -> None:
        options = parser(load("diff"), "findleaks").parse_args([])
        options.limit = args.limit
        super().__init__(snapshots, options)
        self.taken, self.every, self.folder = taken, args.every, args.output
        self.ended = ended if ended is None else printable(ended)

    def json(self) -> Iterable[Mapping[str, object]]:
        if len(self.growth.snapshots) > 1 or self.ended:
            for item in super().json():
                yield {**item, "ended": self.ended}

    def text(self, width: int, invocation: Invocation) -> Iterator[str]:
        first, last = self.growth.snapshots[0], self.growth.snapshots[-1]
        total, name = last.total(), last.identity.program or "the program"
        head = f"{last.name}: {name}, pid {last.identity.pid}: {size(total.bytes or 0)} {total.name}, {counted(self.taken, 'moment')}"
        head += f" since {first.name}" if self.taken > 1 else ""
        yield from wrapped(head + (f", kept in {self.folder}" if self.folder else ""), width)
        if len(self.growth.snapshots) > 1:
            yield from super().text(width, invocation)
        elif not self.ended:
            yield f"  the first comparison follows in {duration(self.every)}"
        if self.ended:
            yield f"  {self.ended}"
        yield ""


@command(arguments=_arguments)
def watch(session: Session, args: argparse.Namespace) -> Generator[Watched, None, None]:
    """Follow what grows in a running process: a moment is taken at an interval, as `snapshot` takes
    it, and compared with all before, as `diff` does. On a terminal the table is redrawn in place;
    `q` or Ctrl-C ends it. Elsewhere a table follows each interval, and with --json an object.

    The process is stopped only while each moment is copied, and runs on. Moments are kept in
    memory, thinned out when they are many; -o keeps all of them as files."""
    if session.kept is not None:
        process = f"--pid {session.target.pid}" if session.target.live else "--pid PID"
        raise UsageError(f"watch needs a process that runs: detach the debugger, and type in a shell: findleaks watch {process}")
    if session.reopen is None:
        raise UsageError("watch needs a process that runs, not a core: `findleaks watch --pid PID`, or `findleaks diff` of several cores")
    kept, taken = Thinned(), 0
    try:
        for moment in every(session, args.every, lasting=args.seconds or float("inf")):
            one = take(moment, time.strftime("%H:%M:%S"))
            taken += 1
            if args.output:
                save(one, destination(args, one.identity.program, one.identity.pid, one.clock.time, taken), __version__)
            kept.add(only(one, COMPARED))
            yield Watched(kept.snapshots, args, taken)
    except Ended as reason:
        yield Watched(kept.snapshots, args, taken, str(reason))
