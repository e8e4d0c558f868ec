"""Report threads that wait for each other's locks."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.formatting import counted
from findleaks.runtimes.directory import find_frames
from findleaks.runtimes.finding import Finding
from findleaks.target.base import Target
from findleaks.unwind.frame_locks import describe_deadlock


def find_deadlocked_threads(target: Target) -> Iterator[Finding]:
    """Yield a finding for each deadlock of a managed runtime."""
    for reader in find_frames(target):
        for cycle in reader.deadlocks():
            names = reader.thread_names()
            threads = [
                {
                    "thread": tid,
                    "name": names.get(tid),
                    "kind": lock.kind,
                    "type": lock.type,
                    "address": hex(lock.address),
                    "owner": lock.owner,
                }
                for tid, lock in cycle
            ]
            title = f"{counted(len(cycle), 'thread')} cannot continue, because they wait for locks of each other: a deadlock."
            cause = f"{describe_deadlock(cycle, names)}."
            remedies = ("lock these objects in the same order in all threads",)
            yield Finding("deadlock", 0, title, cause, remedies, ("stacks",), {"threads": threads}, 0)
