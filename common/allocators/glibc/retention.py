"""Explain why a glibc keeps free memory, and what the user can try.

malloc.c: free returns only the top of an arena, once it is larger than trim_threshold. mtrim also
returns whole free pages between blocks in use. arena.c: threads get separate arenas, at most eight
for each processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from findleaks.allocators.retention import FreeMemory, Retention
from findleaks.formatting import format_count, size

ARENAS = 2  # more arenas than this are too many for their contents: advise MALLOC_ARENA_MAX=2
SPREAD = 0.6
"""Free memory counts as spread over the arenas if the ARENAS arenas with the most free memory have
less than this share of all free memory. If few arenas have nearly all of it, a lower number of
arenas would not reduce it."""

Parameter = Callable[[str], Optional[int]]  # reads a field of mp_ by its name; see Glibc.par


def explain_retention(free: FreeMemory, parameter: Parameter) -> Retention:
    """Explain the free memory of a glibc (see Allocator.retention). `parameter` reads a field of
    mp_."""
    kept, returns = free.kept, free.returns
    count = sum(arena.mapped > 0 for arena in free.arenas if arena.arena != "mmapped")
    in_threads = sum(arena.kept for arena in free.arenas if arena.arena not in ("main", "mmapped"))
    top = free.spare().get("top", 0)
    main = sum(arena.spare.get("top", 0) for arena in free.arenas if arena.arena == "main")
    largest = sorted((arena.kept for arena in free.arenas if arena.arena != "mmapped"), reverse=True)
    spread = sum(largest[:ARENAS]) < SPREAD * kept
    evidence: dict[str, object] = {
        "arenas": count,
        "kept_in_largest_arena": largest[0] if largest else 0,
        "kept_in_thread_arenas": in_threads,
        "top": top,
        "main_top": main,
        "shared": free.shared,
        "trim_threshold": parameter("trim_threshold"),
        "mmap_threshold": parameter("mmap_threshold"),
        "arena_max": parameter("arena_max"),
    }
    sorts, causes, tries = [], [], []
    if count > ARENAS and 2 * in_threads >= kept and spread:
        sorts.append("arenas")
        most = f"the largest has {_percent(largest[0], kept)}"
        causes.append(f"{count} arenas: the {count - 1} arenas of threads have {_percent(in_threads, kept)} of it; {most}")
        tries.append(f"MALLOC_ARENA_MAX={ARENAS} in the environment")
    if 2 * top >= kept:
        sorts.append("top")
        whose = "the main arena" if main == top else f"{format_count(count, 'arena')}"
        causes.append(f"{size(top)} at the end of {whose} (top){_explain_top(parameter)}")
        tries.append("M_TRIM_THRESHOLD and M_MMAP_THRESHOLD by mallopt, or MALLOC_TRIM_THRESHOLD_=131072 in the environment")
    shared = min(free.shared, kept - top)
    if 4 * shared >= kept > 0:
        sorts.append("fragmentation")
        causes.append(f"fragmentation: {size(shared)} of it shares pages with blocks in use, and no call returns it")
    elif not sorts:
        sorts.append("between")
        causes.append("whole free pages between blocks in use: by itself, glibc returns only the end of an arena")
    if returns is not None and 2 * returns >= kept:
        tries.append("malloc_trim(0) when the process is idle")
        if "fragmentation" not in sorts:
            causes.append(f"not fragmentation: {_percent(returns, kept)} of it is wholly free pages")
    return Retention(returns, tuple(sorts), "; ".join(causes), tuple(tries), evidence)


def _explain_top(parameter: Parameter) -> str:
    """Explain when free returns top. The threshold grows when mmapped chunks are freed (malloc.c,
    __libc_free, "dynamic threshold")."""
    trim, mapped = parameter("trim_threshold"), parameter("mmap_threshold")
    if trim is None or trim >= 1 << 60:
        return ", which it never returns by itself" if trim else ""
    grown = ""
    if mapped and trim == 2 * mapped and not parameter("no_dyn_threshold"):
        grown = " (it grew when large blocks were freed)"
    return f", which it returns by itself only beyond trim_threshold, {size(trim)}{grown}"


def _percent(part: int, whole: int) -> str:
    return f"{min(100 * part // max(whole, 1), 100)} %"
