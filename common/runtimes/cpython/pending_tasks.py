"""Report many tasks of asyncio that wait at one place, and many greenlets that are suspended at one
place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from findleaks.engine.contract import Blocks
from findleaks.engine.terms import Totals
from findleaks.formatting import number, shorten, size
from findleaks.runtimes.base import UserThread
from findleaks.runtimes.cpython.engine import SUMS, ObjectTally
from findleaks.runtimes.cpython.greenlets import GREENLET, read_greenlets
from findleaks.runtimes.cpython.members import ObjectNames
from findleaks.runtimes.cpython.tasks import TASK, read_tasks
from findleaks.runtimes.cpython.types import Types
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.user_threads import group_user_threads
from findleaks.target.base import Target
from findleaks.value_classes import NamedTuple

_MANY = 1000  # threads at one place that are reported
_MOST = 50_000  # threads that are read; each takes 50 µs
_LIBRARY = re.compile("/(asyncio|gevent|eventlet)/")
"""Matches paths of files of asyncio itself, and of libraries of greenlets."""

_OF_TASKS = "cancel them, or wait with a timeout (asyncio.wait_for)"
_OF_GREENLETS = "kill them, or wait with a timeout (gevent.Timeout)"


class _Waiting(NamedTuple):
    """A thread, the address of its object, and addresses in its other blocks."""

    thread: UserThread
    address: int
    parts: Sequence[int]


def find_pending_tasks(
    target: Target, blocks: Blocks, known: Types, tally: ObjectTally, names: Callable[[], ObjectNames]
) -> Iterator[Finding]:
    """Yield a finding about tasks and a finding about greenlets, each only if many of them wait at
    one place."""

    def are_many(kind: str) -> bool:
        return sum(tally.sums[SUMS * at] for at in known.list_derived((kind,))) >= _MANY

    if are_many(TASK):
        tasks = islice(read_tasks(target, blocks, known, tally, names()), _MOST)
        found = [_Waiting(one.thread, one.address, one.coroutines) for one in tasks if one.thread.state == "pending"]
        yield from _find_group(blocks, found, "pending-tasks", "asyncio task")
    if are_many(GREENLET):
        greenlets = islice(read_greenlets(target, blocks, known, tally), _MOST)
        found = [_Waiting(one.thread, one.address, one.parts) for one in greenlets]
        yield from _find_group(blocks, found, "suspended-greenlets", "greenlet")


def _find_group(blocks: Blocks, found: Sequence[_Waiting], kind: str, word: str) -> Iterator[Finding]:
    """Yield a finding of this kind if many of these threads wait at one place. `word`: what the
    runtime calls such a thread."""
    group = next(iter(group_user_threads(one.thread for one in found)), None)
    if group is None or len(group.threads) < _MANY:
        return
    chosen = {id(thread) for thread in group.threads}
    waiting = [one for one in found if id(one.thread) in chosen]
    indices = {blocks.find(address) for one in waiting for address in (one.address, *one.parts)} - {-1}
    totals = Totals(len(indices), sum(map(blocks.size, indices)))
    frames = group.frames
    own = next((one for one in frames if not _LIBRARY.search(one.file)), frames[0])
    reason = f": each {group.first.reason}" if group.first.reason else ""
    count = len(waiting)
    many = f"at least {number(count)}" if len(found) == _MOST else number(count)
    are_tasks, noun = kind == "pending-tasks", word.split()[-1]
    verb, parts = ("wait", "coroutines") if are_tasks else ("are suspended", "saved stacks")
    title = f"In use, not leaked: {many} {word}s {verb} in {shorten(own.function)} ({shorten(own.place())}){reason}."
    outer, unit = frames[-1], "coroutine" if are_tasks else "function"
    cause = f"Their outermost {unit} is {shorten(outer.function)}. " if outer.function != own.function else ""
    cause += f"The {noun}s and their {parts} take {size(totals.bytes)}, without the objects to which they refer."
    remedy = f"end {noun}s that are no longer needed: {_OF_TASKS if are_tasks else _OF_GREENLETS}"
    facts: dict[str, object] = {
        f"{noun}s": count,
        "function": own.function,
        "file": own.file or None,
        "line": own.line or None,
        "outermost": outer.function,
        "reason": group.first.reason or None,
        "blocks": totals.blocks,
    }
    commands = (f"path {waiting[0].address:#x}", "stacks")
    yield Finding(kind, totals.bytes, title, cause, (remedy,), commands, facts, of_blocks=True)
