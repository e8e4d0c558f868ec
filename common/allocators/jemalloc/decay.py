"""Decay times (decay_t): how long an arena keeps unused dirty and muzzy pages.

decay.h and decay.c of 5.3, arena_structs.h and arena.c of 5.2: a mutex and a flag, then time_ms
(-1: never purge, 0: at once), interval, epoch, jitter_state, deadline, nunpurged, a word each, and
a backlog of 200 more. If time_ms is more than 0, decay_reinit sets interval to a 200th of it in
nanoseconds; otherwise jitter_state keeps its first value, the address of decay_t itself.
"""

from __future__ import annotations

from typing import Optional

from findleaks.allocators.jemalloc.arenas import LONGEST, Arena
from findleaks.allocators.memory import Memory

NEVER = -1
STEPS = 200  # SMOOTHSTEP_NSTEPS
MOST = 1 << 40  # milliseconds: 35 years
MUTEX = 256  # more than decay_t has before time_ms: 112 to 144 in Debian's builds
BACKLOG = STEPS


def times(memory: Memory, arena: Arena) -> Optional[tuple[int, int]]:
    """(dirty, muzzy) decay times of an arena in milliseconds, NEVER if pages are never purged; None
    where they are not found."""
    words = memory.words(arena.address, LONGEST // 8) or memory.words(arena.address, LONGEST // 32) or ()
    found: list[int] = []
    at = 0
    while at + 6 + BACKLOG < len(words) and len(found) < 2:
        time = _time(words[at], words[at + 1], words[at + 2], words[at + 3], arena.address + 8 * at)
        if time is None:
            at += 1
        else:
            found.append(time)
            at += 6 + BACKLOG
    return (found[0], found[1]) if len(found) == 2 else None


def _time(time: int, interval: int, epoch: int, jitter: int, address: int) -> Optional[int]:
    """The decay time of a decay_t whose time_ms is at `address`, or None."""
    if 0 < time < MOST:
        return time if interval == time * 1_000_000 // STEPS and epoch else None
    if time in (0, (1 << 64) - 1) and 0 < address - jitter < MUTEX:
        return NEVER if time else 0
    return None
