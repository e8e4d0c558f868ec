"""`count`: the calls of a function in a process that runs, by their stacks."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Optional, Union

from findleaks.arg_types import count_word
from findleaks.commands import SCHEMA, Door, command
from findleaks.commands.limits import add_limit, first, in_text
from findleaks.counting.base import Process
from findleaks.counting.counter import Counter, Table, Wanted
from findleaks.counting.patcher import Injectable
from findleaks.counting.stub_counter import Injected
from findleaks.counting.stub_removal import tidied
from findleaks.errors import TargetError, UsageError
from findleaks.formatting import number, printable
from findleaks.runtimes.rules import RULES, rule
from findleaks.session import Session
from findleaks.unwind.stacks import NamedFrame, without_parameters

STACKS, FRAMES = 10, 40


def _seconds(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0.05 <= value <= 1e8:
        raise argparse.ArgumentTypeError(f"{word[:40]!r} is no number of seconds: write 0.05 to 100000000")
    return value


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("function", metavar="FUNCTION", help="its name as in `stacks`: whole, or its last part; * and ? allowed; or 0x…")
    parser.add_argument("--outside-scope", metavar="RULE", default="", help=f"only calls made in no scope of this kind: {', '.join(RULES)}")
    parser.add_argument("--enter", metavar="FUNCTION", action="append", default=[], help="a rule of your own: what opens a scope …")
    parser.add_argument("--leave", metavar="FUNCTION", action="append", default=[], help="… and what closes it, by the same thread")
    parser.add_argument("--when", metavar="EXPR", default="", help="only calls where the debugger's expression is not 0: '$rdi > 4096'")
    parser.add_argument("--every", metavar="SECONDS", type=_seconds, default=0.0, help="print the table that often as it grows")
    parser.add_argument("--for", metavar="SECONDS", dest="seconds", type=_seconds, default=0.0, help="end after that time")
    parser.add_argument("--events", metavar="N", type=count_word, default=0, help="end after that many calls of FUNCTION")
    parser.add_argument("--inject", action="store_true", help="count by code put into the process: 100 times faster; x86-64, GDB")
    parser.add_argument("--folded", action="store_true", help="a line a stack, outermost first, for flame graphs: main;work;read 3")
    add_limit(parser, "stacks", STACKS)
    parser.add_argument("--frames", type=count_word, default=FRAMES, help=f"frames of each stack to print as text ({FRAMES}; 0: all)")


def wanted(args: argparse.Namespace) -> Wanted:
    """The words as the counter takes them; UsageError where they make no sense together."""
    scoped = bool(args.outside_scope or args.enter or args.leave)
    one = rule(args.outside_scope, args.enter, args.leave) if scoped else None
    if args.json and args.folded:
        raise UsageError("--json or --folded, not both")
    return Wanted(args.function, one, args.when, args.every, args.seconds, args.events)


class Counting:
    """What `count` finds while the process runs: the lines come as they are made."""

    status = 0

    def __init__(self, counter: Union[Counter, Injected], pid: int, args: argparse.Namespace, notes: Sequence[str] = ()) -> None:
        self._args, self._notes = args, notes
        self._counter = counter
        self._pid = pid
        self._counter.prepare()

    def json(self) -> Iterator[Mapping[str, object]]:
        for table in self._counter.tables():
            yield self._json(table)

    def text(self, width: int, door: Door) -> Iterator[str]:
        for number_of, table in enumerate(self._counter.tables()):
            if self._args.folded:
                if table.last:
                    yield from _folded(table)
                continue
            if number_of:
                yield ""
            yield from self._text(table, width)
            if table.last:
                yield from self._end(table, door)

    def _text(self, table: Table, width: int) -> Iterator[str]:
        made = "made outside a scope" if self._counter.wanted.rule is not None else "match" if self._args.when else ""
        calls = f"{number(table.events)} call{'' if table.events == 1 else 's'}"
        stacks = f"{number(len(table.stacks))} stack{'' if len(table.stacks) == 1 else 's'}"
        yield f"{table.seconds:.1f} s: " + (f"{number(table.matched)} of {calls} {made}, {stacks}" if made else f"{calls}, {stacks}")
        shown = first(table.stacks, in_text(self._args.limit, STACKS))
        wide = max((len(number(stack.count)) for stack in shown), default=0)
        for stack in shown:
            yield ""
            frames = stack.frames[: self._args.frames] if self._args.frames else stack.frames
            for place, frame in enumerate(frames):
                yield f"  {number(stack.count) if not place else '':>{wide}}  {_label(frame, width - wide - 4)}"
            if len(frames) < len(stack.frames):
                yield f"  {'':>{wide}}  … {number(len(stack.frames) - len(frames))} more (--frames 0)"
            if stack.end:
                yield f"  {'':>{wide}}  (not whole: {stack.end})"
        if len(shown) < len(table.stacks):
            rest = table.stacks[len(shown) :]
            of = number(sum(stack.count for stack in rest))
            yield f"  {number(len(rest))} more stack{'' if len(rest) == 1 else 's'} of {of} calls (--limit 0)"
        for line in _lost(table):
            yield f"  {line}"

    def _end(self, table: Table, door: Door) -> Iterator[str]:
        yield ""
        why = {"interrupt": "interrupted", "ended": f"process {self._pid} has ended"}.get(table.outcome.why, "stopped")
        if table.outcome.text:
            why += f" ({table.outcome.text})"
        for note in (*self._notes, *table.notes):
            yield f"  {printable(note, 600)}"
        if table.outcome.why == "ended":
            yield f"  {why}: this is what was counted."
        elif self._args.inject:
            left = "the rest is out of it" if any("stay" in note or "left" in note for note in table.notes) else "nothing left in it"
            yield f"  {why}; " + (f"{self._pid} runs on, {left}." if door.target else f"{left}. The process stands, as before.")
        elif door.target:
            yield f"  {why}; {self._pid} runs on, nothing left in it."
        else:
            yield f"  {why}; the breakpoints are gone. The process stands, as before: `continue`, or `detach`."

    def _json(self, table: Table) -> dict[str, object]:
        counter = self._counter
        body = [
            {"count": stack.count, "frames": [_frame(frame) for frame in stack.frames], "complete": not stack.end}
            for stack in first(table.stacks, self._args.limit)
        ]
        return {
            "schema": SCHEMA,
            "command": "count",
            "functions": [{"address": hex(one.address), "function": one.name, "module": one.module} for one in counter.functions],
            "engine": "inject" if self._args.inject else "breakpoints",
            "events": table.events,
            "matched": table.matched,
            "unnamed": table.unnamed,
            "unsure": table.unsure,
            "seconds": round(table.seconds, 3),
            "last": table.last,
            "end": table.outcome.why if table.last else None,
            "why": printable(table.outcome.text, 600) or None,
            "stacks": body,
            "warnings": [*self._notes, *table.notes, *_lost(table)],
        }


def _label(frame: NamedFrame, width: int) -> str:
    label = printable(frame._replace(function=without_parameters(frame.function) or frame.function).label(), 2000)
    return label if len(label) <= width else label[: width - 1] + "…"


def _frame(frame: NamedFrame) -> dict[str, object]:
    return {"address": hex(frame.address), "function": frame.function or None, "offset": frame.offset, "module": frame.module or None}


def _folded(table: Table) -> Iterator[str]:
    lines: dict[str, int] = {}
    for stack in table.stacks:
        line = ";".join(_name(frame) for frame in reversed(stack.frames))
        lines[line] = lines.get(line, 0) + stack.count
    for line, count in sorted(lines.items(), key=lambda item: -item[1]):
        yield f"{line} {count}"


def _name(frame: NamedFrame) -> str:
    name = without_parameters(frame.function) if frame.function else frame.module or hex(frame.address)
    return printable(name, 2000).replace(";", ",")


def _lost(table: Table) -> Iterator[str]:
    if table.unnamed:
        yield f"{number(table.unnamed)} call{' has' if table.unnamed == 1 else 's have'} no stack here: the table of stacks is full"
    if table.unsure:
        calls, scope = (" was", "it was") if table.unsure == 1 else ("s were", "they were")
        yield f"{number(table.unsure)} call{calls} not judged: nothing said in time whether {scope} outside a scope"


def injecting(session: Session) -> Injectable:
    """The door's way into the process; TargetError where there is none."""
    made = _host(session)
    if made is None:
        raise TargetError("count --inject needs GDB: run it there, or `findleaks count --inject … --pid PID`; or leave it out")
    return made


def _host(session: Session) -> Optional[Injectable]:
    make = getattr(session.target, "injecting", None)
    made: Optional[Injectable] = make() if make is not None else None
    return made


def counting(session: Session) -> Process:
    """The door's breakpoints; TargetError where there can be none."""
    if not session.target.live:
        raise TargetError("count needs a process that runs, a core does not: `stacks` and `scopes` tell what a core can")
    make = getattr(session.target, "counting", None)
    made: Optional[Process] = make() if make is not None else None
    if made is None:
        raise TargetError("count works on processes of this machine only: run `findleaks count … --pid PID` over there")
    return made


@command(arguments=_arguments)
def count(session: Session, args: argparse.Namespace) -> Counting:
    """Count the calls of a function while the process runs, by their stacks, until --for, --events or Ctrl-C; it runs on afterwards.
    With --outside-scope only calls that the thread makes in no scope: for v8 those where no handle scope is open but the one that
    node::Start holds, so that the handles made pile up for ever. The rule python-gil
    reads who holds the lock; the others count scopes from when counting began.

    Every call stops the process for a fraction of a millisecond. With --inject it is not stopped: a jump at the function's beginning
    leads to code that counts, put into the process and taken out at the end. Needs a live process, and the command line needs GDB."""
    process = counting(session)
    notes = tidied(session.target, _host(session))
    if args.inject:
        host = injecting(session)
        return Counting(Injected(host, wanted(args)), host.pid, args, notes)
    return Counting(Counter(process, wanted(args)), process.pid, args, notes)
