"""Explain why `track` has no stacks to show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Optional

from findleaks.allocators.base import Allocator
from findleaks.arg_types import SizeRange
from findleaks.formatting import blocks, format_count, size, some
from findleaks.results.track import AllocatedSize, UnseenReason
from findleaks.session import Session
from findleaks.tracking.probe import Probe
from findleaks.tracking.record_table import Record, Sampling
from findleaks.tracking.tracker import Recording

STOPPED = 0.9  # a process counts as stopped if it was stopped for this fraction of the time
SIZES = 5  # maximum number of sizes that are named, those with the most blocks first
PYMALLOC_MOST = 512
"""Size in bytes of the largest block of pymalloc (CPython, Objects/obmalloc.c,
SMALL_REQUEST_THRESHOLD)."""
_PYMALLOC = "pymalloc"


def find_reasons(
    session: Session,
    records: Sequence[Record],
    sizes: Optional[SizeRange],
    sampling: Sampling,
    probe: Optional[Probe],
    span: Recording,
    modules: Collection[str],
    mappings: bool = False,
) -> list[UnseenReason]:
    """Return the reasons why no block, or no mapping, of these `sizes` (None: any size) is in the
    `records`. `modules`: the modules whose functions have stubs."""
    if span.outcome.why == "stop" and span.outcome.text:
        return [UnseenReason("stopped", f"the process was stopped after {span.seconds:.1f} s: {span.outcome.text}")]
    part = probe.stopped_part if probe is not None else 0.0
    if part > STOPPED:
        what = "the process is stopped by a signal (SIGSTOP, Ctrl-Z)"
        return [UnseenReason("stopped", f"{what}: it allocates nothing until `kill -CONT {session.target.pid}`")]
    if mappings:
        calls = "system calls that the program makes itself, as Go does, are not seen"
        return [UnseenReason("idle", f"the process mapped no such memory by functions of {some(sorted(modules))}; {calls}")]
    seen, unreached = list(_find_other_sizes(records, sampling, probe)), list(_list_unreached(session, modules))
    if not seen and not unreached:
        seen = [UnseenReason("idle", f"the process is idle: it allocated no block of any size by {some(sorted(modules))}")]
    return [
        *seen,
        *_small_objects(session, sizes),
        *unreached,
        *([UnseenReason("stopped", f"it was stopped by a signal for {100 * part:.0f} % of the time")] if part else []),
        *(_list_missed(sampling) if sampling.mean else ()),
    ]


def _find_other_sizes(records: Sequence[Record], sampling: Sampling, probe: Optional[Probe]) -> Iterator[UnseenReason]:
    """Yield a reason if blocks of other sizes than the requested ones were allocated."""
    counts: Counter[int] = Counter()
    for record in records:
        counts[record.size] += round(sampling.weight(record)) if record.mean else 1
    most = counts.most_common(SIZES)
    if most:
        first = f"in the first {probe.seconds:.1f} s " if probe is not None and probe.seconds is not None else ""
        named = some([f"{count:,} of {size(one)}" for one, count in most], SIZES)
        rest = f", and {format_count(len(counts) - len(most), 'further size')}" if len(counts) > len(most) else ""
        yield UnseenReason(
            "other_sizes",
            f"{first}{blocks(sum(counts.values()))} of other sizes were allocated: {named}{rest}",
            [AllocatedSize(*one) for one in most],
        )


def _small_objects(session: Session, sizes: Optional[SizeRange]) -> Iterator[UnseenReason]:
    """If CPython's own allocator serves these sizes, yield this as the reason. It allocates small
    objects in arenas, without calling malloc."""
    if any(one.name == _PYMALLOC for one in session.directory.allocators) and (sizes is None or sizes.low <= PYMALLOC_MOST):
        what = f"Python's small objects (up to {size(PYMALLOC_MOST)}) come from pymalloc: malloc sees only its arenas"
        yield UnseenReason("pymalloc", f"{what}; a Python started with PYTHONMALLOC=malloc allocates each by malloc")


def _list_unreached(session: Session, modules: Collection[str]) -> Iterator[UnseenReason]:
    """Yield allocators that have blocks but whose functions have no stub. They are linked
    statically under other names, or are too far away."""
    seen = sorted(modules)
    for one in _others(session.directory.allocators, modules):
        held = _count_in_use(session, one)
        if held:
            what = f"{one.title} in {one.where} has {blocks(held)} in use, and its functions were not reached"
            yield UnseenReason("other_allocator", f"{what}: only what {some(seen)} allocates is seen")


def _others(allocators: Iterable[Allocator], modules: Collection[str]) -> Iterator[Allocator]:
    return (one for one in allocators if one.name != _PYMALLOC and one.where.rsplit("/", 1)[-1] not in modules)


def _count_in_use(session: Session, allocator: Allocator) -> int:
    return sum(row.in_use for row in allocator.caches(session.directory.blocks))


def _list_missed(sampling: Sampling) -> Iterator[UnseenReason]:
    of = f"bytes ({size(sampling.mean)})" if sampling.by_bytes else "blocks"
    yield UnseenReason(
        "sampled", f"only one in {sampling.mean:,} {of} is recorded, so a few blocks may be missed; omit --sample to record each block"
    )
