"""The answer to "what are the threads doing?": threads with identical call stacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

from findleaks.answers.sites import native_frame
from findleaks.answers.warnings import source_warnings
from findleaks.formatting import some
from findleaks.results.stacks import Stacks, ThreadGroup
from findleaks.session import Session
from findleaks.unwind.stacks import Stack, filter_stacks, group_threads


class FoundStacks(NamedTuple):
    """The result, all stacks, the stacks that passed the filters, and sentences on their limits. No
    heap is read."""

    result: Stacks
    every: Sequence[Stack]
    found: Sequence[Stack]
    warnings: list[str]


def group_stacks(
    session: Session,
    function: str = "",
    module: str = "",
    not_under: Sequence[str] = (),
    lines: bool = True,
    limit: Optional[int] = None,
) -> FoundStacks:
    """Threads by identical call stacks, most threads first.

    `function`: only stacks with this function. `module`: only stacks with a frame in this module.
    `not_under`: only stacks without these functions. `lines`: read files and lines. `limit`: stacks
    in the result (0, None: all)."""
    every = group_threads(session.target, session.sources if lines else None)
    found = filter_stacks(every, function, module, not_under)
    names = session.target.thread_names()
    groups = [
        ThreadGroup(
            len(stack.threads),
            stack.threads,
            names=[names.get(tid) for tid in stack.threads],
            frames=[native_frame(frame) for frame in stack.frames],
            complete=not stack.end,
        )
        for stack in (found[:limit] if limit else found)
    ]
    return FoundStacks(Stacks(count_threads(every), groups), every, found, _warnings(session, every))


def count_threads(stacks: Sequence[Stack]) -> int:
    """The number of threads with these stacks."""
    return sum(len(stack.threads) for stack in stacks)


def _warnings(session: Session, every: Sequence[Stack]) -> list[str]:
    found = [*session.target.warnings, *source_warnings(session)]
    ends = list(dict.fromkeys(stack.end for stack in every if stack.end))
    if ends:
        cut = count_threads([stack for stack in every if stack.end])
        found.append(f"{cut} of {count_threads(every)} stacks are incomplete: {some(ends)}; filters apply to the known frames")
    return found
