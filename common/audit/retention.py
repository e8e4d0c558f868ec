"""Memory that is free and stays with the process: how much of it an allocator would give back when asked, why it keeps it, what to try.

What is said is measured; what would become of the process under another setting is not promised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Optional

from findleaks.audit.accounting import Store
from findleaks.formatting import number, size

if TYPE_CHECKING:
    from findleaks.allocators.glibc.instance import Glibc

ARENAS = 2
"""glibc with more arenas than this has too many for what they hold: MALLOC_ARENA_MAX=2 is what is advised."""

SHOWS = ("map", "caches --by-arena --sort free --limit 10")
"""Commands that show more."""


@dataclass(frozen=True)
class Retention:
    """`returns`: bytes that `call` gives back to the system, None where that is not known. `cause` is a sentence; `sorts` names the causes
    for programs: "arenas", "top", "between", "fragmentation", "decay", "page heap", "slabs"."""

    kept: int
    returns: Optional[int]
    call: str
    sorts: tuple[str, ...]
    cause: str
    tries: tuple[str, ...]
    shows: tuple[str, ...]
    evidence: dict[str, object] = field(default_factory=dict)


class Asked(NamedTuple):
    """What is looked up only where it is needed: what malloc_trim(0) would return (asked of glibc only), and the free bytes in pages that
    also hold blocks in use."""

    trimmed: Callable[[Store], Optional[int]]
    shared: Callable[[Store], int]


def retention(store: Store, asked: Asked) -> Retention:
    """Of one allocator."""
    # Only the reader of an allocator that was found is imported.
    if store.allocator.name == "glibc":
        return _glibc(store, asked.trimmed(store), asked.shared(store))
    return _jemalloc(store, asked.shared(store)) if store.allocator.name == "jemalloc" else _other(store, asked.shared(store))


# -- glibc


def _glibc(store: Store, returns: Optional[int], shared: int) -> Retention:
    """malloc/malloc.c: free gives back only an arena's top, once it is longer than trim_threshold; mtrim also whole free pages between
    blocks in use. malloc/arena.c: threads get arenas of their own, at most eight a processor."""
    from findleaks.allocators.glibc.instance import Glibc

    glibc, kept = store.allocator, store.kept
    assert isinstance(glibc, Glibc)
    threads = [arena for arena in store.arenas if arena.arena not in ("main", "mmapped")]
    count = sum(arena.mapped > 0 for arena in store.arenas if arena.arena != "mmapped")
    in_threads = sum(arena.kept for arena in threads)
    top = store.spare().get("top", 0)
    main = sum(arena.spare.get("top", 0) for arena in store.arenas if arena.arena == "main")
    evidence: dict[str, object] = {
        "arenas": count,
        "kept_in_thread_arenas": in_threads,
        "top": top,
        "main_top": main,
        "shared": shared,
        "trim_threshold": glibc.par("trim_threshold"),
        "mmap_threshold": glibc.par("mmap_threshold"),
        "arena_max": glibc.par("arena_max"),
    }
    sorts, causes, tries = [], [], []
    whole = returns if returns is not None else 0
    if count > ARENAS and 2 * in_threads >= kept:
        sorts.append("arenas")
        causes.append(f"{count} arenas: threads freed into {count - 1} of their own, which hold {_part(in_threads, kept)} of it")
        tries.append(f"MALLOC_ARENA_MAX={ARENAS} in the environment")
    if 2 * top >= kept:
        sorts.append("top")
        whose = "the main arena" if main == top else f"{count} arenas"
        causes.append(f"{size(top)} at the end of {whose} (top){_thresholds(glibc)}")
        tries.append("M_TRIM_THRESHOLD and M_MMAP_THRESHOLD by mallopt, or MALLOC_TRIM_THRESHOLD_=131072 in the environment")
    shared = min(shared, kept - top)
    if 4 * shared >= kept > 0:
        sorts.append("fragmentation")
        causes.append(f"fragmentation: {size(shared)} of it shares pages with blocks in use, and no call gives that back")
        tries.append("pools for what lives long; another allocator may fare better, or not: measure it")
    elif not sorts:
        sorts.append("between")
        causes.append("whole free pages between blocks in use: by itself glibc gives back only the end of an arena")
    if returns is not None and 2 * whole >= kept:
        tries.append("malloc_trim(0) when the process is idle")
        if "fragmentation" not in sorts:
            causes.append(f"not fragmentation: {_part(whole, kept)} of it is wholly free pages")
    return Retention(kept, returns, "malloc_trim(0)", tuple(sorts), "; ".join(causes), tuple(tries), SHOWS, evidence)


def _thresholds(glibc: Glibc) -> str:
    """Why top is not given back: the threshold grows with what was mapped and freed (malloc.c, __libc_free, "dynamic threshold")."""
    trim, mapped = glibc.par("trim_threshold"), glibc.par("mmap_threshold")
    if trim is None or trim >= 1 << 60:
        return ", which it never gives back by itself" if trim else ""
    grown = (
        " (it has grown by itself, as large blocks were freed)"
        if mapped and trim == 2 * mapped and not glibc.par("no_dyn_threshold")
        else ""
    )
    return f", which it gives back by itself only beyond trim_threshold, {size(trim)}{grown}"


def _part(part: int, whole: int) -> str:
    return f"{min(100 * part // max(whole, 1), 100)} %"


# -- jemalloc


def _jemalloc(store: Store, shared: int) -> Retention:
    from findleaks.allocators.jemalloc.decay import NEVER, times
    from findleaks.allocators.jemalloc.instance import Jemalloc

    jemalloc = store.allocator
    assert isinstance(jemalloc, Jemalloc)
    spare = store.spare()
    pages = spare.get("dirty", 0) + spare.get("muzzy", 0)
    most = max(store.arenas, key=lambda arena: arena.spare.get("dirty", 0) + arena.spare.get("muzzy", 0), default=None)
    same = [one for one in jemalloc.parts.arenas if most is not None and most.arena == f"arena {one.index}"]
    found = times(jemalloc.memory, same[0]) if same else None
    evidence: dict[str, object] = {"dirty": spare.get("dirty", 0), "muzzy": spare.get("muzzy", 0), "in_blocks": store.kept - pages}
    sorts, causes = _blocks(store.kept, pages, shared, evidence)
    if 10 * pages < store.kept:
        return Retention(store.kept, pages, _PURGE, tuple(sorts), "; ".join(causes), (), SHOWS, evidence)
    told = ""
    tries = ["MALLOC_CONF=background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0"]
    if found is not None:
        evidence["dirty_decay_ms"], evidence["muzzy_decay_ms"] = found
        if NEVER in (found[0], found[1] if spare.get("muzzy") else 0):
            told = f": {'dirty' if found[0] == NEVER else 'muzzy'}_decay_ms is -1, so that they are never given back"
        else:
            told = (
                f": dirty_decay_ms is {number(found[0])}, but only threads that allocate look at the clock, unless background_thread is set"
            )
    cause = f"{size(pages)} of free pages ({size(spare.get('dirty', 0))} dirty, {size(spare.get('muzzy', 0))} muzzy){told}"
    tries.append(f"{_PURGE} when the process is idle")
    return Retention(store.kept, pages, _PURGE, ("decay", *sorts), "; ".join([cause, *causes]), tuple(tries), SHOWS, evidence)


_PURGE = 'mallctl("arena.4096.purge")'
"""MALLCTL_ARENAS_ALL is 4096."""

# -- the others

_REMEDIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "tcmalloc": (
        "MallocExtension::instance()->ReleaseFreeMemory()",
        ("TCMALLOC_RELEASE_RATE=10 (1 is usual, 0: never)", "TCMALLOC_AGGRESSIVE_DECOMMIT=1"),
    ),
    "google-tcmalloc": (
        "MallocExtension::ReleaseMemoryToSystem(SIZE_MAX)",
        ("MallocExtension::SetBackgroundReleaseRate, with a thread that runs ProcessBackgroundActions",),
    ),
    "mimalloc": ("mi_collect(true)", ("MIMALLOC_PURGE_DELAY=0 (before 2.1: MIMALLOC_RESET_DELAY=0, MIMALLOC_PAGE_RESET=1)",)),
    "libumem": ("umem_reap()", ()),
    "pymalloc": ("", ()),
    "musl": ("", ()),
}
"""By allocator: the call that gives free pages back, and settings to try."""

_TOLD = ("tcmalloc",)
"""Those whose call was seen to give back just the free pages. mimalloc's gives back all, a part or nothing, by version and setting."""

_NOTES = {
    "pymalloc": "CPython gives back an arena only when nothing in it is in use",
    "musl": "musl gives back what is wholly free by itself, and has no setting for more",
}


def _other(store: Store, shared: int) -> Retention:
    name = store.allocator.name
    call, settings = _REMEDIES.get(name, ("", ()))
    spare = {sort: amount for sort, amount in store.spare().items() if amount}
    pages = sum(spare.values())
    evidence: dict[str, object] = {"in_blocks": store.kept - pages, **{sort.replace(" ", "_"): amount for sort, amount in spare.items()}}
    sorts: list[str] = []
    causes: list[str] = []
    tries: list[str] = []
    if 10 * pages >= store.kept:
        sorts.append("page heap")
        causes.append(f"{size(pages)} of free pages {'of the page heap' if 'page heap' in spare else 'without a block in them'}")
        tries += settings
        tries += [f"{call} when the process is idle"] if call else []
    others, more = _blocks(store.kept, pages, shared, evidence)
    sorts += others
    causes += more
    if name in _NOTES:
        causes.append(_NOTES[name])
    returns = pages if name in _TOLD else None
    return Retention(store.kept, returns, call, tuple(sorts), "; ".join(causes), tuple(tries), SHOWS, evidence)


def _blocks(kept: int, pages: int, shared: int, evidence: dict[str, object]) -> tuple[list[str], list[str]]:
    """Causes for what is kept as free blocks, beside `pages` without a block: `shared` bytes stand in pages that blocks in use hold."""
    shared = min(shared, kept - pages)
    whole = kept - pages - shared
    evidence["shared"] = shared
    sorts, causes = [], []
    if 10 * whole >= kept:
        sorts.append("between")
        causes.append(f"{size(whole)} are whole pages of free blocks, with blocks in use around them")
    if 10 * shared >= kept:
        sorts.append("fragmentation")
        causes.append(f"{size(shared)} are free blocks in pages that also hold blocks in use (fragmentation)")
    return sorts, causes
