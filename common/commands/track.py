"""`track`: the command that records where a running process allocates, and what becomes of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from typing import NamedTuple, Optional

from findleaks.answers.sites import native_frame
from findleaks.arg_types import SizeRange, parse_seconds, parse_size, parse_size_range
from findleaks.audit.owner_tree import build_owner_tree
from findleaks.commands import command
from findleaks.commands.frames import add_stack_options
from findleaks.commands.limits import first
from findleaks.commands.output import STACKS as FILES
from findleaks.commands.output import add_output, output_format
from findleaks.commands.result import Plain
from findleaks.commands.track_text import STACKS, folded, text
from findleaks.errors import TargetError, UsageError
from findleaks.formatting import number, printable
from findleaks.injection.stub.stub_removal import remove_leftover_stubs
from findleaks.injection.stub.traced_process import TracedProcess
from findleaks.session import Session
from findleaks.target.base import Target
from findleaks.target.control import InjectionHost
from findleaks.target.live import LiveTarget
from findleaks.tracking.merging import Entry, merge_stacks
from findleaks.tracking.record_table import MOST_BYTES, Sampling
from findleaks.tracking.sites import Recorded, Site, name_holders, read_records, sites
from findleaks.tracking.tracker import Span, Tracker
from findleaks.tracking.unseen import Reason, reasons

TALLIES = ("allocated", "freed", "held", "possible", "lost")
EXAMPLES = 3  # lost blocks whose addresses are printed
SLACK = 16  # bytes by which a block may be larger than was asked for, at least; or a quarter of it


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--size", metavar="A-B", default="", help="only blocks of this size, requested or usable (as `find` shows it): 48, 16-64, 1k-"
    )
    parser.add_argument("--sample", metavar="BYTES", default="", help="record one in so many bytes, at random; figures are estimates (≈)")
    parser.add_argument("--for", metavar="SECONDS", dest="seconds", type=parse_seconds, default=0.0, help="end after that time")
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
    sizes = parse_size_range(args.size) if args.size else None
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
            if session.reopen is not None:  # what follows reads a copy
                tracker.remove()
            with tracker.running.rules.lock:
                assert tracker.names is not None
                found = sites(moment, recorded, sampling, sizes, tracker.names)
            holding = [site for site in found if site.blocks]
            if holding:
                name_holders(moment, holding, build_owner_tree(moment))
            modules = {hook.module for hook in tracker.hooks}
            why = [] if found else reasons(moment, recorded.records, sizes, sampling, tracker.probe, span, modules)
            moment.done()
            tracker.remove()
            all_notes = [*notes, *tracker.notes, *tracker.names.warnings]
            result = _result(moment, args, Found(found, merge_stacks(found), why), recorded, span, all_notes, host.pid)
            if form:
                from findleaks.commands.track_file import write

                write(moment, result, found, args.output, form, any(record.mean for record in recorded.records))
            yield result


def _of(span: Span) -> str:
    return f" ({span.outcome.text})" if span.outcome.text else ""


def _sampling(sizes: Optional[SizeRange], sample: str) -> Sampling:
    """Which blocks to record. Sizes may be usable ones, which are at least those requested."""
    mean = parse_size(sample) if sample else 0
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
    reopen: Optional[Callable[[], Session]] = session.reopen
    if reopen is None:
        made = Session(host.opened())
        made.progress = session.progress
        return made
    assert isinstance(host, TracedProcess)
    host.release()
    return reopen()


class Found(NamedTuple):
    """Stacks, also merged to entries; without any, the reasons."""

    sites: list[Site]
    entries: list[Entry]
    reasons: list[Reason]


def _result(moment: Session, args: argparse.Namespace, found: Found, recorded: Recorded, span: Span, notes: list[str], pid: int) -> Plain:
    estimated = any(record.mean for record in recorded.records)
    numbers = {id(site): number for number, entry in enumerate(found.entries, 1) for site in entry.sites}
    body = {
        "pid": pid,
        "seconds": round(span.seconds, 3),
        "end": span.outcome.why,
        "recorded": sum(site.records for site in found.sites),
        "not_recorded": recorded.missed,
        "estimated": estimated,
        "totals": {name: _total(found.sites, name) for name in TALLIES},
        "entries": [_entry_json(entry) for entry in first(found.entries, args.limit)],
        "stacks": [{"entry": numbers[id(site)], **_json(site)} for site in first(found.sites, args.limit)],
        "reasons": [reason.json() for reason in found.reasons],
    }
    if recorded.missed:
        notes.append(f"{number(recorded.missed)} further blocks were not recorded, as the table was full: --size or --sample records fewer")
    write = partial(folded, found.sites) if args.folded else partial(text, found.entries, found.reasons, body, args)
    return Plain(moment, "track", body, write, further=[printable(note, 600) for note in notes])


def _total(found: list[Site], name: str) -> dict[str, int]:
    tallies = [getattr(site, name) for site in found]
    return {"blocks": round(sum(one.blocks for one in tallies)), "bytes": round(sum(one.bytes for one in tallies))}


def _entry_json(entry: Entry) -> dict[str, object]:
    """An entry's sums; `function` allocates, and `frames` are those that all of its stacks have."""
    return {
        "function": entry.key.function or None if entry.key is not None else None,
        "module": entry.key.module or None if entry.key is not None else None,
        "stacks": len(entry.sites),
        "frames": [native_frame(frame).to_json() for frame in entry.frames],
        **{name: getattr(entry.total, name).json() for name in TALLIES},
    }


def _json(site: Site) -> dict[str, object]:
    return {
        "frames": [native_frame(frame).to_json() for frame in site.frames],
        "complete": not site.end,
        **{name: getattr(site, name).json() for name in TALLIES},
        "holders": [{"name": label, "blocks": count} for label, count in site.holders],
        "examples": [hex(address) for address in site.examples[:EXAMPLES]],
    }
