"""The `count` command: count the calls of a function in a running process, by call stack."""

from __future__ import annotations

import argparse
from collections.abc import Generator
from contextlib import closing
from typing import Union

from findleaks.arg_types import parse_count
from findleaks.commands import command
from findleaks.commands.count_text import STACKS, CountResult
from findleaks.commands.frames import add_stack_options
from findleaks.commands.options import add_every, add_seconds
from findleaks.commands.output import STACKS as FILES
from findleaks.commands.output import add_output, output_format
from findleaks.counting.counter import Counter, CountRequest, Table
from findleaks.counting.stub_counter import Injected
from findleaks.errors import FindleaksError, TargetError, UsageError
from findleaks.injection.stub.stub_removal import remove_leftover_stubs
from findleaks.results.written import WrittenFile
from findleaks.runtimes.rules import RULES, rule
from findleaks.session import Session
from findleaks.target.base import Target
from findleaks.target.control import BreakpointHost, InjectionHost


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "function", metavar="FUNCTION", help="the function's name as in `stacks`, whole or its last part, with * and ?; or its address, 0x…"
    )
    parser.add_argument(
        "--outside-scope", metavar="RULE", default="", help=f"only calls made outside scopes of this kind: {', '.join(RULES)}"
    )
    parser.add_argument("--enter", metavar="FUNCTION", action="append", default=[], help="your own rule: the function that opens a scope …")
    parser.add_argument(
        "--leave", metavar="FUNCTION", action="append", default=[], help="… and the function that closes it, in the same thread"
    )
    parser.add_argument("--when", metavar="EXPR", default="", help="only calls where the debugger's expression is not 0: '$rdi > 4096'")
    add_every(parser, "seconds between tables")
    add_seconds(parser)
    parser.add_argument("--events", metavar="N", type=parse_count, default=0, help="end after this many calls of FUNCTION")
    parser.add_argument(
        "--inject", action="store_true", help="count with code that is injected into the process: 100 times faster; x86-64, GDB"
    )
    add_stack_options(parser, STACKS)
    add_output(parser, "all stacks, at the end,", FILES)


def list_wanted(args: argparse.Namespace) -> CountRequest:
    """Return the counter's options. Raises UsageError if the arguments contradict each other."""
    scoped = bool(args.outside_scope or args.enter or args.leave)
    one = rule(args.outside_scope, args.enter, args.leave) if scoped else None
    if args.json and args.folded:
        raise UsageError("--json or --folded, not both")
    output_format(args, FILES)
    return CountRequest(args.function, one, args.when, args.every, args.seconds, args.events, not args.no_lines)


def breakpoint_host(target: Target) -> BreakpointHost:
    """Return the debugger's interface for breakpoints. Raises TargetError if the target is a core,
    or a process on another machine."""
    if not target.live:
        raise TargetError("count needs a running process, not a core; `stacks` and `scopes` work on cores")
    host = target.breakpoint_host()
    if host is None:
        raise TargetError("count works on processes of this machine only; run `findleaks count … --pid PID` on the other machine")
    return host


def injection_host(target: Target) -> InjectionHost:
    """Return the debugger's interface for code injection. Raises TargetError if the debugger has
    none."""
    host = target.injection_host()
    if host is None:
        breakpoint_host(target)  # This call also raises TargetError if breakpoints are impossible.
        raise TargetError("count --inject needs GDB; run it there, run `findleaks count --inject … --pid PID`, or omit --inject")
    return host


@command(arguments=_arguments, check=list_wanted)
def count(session: Session, args: argparse.Namespace) -> Generator[CountResult, None, None]:
    """Count the calls of a function while the process runs, by call stack, until --for, --events or
    Ctrl-C. The process keeps running afterwards.

    --outside-scope counts only the calls that a thread makes outside scopes. The rule v8 counts
    calls while only the outermost handle scope is open (the one of node::Start): handles made there
    are never freed. The rule python-gil reads which thread holds the lock. The other rules see only
    scopes that are opened after counting has begun.

    Every call stops the process for a fraction of a millisecond. --inject avoids this: findleaks
    injects code that counts, and a jump to this code at the start of the function. It removes both
    at the end. `count` needs a live process; on the command line it also needs GDB."""
    target = session.target
    counter: Union[Counter, Injected]
    if args.inject:
        injection = injection_host(target)
        notes = remove_leftover_stubs(target, injection)
        counter = Injected(injection, list_wanted(args))
    else:
        breakpoints = breakpoint_host(target)
        notes = remove_leftover_stubs(target)
        counter = Counter(breakpoints, list_wanted(args))
    with closing(counter.tables()) as tables:
        for number, table in enumerate(tables):
            yield CountResult(
                counter, table, number, args, notes, _write_stacks(session, table, args) if table.last and args.output else None
            )


def _write_stacks(session: Session, table: Table, args: argparse.Namespace) -> Union[WrittenFile, str]:
    """Write the stacks of the last table to the file of -o. If writing fails, return the reason as
    a sentence, because the table must be printed anyway."""
    from findleaks.commands.export import of_target, write_profile
    from findleaks.commands.profiles import of_stacks

    target = session.target
    profile = of_stacks(f"Calls of {args.function}: {target.description}", "calls", [(one.frames, one.count) for one in table.stacks])
    if table.outcome.why != "ended":
        of_target(profile, target)
    try:
        return write_profile(session, profile, args.output, output_format(args, FILES))
    except FindleaksError as error:
        return str(error)
