"""Explain why a jemalloc keeps free memory, and what the user can try.

Free pages are returned after their decay time, but only threads that allocate or free check this
time. decay_t (decay.h and decay.c of 5.3, arena_structs.h and arena.c of 5.2) has a mutex and a
flag, then a word each: time_ms (-1: never purge, 0: at once), interval, epoch, jitter_state,
deadline (the last four have 64 bits), nunpurged, and a backlog of 200.

If time_ms > 0, decay_reinit sets interval to a 200th of it in ns. Otherwise jitter_state keeps its
first value, the address of the decay_t. These two rules identify a decay_t in memory."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Optional

from findleaks.allocators.jemalloc.arenas import LONGEST, JemallocArena, format_name
from findleaks.allocators.memory import Memory
from findleaks.allocators.retention import FreeMemory, Retention, explain_free_blocks
from findleaks.formatting import number, size

NEVER = -1
STEPS = 200  # SMOOTHSTEP_NSTEPS
MAX_DECAY = 1 << 40  # milliseconds: 35 years
MUTEX = 256  # more than the number of bytes before time_ms, which is 112 to 144 in Debian's builds


def find_decay_times(memory: Memory, arena: JemallocArena) -> Optional[tuple[int, int]]:
    """Return the (dirty, muzzy) decay times of an arena in ms; NEVER for pages that are never
    purged. None if they are not found."""
    data = memory.read(arena.address, LONGEST) or memory.read(arena.address, LONGEST // 4)
    # these fields need no padding on any machine
    form = struct.Struct(memory.arch.word_format + "QQQ")
    rest = STEPS * memory.size
    found: list[int] = []
    at = 0
    while at + form.size + rest < len(data) and len(found) < 2:
        time = _read_decay_time(form.unpack_from(data, at), arena.address + at, memory.arch.mask)
        if time is not None:
            found.append(time)
        at += memory.size if time is None else form.size + rest
    return (found[0], found[1]) if len(found) == 2 else None


def _read_decay_time(times: Sequence[int], address: int, never: int) -> Optional[int]:
    """Return the decay time of a decay_t whose time_ms is at `address`; None if there is none.
    `times` are time_ms and the three fields after it."""
    time, interval, epoch, jitter = times
    if 0 < time < MAX_DECAY:
        return time if interval == time * 1_000_000 // STEPS and epoch else None
    if time in (0, never) and 0 < address - jitter < MUTEX:
        return NEVER if time else 0
    return None


def explain_retention(free: FreeMemory, call: str, memory: Memory, arenas: Sequence[JemallocArena]) -> Retention:
    """Explain the free memory of a jemalloc. `call` is the call that returns free pages. The decay
    times named are those of the arena with the most free pages."""
    spare = free.spare()
    dirty, muzzy = spare.get("dirty", 0), spare.get("muzzy", 0)
    pages = dirty + muzzy
    evidence: dict[str, object] = {"dirty": dirty, "muzzy": muzzy, "in_blocks": free.kept - pages}
    sorts, causes = explain_free_blocks(free, pages, evidence)
    if 10 * pages < free.kept:
        return Retention(pages, tuple(sorts), "; ".join(causes), (), evidence)
    most = max(free.arenas, key=lambda arena: arena.spare.get("dirty", 0) + arena.spare.get("muzzy", 0), default=None)
    same = [one for one in arenas if most is not None and most.arena == format_name(one.index)]
    decay = find_decay_times(memory, same[0]) if same else None
    why = ""
    if decay is not None:
        evidence["dirty_decay_ms"], evidence["muzzy_decay_ms"] = decay
        if NEVER in (decay[0], decay[1] if muzzy else 0):
            why = f": {'dirty' if decay[0] == NEVER else 'muzzy'}_decay_ms is -1, so they are never returned"
        else:
            why = f": dirty_decay_ms is {number(decay[0])}, but only threads that allocate check the time, unless background_thread is set"
    cause = f"{size(pages)} of free pages ({size(dirty)} dirty, {size(muzzy)} muzzy){why}"
    tries = ("MALLOC_CONF=background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0", f"{call} when the process is idle")
    return Retention(pages, ("decay", *sorts), "; ".join([cause, *causes]), tries, evidence)
