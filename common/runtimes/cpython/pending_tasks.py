"""Report many tasks of asyncio that wait at one place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from findleaks.engine.contract import Blocks
from findleaks.engine.terms import Totals
from findleaks.formatting import number, shorten, size
from findleaks.runtimes.cpython.engine import SUMS, ObjectTally
from findleaks.runtimes.cpython.members import ObjectNames
from findleaks.runtimes.cpython.tasks import TASK, read_tasks
from findleaks.runtimes.cpython.types import Types
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.user_threads import group_user_threads
from findleaks.target.base import Target

_MANY = 1000  # tasks at one place that are reported
_MOST = 20_000  # tasks that are read; each takes 0.1 ms
_REMEDY = "end tasks that are no longer needed: cancel them, or wait with a timeout (asyncio.wait_for)"
_LIBRARY = "/asyncio/"  # in the path of a file of asyncio itself


def find_pending_tasks(
    target: Target, blocks: Blocks, known: Types, tally: ObjectTally, names: Callable[[], ObjectNames]
) -> Iterator[Finding]:
    """Yield a finding if many tasks wait at one place."""
    if sum(tally.sums[SUMS * at] for at in known.list_derived((TASK,))) < _MANY:
        return
    tasks = list(islice(read_tasks(target, blocks, known, tally, names()), _MOST))
    group = next(iter(group_user_threads(one.thread for one in tasks if one.thread.state == "pending")), None)
    if group is None or len(group.threads) < _MANY:
        return
    chosen = {id(thread) for thread in group.threads}
    waiting = [one for one in tasks if id(one.thread) in chosen]
    indices = {blocks.find(address) for one in waiting for address in (one.address, *one.coroutines)} - {-1}
    totals = Totals(len(indices), sum(map(blocks.size, indices)))
    frames = group.frames
    own = next((one for one in frames if _LIBRARY not in one.file), frames[0])
    reason = f": each {group.first.reason}" if group.first.reason else ""
    count = len(waiting)
    many = f"at least {number(count)}" if len(tasks) == _MOST else number(count)
    title = f"In use, not leaked: {many} asyncio tasks wait in {shorten(own.function)} ({shorten(own.place())}){reason}."
    outer = frames[-1]
    cause = f"Their outermost coroutine is {shorten(outer.function)}. " if outer.function != own.function else ""
    cause += f"The tasks and their coroutines take {size(totals.bytes)}, without the objects to which they refer."
    facts: dict[str, object] = {
        "tasks": count,
        "function": own.function,
        "file": own.file or None,
        "line": own.line or None,
        "outermost": outer.function,
        "reason": group.first.reason or None,
        "blocks": totals.blocks,
    }
    commands = (f"path {waiting[0].address:#x}", "stacks")
    yield Finding("pending-tasks", totals.bytes, title, cause, (_REMEDY,), commands, facts, of_blocks=True)
