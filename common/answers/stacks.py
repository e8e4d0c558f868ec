"""Answer the question "what are the threads doing?" with threads that have identical call
stacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Optional

from findleaks.answers.locks import list_deadlocks, list_locks, list_mutex_deadlocks
from findleaks.answers.sites import native_frame
from findleaks.answers.warnings import source_warnings
from findleaks.formatting import some
from findleaks.results.stacks import Stacks, ThreadGroup, UserThreadGroup
from findleaks.runtimes import user_threads
from findleaks.runtimes.base import Runtime
from findleaks.runtimes.directory import find_frames, find_schedulers, has_tasks, list_code_tables
from findleaks.session import Session
from findleaks.unwind.stacks import Stack, filter_stacks, group_threads


class ScheduledThreads(NamedTuple):
    """Threads of one kind that a runtime schedules itself, such as goroutines. `total`: their
    number, without the runtime's internal threads. `found`: the threads that passed the filters, by
    stack, with the internal threads."""

    runtime: Runtime
    kind: str
    total: int
    found: Sequence[user_threads.UserThreadGroup]


class FoundStacks(NamedTuple):
    """The result, all stacks, the stacks that passed the filters, threads that runtimes schedule
    themselves, sentences on their limits, and the names of threads. No heap is read, unless asyncio
    is in use."""

    result: Stacks
    every: Sequence[Stack]
    found: Sequence[Stack]
    scheduled: Sequence[ScheduledThreads]
    warnings: list[str]
    names: Mapping[int, str]


def group_stacks(
    session: Session,
    function: str = "",
    module: str = "",
    not_under: Sequence[str] = (),
    lines: bool = True,
    limit: Optional[int] = None,
) -> FoundStacks:
    """Group threads by identical call stacks, most threads first.

    `function`: only stacks with this function. `module`: only stacks with a frame in this module.
    `not_under`: only stacks without these functions. `lines`: read files and lines. `limit`: stacks
    in the result (0, None: all)."""
    readers, schedulers = find_frames(session.target), find_schedulers(session.target, session.engine)
    every = group_threads(session.target, session.sources if lines else None, readers, list_code_tables(schedulers))
    found = filter_stacks(every, function, module, not_under)
    names = dict(session.target.thread_names())
    for reader in readers:
        names.update(reader.thread_names())
    groups = [
        ThreadGroup(
            len(stack.threads),
            stack.threads,
            names=[names.get(tid) for tid in stack.threads],
            frames=[native_frame(frame) for frame in stack.frames],
            complete=not stack.end,
            incomplete=stack.end or None,
            locks=list_locks(stack),
        )
        for stack in (found[:limit] if limit else found)
    ]
    if has_tasks(session.target):
        known = {one.name for one in schedulers}
        schedulers += [one for one in session.runtimes if one.user_thread and one.name not in known]
    scheduled = [part for one in schedulers for part in _schedule(one, function, module, not_under)]
    unread = [problem.what for one in scheduled if not one.total for problem in one.runtime.problems]
    scheduled = [one for one in scheduled if one.total]
    of_runtimes = [result for one in scheduled for result in _user_groups(one, limit)]
    result = Stacks(
        count_threads(every),
        groups,
        sum(one.total for one in scheduled),
        of_runtimes,
        [*list_deadlocks(readers), *list_mutex_deadlocks(session.target)],
    )
    warnings = [*_warnings(session, every), *unread, *(warning for reader in readers for warning in reader.warnings)]
    return FoundStacks(result, every, found, scheduled, warnings, names)


def _schedule(runtime: Runtime, function: str, module: str, not_under: Sequence[str]) -> Iterator[ScheduledThreads]:
    every = runtime.user_threads()
    for kind in dict.fromkeys([*(one.kind or runtime.user_thread for one in every)] or [runtime.user_thread]):
        threads = [one for one in every if kind == (one.kind or runtime.user_thread)]
        groups = filter_stacks(user_threads.group_user_threads(threads), function, module, not_under)
        yield ScheduledThreads(runtime, kind, sum(not one.is_internal for one in threads), groups)


def _user_groups(one: ScheduledThreads, limit: Optional[int]) -> list[UserThreadGroup]:
    return [
        UserThreadGroup(
            one.runtime.name,
            one.kind,
            len(group.threads),
            [thread.number for thread in group.threads if thread.number],
            group.first.state,
            group.first.reason or None,
            round(group.waiting / 1e9, 1) if group.waiting is not None else None,
            group.stack_bytes,
            group.first.is_internal,
            native_frame(group.first.creator) if group.first.creator is not None else None,
            [native_frame(frame) for frame in group.frames],
        )
        for group in (one.found[:limit] if limit else one.found)
    ]


def count_threads(stacks: Sequence[Stack]) -> int:
    """Return the number of threads with these stacks."""
    return sum(len(stack.threads) for stack in stacks)


def _warnings(session: Session, every: Sequence[Stack]) -> list[str]:
    found = [*session.target.warnings, *source_warnings(session)]
    ends = list(dict.fromkeys(stack.end for stack in every if stack.end))
    if ends:
        cut = count_threads([stack for stack in every if stack.end])
        found.append(f"{cut} of {count_threads(every)} stacks are incomplete: {some(ends)}; filters apply to the known frames")
    return found
