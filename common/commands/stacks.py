"""The `stacks` command: lists the threads, grouped by identical call stacks."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from findleaks.answers.stacks import count_threads, group_stacks
from findleaks.commands import Invocation, command
from findleaks.commands.frames import add_stack_options, frame_label
from findleaks.commands.limits import first
from findleaks.commands.output import STACKS, add_output, output_format
from findleaks.commands.result import Plain
from findleaks.formatting import counted, number, printable, some
from findleaks.session import Session
from findleaks.unwind.stacks import NamedFrame, Stack


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--function", metavar="FUNCTION", default="", help="only stacks with this function; * and ? allowed")
    parser.add_argument("-m", "--module", metavar="MODULE", default="", help="only stacks with a frame in this file: libuv.so.1, node")
    parser.add_argument(
        "--not-under", metavar="FUNCTION", action="append", default=[], help="only stacks without this function; may be given again"
    )
    add_stack_options(parser, 0)
    add_output(parser, "all selected stacks", STACKS)


@command(arguments=_arguments, heapless=True)
def stacks(session: Session, args: argparse.Namespace) -> Plain:
    """List the threads, grouped by identical call stacks, most threads first. -c takes a function's
    full name without parameters, or the last part of it: -c MakeCallback finds
    node::MakeCallback(…). Stacks are unwound through code generated at run time (V8's, by its frame
    pointers) up to the function in which the thread began. `stacks` needs no heap and no debug
    information."""
    form = output_format(args, STACKS)
    answer = group_stacks(session, args.function, args.module, args.not_under, lines=not args.no_lines, limit=args.limit)
    every, found, body = answer.every, answer.found, answer.result
    names = session.target.thread_names()
    warnings = answer.warnings
    if args.folded:
        # The program that draws folded stacks would read a warning as a stack.
        result = Plain(session, "stacks", body, lambda *_: folded(first(found, args.limit)), warnings=warnings if args.json else [])
    else:
        result = Plain(session, "stacks", body, partial(_text, every, found, names, args), warnings=warnings)
    if form:
        from findleaks.commands.export import of_target, write_profile
        from findleaks.commands.profiles import of_stacks

        profile = of_stacks(f"Threads: {session.target.description}", "threads", [(one.frames, len(one.threads)) for one in found])
        result.written = write_profile(session, of_target(profile, session.target), args.output, form)
    return result


def _text(
    every: Sequence[Stack], found: Sequence[Stack], names: Mapping[int, str], args: argparse.Namespace, width: int, invocation: Invocation
) -> Iterator[str]:
    threads, all_stacks = counted(count_threads(every), "thread"), counted(len(every), "stack")
    if len(found) == len(every):
        yield f"{threads} in {all_stacks}"
    else:
        yield f"{number(count_threads(found))} of {threads}, in {number(len(found))} of {all_stacks}"
    listed = first(found, args.limit)
    for stack in listed:
        yield ""
        yield f"  {counted(len(stack.threads), 'thread')}: {some([_who(tid, names) for tid in stack.threads], 8)}"
        shown = first(stack.frames, args.frames)
        yield from (f"    {line(frame, width - 4)}" for frame in shown)
        if len(shown) < len(stack.frames):
            yield f"    … {len(stack.frames) - len(shown)} more (--frames 0)"
        if stack.end:
            yield f"    … {stack.end}"
    if len(listed) < len(found):
        yield ""
        yield f"  … {counted(len(found) - len(listed), 'more stack')} (--limit 0)"


def _who(tid: int, names: Mapping[int, str]) -> str:
    """A thread: "4711 (worker)"; only "4711" if the name is not known, or is the same for all
    threads."""
    name = names.get(tid) if len(set(names.values())) > 1 else None
    return f"{tid} ({printable(name, 20)})" if name else str(tid)


def folded(stacks: Sequence[Stack]) -> Iterator[str]:
    """Folded stacks (Brendan Gregg): functions, outermost first, then the number of threads."""
    for stack in stacks:
        labels = [frame.function or frame.label() for frame in reversed(stack.frames)]
        yield f"{';'.join(printable(label).replace(';', ':') for label in labels)} {len(stack.threads)}"


def line(frame: NamedFrame, width: int) -> str:
    """One frame. Its file is the last word, if it is known. A line that is too long has no
    parameters."""
    module = printable(frame.module, 40)
    if not frame.function or not module:
        return frame_label(frame, width)
    return f"{frame_label(frame, max(20, width - len(module) - 4))}  [{module}]"
