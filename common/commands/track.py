"""The `track` command: record where a running process allocates blocks, and what becomes of
them."""

from __future__ import annotations

import argparse
from collections.abc import Generator
from contextlib import closing
from functools import partial
from typing import Optional

from findleaks.arg_types import SizeRange, parse_size, parse_size_range
from findleaks.audit.owner_tree import build_owner_tree
from findleaks.commands import command
from findleaks.commands.frames import add_stack_options
from findleaks.commands.options import add_seconds
from findleaks.commands.output import STACKS as FILES
from findleaks.commands.output import add_output, output_format
from findleaks.commands.result import Plain
from findleaks.commands.track_text import STACKS, fold_stacks, text
from findleaks.errors import TargetError, UsageError
from findleaks.formatting import number
from findleaks.injection.stub.stub_removal import remove_leftover_stubs
from findleaks.injection.stub.traced_process import TracedProcess
from findleaks.session import Session
from findleaks.session.host import LiveHost
from findleaks.target.base import Target
from findleaks.target.control import InjectionHost
from findleaks.target.live import LiveTarget
from findleaks.tracking.hooks import BLOCKS, MAPPINGS
from findleaks.tracking.mappings import find_mapping_sites
from findleaks.tracking.merging import merge_stacks
from findleaks.tracking.record_table import MOST_BYTES, Sampling
from findleaks.tracking.sites import Recorded, find_sites, name_holders, read_records
from findleaks.tracking.tracked import FoundSites, tracked_blocks
from findleaks.tracking.tracker import Recording, Tracker
from findleaks.tracking.unseen import find_reasons

# A block may exceed the requested size by at least this many bytes, or by a quarter of its size.
SLACK = 16


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--size", metavar="A-B", default="", help="only blocks of this size, requested or usable (as in `find`): 48, 16-64, 1k-"
    )
    parser.add_argument(
        "--sample",
        metavar="BYTES",
        default="",
        help="record a random sample, on average one in this number of bytes; figures are estimates (≈)",
    )
    parser.add_argument("--mmap", action="store_true", help="record mappings (mmap, mremap, sbrk, munmap) instead of blocks")
    add_seconds(parser)
    parser.add_argument("--until-full", action="store_true", help="end when no more blocks can be recorded")
    add_stack_options(parser, STACKS)
    add_output(parser, "all stacks", FILES)


@command(arguments=_arguments)
def track(session: Session, args: argparse.Namespace) -> Generator[Plain, None, None]:
    """Record the blocks that a running process allocates, with their call stacks, until --for,
    --until-full or Ctrl-C. Then read the heap, and report what became of the blocks: freed,
    reachable (with the roots that retain them), or leaked. The process needs no preparation, and
    keeps running afterwards.

    findleaks injects code in front of malloc, free, operator new and similar functions of the
    process's allocators, and removes it at the end. With --mmap, these functions are mmap, mremap,
    sbrk and munmap of libc, and mappings are recorded instead of blocks. The process is stopped
    briefly at the beginning and at the end. `track` needs a live process on x86-64. In LLDB,
    `detach`, and use the command line."""
    sizes = parse_size_range(args.size) if args.size else None
    # Mappings of all sizes are recorded, because any of them may replace a part of a mapping of the
    # wanted size.
    sampling = _sampling(None if args.mmap else sizes, args.sample)
    if args.json and args.folded:
        raise UsageError("--json or --folded, not both")
    if args.mmap and args.sample:
        raise UsageError("--mmap or --sample, not both: every mapping is recorded")
    form = output_format(args, FILES)
    host = _host(session.target)
    notes = remove_leftover_stubs(session.target, host)
    with closing(Tracker(host, sampling, not args.no_lines, MAPPINGS if args.mmap else BLOCKS)) as tracker:
        tracker.start(args.until_full, args.seconds)
        span = tracker.wait(args.seconds)
        if span.outcome.why == "ended":
            raise TargetError(f"pid {host.pid}: the process has ended{_of(span)}: its heap cannot be read any more")
        with closing(_copied_session(session, host)) as copied:
            recorded = read_records(copied, tracker.running.layout, tracker.taken)
            # The following steps read a copy of the process.
            if isinstance(session.host, LiveHost):
                tracker.remove()
            with tracker.running.rules.lock:
                assert tracker.names is not None
                find = find_mapping_sites if args.mmap else find_sites
                found = find(copied, recorded, sampling, sizes, tracker.names)
            holding = [site for site in found if site.blocks]
            if holding:
                name_holders(copied, holding, build_owner_tree(copied))
            modules = {hook.module for hook in tracker.hooks}
            why = [] if found else find_reasons(copied, recorded.records, sizes, sampling, tracker.probe, span, modules, args.mmap)
            copied.end_progress()
            tracker.remove()
            all_notes = [*notes, *tracker.notes, *tracker.names.warnings]
            result = _result(copied, args, FoundSites(found, merge_stacks(found), why), recorded, span, all_notes, host.pid)
            if form:
                from findleaks.commands.track_file import write

                write(copied, result, found, args.output, form, any(record.mean for record in recorded.records))
            yield result


def _of(span: Recording) -> str:
    return f" ({span.outcome.text})" if span.outcome.text else ""


def _sampling(sizes: Optional[SizeRange], sample: str) -> Sampling:
    """Return the rule that selects the blocks to record. `sizes` may be usable sizes, which are not
    smaller than requested sizes."""
    mean = parse_size(sample) if sample else 0
    if sample and not 1 <= mean <= 1 << 30:
        raise UsageError(f"--sample {sample}: write 1 to 1G")
    if sizes is None:
        return Sampling(mean=mean, by_bytes=bool(mean))
    least = max(0, sizes.low - max(SLACK + 8, sizes.low // 4))
    return Sampling(least, min(sizes.high, MOST_BYTES), mean, bool(mean))


def _host(target: Target) -> InjectionHost:
    """Return the interface that can modify the process. Raises TargetError if the target is a core,
    or is in a debugger that cannot modify it."""
    if not target.live:
        raise TargetError("track needs a running process, not a core: `findleaks track --pid PID`")
    host = target.injection_host()
    if host is not None:
        return host
    if type(target) is LiveTarget:
        assert target.pid is not None
        return TracedProcess(target.pid)
    where = f"findleaks track --pid {target.pid}" if target.pid is not None else "findleaks track --pid PID"
    raise TargetError(f"track works in GDB and on the command line: `detach`, then run `{where}` in a shell of the process's machine")


def _copied_session(session: Session, host: InjectionHost) -> Session:
    """Return a session of the process as it is now. On the command line, it is a copy, and the
    process keeps running.

    The copy needs a separate stop, before the stop that removes the stubs. Only one thread can
    trace the process, and during the copy that is the copying thread. Also, threads inside a stub
    must leave the stub before it can be removed."""
    if not isinstance(session.host, LiveHost):
        made = Session(host.open_target())
        made.progress = session.progress
        return made
    assert isinstance(host, TracedProcess)
    host.release()
    return session.host.reopen()


def _result(
    copied: Session, args: argparse.Namespace, found: FoundSites, recorded: Recorded, span: Recording, notes: list[str], pid: int
) -> Plain:
    body = tracked_blocks(found, recorded, span, pid, args.limit, args.mmap)
    if recorded.missed:
        what = "mappings were not recorded, as the table was full"
        if not args.mmap:
            what = "blocks were not recorded, as the table was full: --size or --sample records fewer"
        notes.append(f"{number(recorded.missed)} further {what}")
    write = partial(fold_stacks, found.sites) if args.folded else partial(text, found.entries, body, args)
    return Plain(copied, "track", body, write, further=notes)
