"""Why a jemalloc keeps free memory, and what to try.

Free pages wait for their decay time, which only threads that allocate check.
"""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.jemalloc.arenas import Arena, name
from findleaks.allocators.jemalloc.decay import NEVER, times
from findleaks.allocators.memory import Memory
from findleaks.allocators.retention import FreeMemory, Retention, explain_free_blocks
from findleaks.formatting import number, size


def explain_retention(free: FreeMemory, call: str, memory: Memory, arenas: Sequence[Arena]) -> Retention:
    """See Allocator.retention; `call` returns free pages. Decay times are those of the arena that
    has most free pages."""
    spare = free.spare()
    dirty, muzzy = spare.get("dirty", 0), spare.get("muzzy", 0)
    pages = dirty + muzzy
    evidence: dict[str, object] = {"dirty": dirty, "muzzy": muzzy, "in_blocks": free.kept - pages}
    sorts, causes = explain_free_blocks(free, pages, evidence)
    if 10 * pages < free.kept:
        return Retention(pages, tuple(sorts), "; ".join(causes), (), evidence)
    most = max(free.arenas, key=lambda arena: arena.spare.get("dirty", 0) + arena.spare.get("muzzy", 0), default=None)
    same = [one for one in arenas if most is not None and most.arena == name(one.index)]
    decay = times(memory, same[0]) if same else None
    why = ""
    if decay is not None:
        evidence["dirty_decay_ms"], evidence["muzzy_decay_ms"] = decay
        if NEVER in (decay[0], decay[1] if muzzy else 0):
            why = f": {'dirty' if decay[0] == NEVER else 'muzzy'}_decay_ms is -1, so that they are never given back"
        else:
            why = (
                f": dirty_decay_ms is {number(decay[0])}, but only threads that allocate look at the clock, unless background_thread is set"
            )
    cause = f"{size(pages)} of free pages ({size(dirty)} dirty, {size(muzzy)} muzzy){why}"
    tries = ("MALLOC_CONF=background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0", f"{call} when the process is idle")
    return Retention(pages, ("decay", *sorts), "; ".join([cause, *causes]), tries, evidence)
