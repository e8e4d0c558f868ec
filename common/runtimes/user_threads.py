"""Group threads that a runtime schedules itself (goroutines) by state and call stack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Optional

from findleaks.runtimes.base import UserThread
from findleaks.unwind.stacks import NamedFrame


@dataclass(frozen=True)
class UserThreadGroup:
    """Threads with the same call stack, state, reason to wait, and creator. They are in the order
    of their creation."""

    threads: list[UserThread]

    @property
    def first(self) -> UserThread:
        return self.threads[0]

    @property
    def frames(self) -> Sequence[NamedFrame]:
        return self.first.frames

    @property
    def stack_bytes(self) -> int:
        """Bytes of the stacks of these threads, used or not."""
        return sum(one.stack.end - one.stack.start for one in self.threads)

    @property
    def waiting(self) -> Optional[int]:
        """The longest known wait in nanoseconds; None if unknown."""
        return max((one.waiting for one in self.threads if one.waiting is not None), default=None)


def group_user_threads(threads: Iterable[UserThread]) -> list[UserThreadGroup]:
    """Return the groups, those with most threads first."""
    groups: dict[object, list[UserThread]] = {}
    for one in threads:
        groups.setdefault((one.state, one.reason, one.frames, one.creator), []).append(one)
    return sorted(map(UserThreadGroup, groups.values()), key=lambda group: -len(group.threads))


def describe_state(one: UserThread) -> str:
    """Return a phrase: "waiting, chan receive"."""
    return f"{one.state}, {one.reason}" if one.reason else one.state


def own_frame(frames: Sequence[NamedFrame], is_library: Callable[[str], bool]) -> Optional[NamedFrame]:
    """Return the innermost frame that is not in the runtime's libraries. If all are, return the
    outermost frame; None if there is no frame."""
    return next((one for one in frames if not is_library(one.function)), frames[-1] if frames else None)
