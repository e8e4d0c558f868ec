"""Name threads by their number."""

from __future__ import annotations

from collections.abc import Callable

from findleaks.target.base import Target


def number_threads(target: Target) -> Callable[[int], str]:
    """Return a function that returns the name of a thread, by tid: "main thread" or "thread 2"."""
    numbers = {thread.tid: number for number, thread in enumerate(target.threads(), 1)}

    def label(tid: int) -> str:
        return "main thread" if tid == target.pid or (numbers.get(tid) == 1 and target.pid is None) else f"thread {numbers.get(tid, tid)}"

    return label
