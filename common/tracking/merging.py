"""Merge the stacks of one leak: stacks that allocate in the same function, and whose blocks have
the same fate.

A function with many callers, or a recursive one, allocates with many stacks. The common frames of
these stacks are the frames that all of them share, from the allocating function outwards. Stacks
that differ in further frames are variants. Functions that allocate for any caller (malloc, strdup,
xmalloc, std::vector) do not count as the allocating function, because unrelated leaks share
them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from findleaks.tracking.sites import TrackedSite, add_tallies
from findleaks.unwind.stacks import NamedFrame, without_parameters

_RUNTIME = re.compile(r"(?:libc|libstdc\+\+|libc\+\+|ld-musl-[\w-]+|libjemalloc|libtcmalloc\w*|libmimalloc)[.-]")
"""Modules whose functions allocate for their callers."""
_ALLOCATES = re.compile(
    r".*(?:alloc|memalign|strn?dup|memdup|asprintf)(?:0|_n|_array|array|_aligned|_or_die)*"
    r"|operator new(?:\[\])?|mallocx|rallocx",
    re.IGNORECASE,
)
"""Last parts of the names of functions that allocate for their callers: xmalloc, g_malloc0_n."""
_LIBRARIES = re.compile(r"[<&*]*(?:std|core|alloc|hashbrown|__gnu_cxx|void std|decltype)\b.*::")
"""Matches names in the standard libraries of C++ and Rust."""
CALLERS = 4  # maximum number of frames that identify a variant


@dataclass
class Variant:
    """Stacks of an entry that have further frames in common. `frames`: the first frames that differ
    from other variants, innermost first; () for a stack that ends where the others continue."""

    frames: tuple[NamedFrame, ...]
    total: TrackedSite
    stacks: int


@dataclass
class MergedStack:
    """Merged stacks. `frames`: the frames that all stacks have in common; a frame whose address
    differs between the stacks has no offset and line. `key`: the frame of the function that
    allocates. `total`: the sum of `sites`."""

    key: NamedFrame | None
    frames: tuple[NamedFrame, ...]
    total: TrackedSite
    sites: list[TrackedSite]
    variants: list[Variant] = field(default_factory=list)


def merge_stacks(found: Sequence[TrackedSite]) -> list[MergedStack]:
    """Merge sites into entries, ordered by their sums."""
    groups: dict[tuple[str, object], list[TrackedSite]] = {}
    for site in found:
        at = allocating_frame(site.frames)
        what = _identity(site.frames[at]) if site.frames else id(site)
        groups.setdefault((site.fate, what), []).append(site)
    return sorted(map(_entry, groups.values()), key=lambda entry: entry.total.order)


def allocating_frame(frames: Sequence[NamedFrame]) -> int:
    """Return the index of the innermost frame whose function does not allocate for its callers; 0
    if there is none."""
    return next((at for at, frame in enumerate(frames) if not _serves_callers(frame)), 0)


def _serves_callers(frame: NamedFrame) -> bool:
    if _RUNTIME.match(frame.module):
        return True
    name = without_parameters(frame.function)
    return bool(_LIBRARIES.match(frame.function) or _ALLOCATES.fullmatch(name.rsplit("::", 1)[-1]))


def _identity(frame: NamedFrame) -> object:
    """Return a value that identifies the function of a frame. Without a symbol, the value is the
    address of the frame. For managed functions, the value includes the file, because functions of
    several files often have the same name, such as "<module>"."""
    return (frame.function, frame.module, frame.file if frame.kind else "") if frame.function else frame.address


def _entry(sites: list[TrackedSite]) -> MergedStack:
    first = sites[0].frames
    if len(sites) == 1:
        return MergedStack(first[allocating_frame(first)] if first else None, first, sites[0], sites)
    own = [site.frames[allocating_frame(site.frames) :] for site in sites]
    shared = _count_shared_frames(own)
    lead = [site.frames[: allocating_frame(site.frames)] for site in sites]
    before = _merged_frames(lead) if len({tuple(map(_identity, frames)) for frames in lead}) == 1 else ()
    frames = _merged_frames([stack[:shared] for stack in own])
    return MergedStack(frames[0], (*before, *frames), _sum(sites), sites, _variants(sites, own, shared))


def _count_shared_frames(stacks: Sequence[Sequence[NamedFrame]]) -> int:
    """Return the number of frames, from the innermost, whose functions are equal in all stacks."""
    least = min(map(len, stacks))
    return next((at for at in range(least) if len({_identity(stack[at]) for stack in stacks}) > 1), least)


def _merged_frames(stacks: Sequence[Sequence[NamedFrame]]) -> tuple[NamedFrame, ...]:
    """Merge the frames of stacks with equal functions into one stack."""
    return tuple(
        frames[0] if len(set(frames)) == 1 else frames[0]._replace(offset=0, line=0, file="", address=min(one.address for one in frames))
        for frames in zip(*stacks)
    )


def _variants(sites: Sequence[TrackedSite], own: Sequence[Sequence[NamedFrame]], shared: int) -> list[Variant]:
    """Divide stacks whose `shared` innermost frames are equal into variants, by the next frame. If
    no stack has a further frame, divide them by the addresses of the common frames."""
    groups: dict[object, list[tuple[TrackedSite, Sequence[NamedFrame]]]] = {}
    apart = any(len(stack) > shared for stack in own)
    for site, stack in zip(sites, own):
        outer = stack[shared:] if apart else _frames_that_differ(stack, own)
        groups.setdefault((_identity(outer[0]) if apart else outer[0].address) if outer else None, []).append((site, outer))
    made = []
    for group in groups.values():
        outers = [outer for _, outer in group]
        made.append(
            Variant(
                _merged_frames([outer[: _count_shared_frames(outers)] for outer in outers])[:CALLERS],
                _sum([s for s, _ in group]),
                len(group),
            )
        )
    return sorted(made, key=lambda variant: variant.total.order)


def _frames_that_differ(stack: Sequence[NamedFrame], stacks: Sequence[Sequence[NamedFrame]]) -> Sequence[NamedFrame]:
    """Return the frames of a stack from the first whose address differs between the stacks."""
    return next((stack[at:] for at in range(len(stack)) if len({one[at].address for one in stacks}) > 1), stack[:1])


def _sum(sites: Sequence[TrackedSite]) -> TrackedSite:
    """Sum the tallies, examples and holders of several sites."""
    made = TrackedSite(sites[0].frames, sites[0].end)
    counts: dict[str, int] = {}
    for site in sites:
        add_tallies(made, site)
        for label, count in site.holders:
            counts[label] = counts.get(label, 0) + count
    made.holders = sorted(counts.items(), key=lambda pair: -pair[1])
    return made
