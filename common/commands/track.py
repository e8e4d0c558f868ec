"""`track`: the command that records where a running process allocates, and what becomes of it."""

from __future__ import annotations

import argparse
from collections.abc import Generator
from contextlib import closing
from functools import partial
from typing import Optional

from findleaks.arg_types import SizeRange, size_range, size_word
from findleaks.audit.holders import holders
from findleaks.commands import command
from findleaks.commands.frames import add_stack_options
from findleaks.commands.options import add_seconds
from findleaks.commands.output import STACKS as FILES
from findleaks.commands.output import add_output, output_format
from findleaks.commands.result import Plain
from findleaks.commands.track_text import STACKS, folded, text
from findleaks.errors import TargetError, UsageError
from findleaks.formatting import number
from findleaks.injection.stub.stub_removal import remove_leftover_stubs
from findleaks.injection.stub.traced_process import TracedProcess
from findleaks.session import Session
from findleaks.session.host import LiveHost
from findleaks.target.base import Target
from findleaks.target.control import InjectionHost
from findleaks.target.live import LiveTarget
from findleaks.tracking.merging import merge_stacks
from findleaks.tracking.record_table import MOST_BYTES, Sampling
from findleaks.tracking.sites import Recorded, find_sites, name_holders, read_records
from findleaks.tracking.tracked import FoundSites, tracked_blocks
from findleaks.tracking.tracker import Recording, Tracker
from findleaks.tracking.unseen import find_reasons

SLACK = 16  # bytes by which a block may be larger than was asked for, at least; or a quarter of it


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--size", metavar="A-B", default="", help="only blocks of this size, requested or usable (as `find` shows it): 48, 16-64, 1k-"
    )
    parser.add_argument("--sample", metavar="BYTES", default="", help="record one in so many bytes, at random; figures are estimates (≈)")
    add_seconds(parser)
    parser.add_argument("--until-full", action="store_true", help="end when no more blocks can be recorded")
    add_stack_options(parser, STACKS)
    add_output(parser, "all stacks", FILES)


@command(arguments=_arguments)
def track(session: Session, args: argparse.Namespace) -> Generator[Plain, None, None]:
    """Record the blocks that a running process allocates, each with its stack, until --for,
    --until-full or Ctrl-C; then read the heap, and say what became of them: freed, held (and who
    holds them), or lost. The process needs no preparation, and runs on afterwards.

    Code is put in front of malloc, free, operator new and the like of its allocators, and taken out
    at the end; the process is stopped for a moment then, and another at the beginning. Needs a live
    process on x86-64; in LLDB, `detach`, and use the command line."""
    sizes = size_range(args.size) if args.size else None
    sampling = _sampling(sizes, args.sample)
    if args.json and args.folded:
        raise UsageError("--json or --folded, not both")
    form = output_format(args, FILES)
    host = _host(session.target)
    notes = remove_leftover_stubs(session.target, host)
    with closing(Tracker(host, sampling, not args.no_lines)) as tracker:
        tracker.start(args.until_full, args.seconds)
        span = tracker.wait(args.seconds)
        if span.outcome.why == "ended":
            raise TargetError(f"pid {host.pid}: the process has ended{_of(span)}: what it held cannot be read any more")
        with closing(_moment(session, host)) as moment:
            recorded = read_records(moment, tracker.running.layout)
            if isinstance(session.host, LiveHost):  # what follows reads a copy
                tracker.remove()
            with tracker.running.rules.lock:
                assert tracker.names is not None
                found = find_sites(moment, recorded, sampling, sizes, tracker.names)
            holding = [site for site in found if site.blocks]
            if holding:
                name_holders(moment, holding, holders(moment))
            modules = {hook.module for hook in tracker.hooks}
            why = [] if found else find_reasons(moment, recorded.records, sizes, sampling, tracker.probe, span, modules)
            moment.done()
            tracker.remove()
            all_notes = [*notes, *tracker.notes, *tracker.names.warnings]
            result = _result(moment, args, FoundSites(found, merge_stacks(found), why), recorded, span, all_notes, host.pid)
            if form:
                from findleaks.commands.track_file import write

                write(moment, result, found, args.output, form, any(record.mean for record in recorded.records))
            yield result


def _of(span: Recording) -> str:
    return f" ({span.outcome.text})" if span.outcome.text else ""


def _sampling(sizes: Optional[SizeRange], sample: str) -> Sampling:
    """Which blocks to record. Sizes may be usable ones, which are at least those requested."""
    mean = size_word(sample) if sample else 0
    if sample and not 1 <= mean <= 1 << 30:
        raise UsageError(f"--sample {sample}: write 1 to 1G")
    if sizes is None:
        return Sampling(mean=mean, by_bytes=bool(mean))
    least = max(0, sizes.low - max(SLACK + 8, sizes.low // 4))
    return Sampling(least, min(sizes.high, MOST_BYTES), mean, bool(mean))


def _host(target: Target) -> InjectionHost:
    """Who can change the process. TargetError for a core, and inside debuggers that cannot."""
    if not target.live:
        raise TargetError("track needs a process that runs, which a core does not")
    host = target.injection_host()
    if host is not None:
        return host
    if type(target) is LiveTarget:
        assert target.pid is not None
        return TracedProcess(target.pid)
    where = f"findleaks track --pid {target.pid}" if target.pid is not None else "findleaks track --pid PID"
    raise TargetError(f"track works in GDB and on the command line: `detach`, then run `{where}` in a shell of the process's machine")


def _moment(session: Session, host: InjectionHost) -> Session:
    """The process as it is now: a copy on the command line, where it runs on.

    That is a stop of its own, before the one in which the stubs are taken out: the copy has a
    thread that traces the process, as only one thread can; and threads that are in a stub have to
    run before it can be taken out."""
    if not isinstance(session.host, LiveHost):
        made = Session(host.opened())
        made.progress = session.progress
        return made
    assert isinstance(host, TracedProcess)
    host.release()
    return session.host.reopen()


def _result(
    moment: Session, args: argparse.Namespace, found: FoundSites, recorded: Recorded, span: Recording, notes: list[str], pid: int
) -> Plain:
    body = tracked_blocks(found, recorded, span, pid, args.limit)
    if recorded.missed:
        notes.append(f"{number(recorded.missed)} further blocks were not recorded, as the table was full: --size or --sample records fewer")
    write = partial(folded, found.sites) if args.folded else partial(text, found.entries, body, args)
    return Plain(moment, "track", body, write, further=notes)
