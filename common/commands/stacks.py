"""The `stacks` command: lists the threads, grouped by identical call stacks."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Optional

from findleaks.answers.stacks import ScheduledThreads, count_threads, group_stacks
from findleaks.commands import Invocation, command
from findleaks.commands.frames import add_stack_options, find_repeated, frame_label
from findleaks.commands.limits import first
from findleaks.commands.output import STACKS, add_output, output_format
from findleaks.commands.result import Plain
from findleaks.formatting import format_count, number, printable, some, wrap
from findleaks.results.stacks import Deadlock
from findleaks.runtimes.user_threads import UserThreadGroup, describe_state
from findleaks.session import Session
from findleaks.unwind.frame_locks import describe_thread
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
    pointers; the JVM's, by its own tables) up to the function in which the thread began. Frames of
    Python functions and Ruby methods precede the frame of the interpreter's function that executes
    them. Java methods, also compiled and inlined ones, have frames with class, method and line, and
    with the locks that they hold or wait for. Deadlocks are listed.
    `stacks` needs no heap and no debug information."""
    form = output_format(args, STACKS)
    answer = group_stacks(session, args.function, args.module, args.not_under, lines=not args.no_lines, limit=args.limit)
    every, found, body, scheduled = answer.every, answer.found, answer.result, answer.scheduled
    names, warnings = answer.names, answer.warnings
    if args.folded:
        # The program that draws folded stacks would read a warning as a stack.
        text = partial(_folded_text, found, scheduled, args.limit)
        result = Plain(session, "stacks", body, text, warnings=warnings if args.json else [])
    else:
        result = Plain(session, "stacks", body, partial(_text, every, found, scheduled, names, body.deadlocks, args), warnings=warnings)
    if form:
        from findleaks.commands.export import of_target, write_profile
        from findleaks.commands.profiles import of_stacks

        what = next((one.kind for one in scheduled if one.found), "threads")
        profile = of_stacks(f"{what.capitalize().removesuffix('s')}s: {session.target.description}", what, _counts(found, scheduled))
        result.written = write_profile(session, of_target(profile, session.target), args.output, form)
    return result


def _text(
    every: Sequence[Stack],
    found: Sequence[Stack],
    scheduled: Sequence[ScheduledThreads],
    names: Mapping[int, str],
    deadlocks: Sequence[Deadlock],
    args: argparse.Namespace,
    width: int,
    invocation: Invocation,
) -> Iterator[str]:
    yield from _threads_text(every, found, names, args, width)
    for deadlock in deadlocks:
        yield ""
        yield from wrap(f"deadlock: {deadlock.text}", width)
    for one in scheduled:
        yield ""
        yield from _scheduled_text(one, args, width)


def _counts(found: Sequence[Stack], scheduled: Sequence[ScheduledThreads]) -> list[tuple[Sequence[NamedFrame], int]]:
    """Return the stacks for a profile: stacks of goroutines if there are any, otherwise stacks of
    threads. Goroutines of the runtime itself are left out, as pprof does."""
    of_runtimes = [(group.frames, len(group.threads)) for one in scheduled for group in one.found if not group.first.is_internal]
    return of_runtimes or [(one.frames, len(one.threads)) for one in found]


def _folded_text(
    found: Sequence[Stack], scheduled: Sequence[ScheduledThreads], limit: Optional[int], width: int, invocation: Invocation
) -> Iterator[str]:
    yield from fold_stacks(first(_counts(found, scheduled), limit))


def _scheduled_text(one: ScheduledThreads, args: argparse.Namespace, width: int) -> Iterator[str]:
    word, groups = one.kind, one.found
    shown = sum(len(group.threads) for group in groups)
    own = sum(len(group.threads) for group in groups if group.first.is_internal)
    whole = f"{format_count(one.total, word)} of {one.runtime.name}" + (f", and {number(own)} of the runtime itself" if own else "")
    yield f"{whole}, in {format_count(len(groups), 'stack')}" if shown - own == one.total else f"{number(shown)} of {whole}"
    listed = first(groups, args.limit)
    for group in listed:
        yield ""
        numbers = some([str(thread.number) for thread in group.threads if thread.number], 8)
        count = f"  {format_count(len(group.threads), word)}, {printable(describe_state(group.first))}{_wait(group)}"
        yield f"{count}: {numbers}" if numbers else count
        yield from _frames_text(group.frames, args.frames, width, lambda at: ())
        if group.first.creator is not None:
            yield f"    created by {frame_label(group.first.creator, width - 15)}"
    if len(listed) < len(groups):
        yield ""
        yield f"  … {format_count(len(groups) - len(listed), 'more stack')} (--limit 0)"


def _wait(group: UserThreadGroup) -> str:
    """Return how long the threads wait; "" if that is unknown, or less than a minute."""
    minutes = (group.waiting or 0) // 60_000_000_000
    return f" for up to {number(minutes)} min" if minutes else ""


def _threads_text(
    every: Sequence[Stack], found: Sequence[Stack], names: Mapping[int, str], args: argparse.Namespace, width: int
) -> Iterator[str]:
    threads, all_stacks = format_count(count_threads(every), "thread"), format_count(len(every), "stack")
    if len(found) == len(every):
        yield f"{threads} in {all_stacks}"
    else:
        yield f"{number(count_threads(found))} of {threads}, in {number(len(found))} of {all_stacks}"
    listed = first(found, args.limit)
    for stack in listed:
        yield ""
        yield f"  {format_count(len(stack.threads), 'thread')}: {some([_who(tid, names) for tid in stack.threads], 8)}"
        yield from _frames_text(stack.frames, args.frames, width, partial(_locks, stack, names))
        if stack.end:
            yield f"    … {stack.end}"
    if len(listed) < len(found):
        yield ""
        yield f"  … {format_count(len(found) - len(listed), 'more stack')} (--limit 0)"


def _frames_text(frames: Sequence[NamedFrame], limit: Optional[int], width: int, locks: Callable[[int], Iterable[str]]) -> Iterator[str]:
    """Yield a line for each of at most `limit` frames, and for each lock of a frame. Frames of a
    recursion are listed once. `locks`: function that returns the locks of a frame by its index."""
    shown = listed = 0
    for one in find_repeated(frames):
        for at, frame in enumerate(first(one.frames, limit and limit - listed), one.start):
            yield f"    {line(frame, width - 4)}"
            yield from (f"      - {printable(text)}" for text in locks(at))
            listed, shown = listed + 1, shown + 1
        if shown < one.start + len(one.frames):
            break
        if one.times > 1:
            yield f"    {one.describe()}"
            shown += len(one.frames) * (one.times - 1)
        if listed == limit:
            break
    if shown < len(frames):
        yield f"    … {number(len(frames) - shown)} more (--frames 0)"


def _locks(stack: Stack, names: Mapping[int, str], at: int) -> Iterator[str]:
    """Yield a description of each lock of a frame. If several threads have this stack, a
    description contains only what is the same for all of them."""
    of_threads = [[one for place, one in locks if place == at] for locks in stack.locks]
    for locks in zip(*of_threads):
        owners = {one.owner for one in locks}
        owner = f", which {describe_thread(locks[0].owner, names)} holds" if len(owners) == 1 and locks[0].owner else ""
        yield f"{locks[0].label(len({one.address for one in locks}) == 1)}{owner}"


def _who(tid: int, names: Mapping[int, str]) -> str:
    """Describe a thread: "4711 (worker)"; only "4711" if the name is not known, or is the same for
    all threads."""
    name = names.get(tid) if len(set(names.values())) > 1 else None
    return f"{tid} ({printable(name, 32)})" if name else str(tid)


def fold_stacks(stacks: Iterable[tuple[Sequence[NamedFrame], int]]) -> Iterator[str]:
    """Yield folded stacks (Brendan Gregg): functions, outermost first, then the number of
    threads."""
    for frames, count in stacks:
        labels = [frame.function or frame.label() for frame in reversed(frames)]
        yield f"{';'.join(printable(label).replace(';', ':') for label in labels)} {count}"


def line(frame: NamedFrame, width: int) -> str:
    """Return the line of one frame. It ends with the module that contains the code, or with the
    language of a managed function. If the line is too long, the parameters are omitted."""
    module = printable(frame.module or frame.kind, 40)
    if not frame.function or not module:
        return frame_label(frame, width)
    return f"{frame_label(frame, max(20, width - len(module) - 4))}  [{module}]"
