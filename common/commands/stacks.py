"""`stacks`: the command that groups threads by identical stacks."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence

from findleaks.commands import SCHEMA, Invocation, command
from findleaks.commands.frames import add_stack_options, frame_json
from findleaks.commands.limits import first
from findleaks.commands.result import warning_lines
from findleaks.formatting import counted, number, printable, some
from findleaks.session import Session
from findleaks.unwind.stacks import NamedFrame, Stack, filter_stacks, group_threads, without_parameters


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--function", metavar="FUNCTION", default="", help="only stacks that this function is on; * and ? allowed")
    parser.add_argument("-m", "--module", metavar="MODULE", default="", help="only stacks with a frame in this file: libuv.so.1, node")
    parser.add_argument(
        "--not-under", metavar="FUNCTION", action="append", default=[], help="only stacks that this one is not on; may be given again"
    )
    add_stack_options(parser, 0)


class Stacks:
    """Result of `stacks`."""

    status = 0

    def __init__(self, session: Session, args: argparse.Namespace) -> None:
        every = group_threads(session.target)
        self.threads = sum(len(stack.threads) for stack in every)
        self.stacks = filter_stacks(every, args.function, args.module, args.not_under)
        self.all = len(every)
        self.folded, self.frames, self.limit = args.folded, args.frames, args.limit
        self.names = session.target.thread_names()
        self.warnings = [printable(warning, 600) for warning in session.target.warnings]
        cut = sum(len(stack.threads) for stack in every if stack.end)
        if cut:
            reasons = list(dict.fromkeys(stack.end for stack in every if stack.end))
            self.warnings.append(f"{cut} of {self.threads} stacks do not reach their beginning: {some(reasons)}; filters see what is there")

    def json(self) -> Iterable[Mapping[str, object]]:
        body = [
            {
                "count": len(stack.threads),
                "threads": stack.threads,
                "names": [self.names.get(tid) for tid in stack.threads],
                "frames": [frame_json(frame) for frame in stack.frames],
                "complete": not stack.end,
            }
            for stack in first(self.stacks, self.limit)
        ]
        return [{"schema": SCHEMA, "command": "stacks", "threads": self.threads, "stacks": body, "warnings": self.warnings}]

    def text(self, width: int, invocation: Invocation) -> Iterator[str]:
        if self.folded:
            yield from folded(first(self.stacks, self.limit))
            return
        matching = sum(len(stack.threads) for stack in self.stacks)
        if len(self.stacks) == self.all:
            yield f"{counted(matching, 'thread')} in {counted(self.all, 'stack')}"
        else:
            yield f"{number(matching)} of {counted(self.threads, 'thread')}, in {number(len(self.stacks))} of {counted(self.all, 'stack')}"
        listed = first(self.stacks, self.limit)
        for stack in listed:
            yield ""
            yield f"  {counted(len(stack.threads), 'thread')}: {some([self._who(tid) for tid in stack.threads], 8)}"
            shown = stack.frames[: self.frames or None]
            yield from (f"    {line(frame, width - 4)}" for frame in shown)
            if len(shown) < len(stack.frames):
                yield f"    … {len(stack.frames) - len(shown)} more (--frames 0)"
            if stack.end:
                yield f"    … {stack.end}"
        if len(listed) < len(self.stacks):
            yield ""
            yield f"  … {counted(len(self.stacks) - len(listed), 'more stack')} (--limit 0)"
        yield from warning_lines(self.warnings, width)

    def _who(self, tid: int) -> str:
        """For example "4711 (worker)". Only "4711" if the name is not known, or if all threads have
        the same."""
        name = self.names.get(tid) if len(set(self.names.values())) > 1 else None
        return f"{tid} ({printable(name, 20)})" if name else str(tid)


def folded(stacks: Sequence[Stack]) -> Iterator[str]:
    """Brendan Gregg's folded stacks: functions, the outermost first, then the number of threads."""
    for stack in stacks:
        labels = [frame.function or frame.label() for frame in reversed(stack.frames)]
        yield f"{';'.join(printable(label).replace(';', ':') for label in labels)} {len(stack.threads)}"


def line(frame: NamedFrame, width: int) -> str:
    """One frame, with its file last if it has one; without parameters if the line is too long."""
    label = printable(frame.label(), 2000)
    if len(label) > width - len(frame.module) - 3 and frame.function:
        label = printable(frame._replace(function=without_parameters(frame.function)).label(), 2000)
    module = printable(frame.module, 40)
    if not frame.function or not module:
        return label[:width]
    available = max(20, width - len(module) - 3)
    return f"{label if len(label) <= available else label[: available - 1] + '…'}  [{module}]"


@command(arguments=_arguments)
def stacks(session: Session, args: argparse.Namespace) -> Stacks:
    """Group the threads by identical stacks, those of most threads first. A function is named in
    full, without its parameters, or by its last part: -c MakeCallback finds node::MakeCallback(…).
    Stacks go through code made at run time (V8's, by its frame pointers) up to the function the
    thread began in; needs no heap and no debug information."""
    return Stacks(session, args)
