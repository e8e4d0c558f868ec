"""Explains why `track` has no stacks to show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.base import Allocator
from findleaks.arg_types import SizeRange
from findleaks.formatting import blocks, counted, size, some
from findleaks.session import Session
from findleaks.tracking.probe import Probe
from findleaks.tracking.record_table import Record, Sampling
from findleaks.tracking.tracker import Recording

STOPPED = 0.9  # share of the time from which a process counts as stopped
SIZES = 5  # most sizes named, those of most blocks first
PYMALLOC_MOST = 512
"""Bytes of pymalloc's largest block (CPython, Objects/obmalloc.c, SMALL_REQUEST_THRESHOLD)."""
_PYMALLOC = "pymalloc"


class Reason(NamedTuple):
    """Why nothing was recorded. `what`: "stopped", "idle", "other_sizes", "other_allocator",
    "pymalloc" or "sampled". `sizes`: (bytes requested, estimated blocks) of what was allocated
    instead."""

    what: str
    text: str
    sizes: Sequence[tuple[int, int]] = ()

    def json(self) -> Mapping[str, object]:
        found = {"sizes": [{"size": one, "blocks": count} for one, count in self.sizes]} if self.sizes else {}
        return {"reason": self.what, "text": self.text, **found}


def find_reasons(
    session: Session,
    records: Sequence[Record],
    sizes: Optional[SizeRange],
    sampling: Sampling,
    probe: Optional[Probe],
    span: Recording,
    modules: Collection[str],
) -> list[Reason]:
    """Explain why no block of these `sizes` (None: of any size) is in the `records`. `modules`:
    names of the modules whose functions have stubs."""
    if span.outcome.why == "stop" and span.outcome.text:
        return [Reason("stopped", f"the process was stopped after {span.seconds:.1f} s: {span.outcome.text}")]
    part = probe.stopped_part if probe is not None else 0.0
    if part > STOPPED:
        what = "the process is stopped by a signal (SIGSTOP, Ctrl-Z)"
        return [Reason("stopped", f"{what}: it allocates nothing before `kill -CONT {session.target.pid}`")]
    seen, unreached = list(_find_other_sizes(records, sampling, probe)), list(_find_unreached(session, modules))
    if not seen and not unreached:
        seen = [Reason("idle", f"the process is idle: it allocated no block of any size by {some(sorted(modules))}")]
    return [
        *seen,
        *_small_objects(session, sizes),
        *unreached,
        *([Reason("stopped", f"it was stopped by a signal for {100 * part:.0f} % of the time")] if part else []),
        *(_explain_sampling(sampling) if sampling.mean else ()),
    ]


def _find_other_sizes(records: Sequence[Record], sampling: Sampling, probe: Optional[Probe]) -> Iterator[Reason]:
    """Yield the reasons from recorded blocks of other sizes."""
    counts: Counter[int] = Counter()
    for record in records:
        counts[record.size] += round(sampling.weight(record)) if record.mean else 1
    most = counts.most_common(SIZES)
    if most:
        first = f"in the first {probe.seconds:.1f} s " if probe is not None and probe.seconds is not None else ""
        named = some([f"{count:,} of {size(one)}" for one, count in most], SIZES)
        rest = f", and {counted(len(counts) - len(most), 'further size')}" if len(counts) > len(most) else ""
        yield Reason("other_sizes", f"{first}{blocks(sum(counts.values()))} of other sizes were allocated: {named}{rest}", most)


def _small_objects(session: Session, sizes: Optional[SizeRange]) -> Iterator[Reason]:
    """Yield the reason from CPython's allocator, which takes small objects from arenas."""
    if any(one.name == _PYMALLOC for one in session.directory.allocators) and (sizes is None or sizes.low <= PYMALLOC_MOST):
        what = f"Python's small objects (up to {size(PYMALLOC_MOST)}) come from pymalloc: malloc sees only its arenas"
        yield Reason("pymalloc", f"{what}; a Python started with PYTHONMALLOC=malloc allocates each by malloc")


def _find_unreached(session: Session, modules: Collection[str]) -> Iterator[Reason]:
    """Yield allocators in use whose functions have no stub: linked statically under other names, or
    too far away."""
    seen = sorted(modules)
    for one in _others(session.directory.allocators, modules):
        held = _count_in_use(session, one)
        if held:
            what = f"{one.title} in {one.where} has {blocks(held)} in use, and its functions were not reached"
            yield Reason("other_allocator", f"{what}: only what {some(seen)} allocates is seen")


def _others(allocators: Iterable[Allocator], modules: Collection[str]) -> Iterator[Allocator]:
    return (one for one in allocators if one.name != _PYMALLOC and one.where.rsplit("/", 1)[-1] not in modules)


def _count_in_use(session: Session, allocator: Allocator) -> int:
    return sum(row.in_use for row in allocator.caches(session.directory.blocks))


def _explain_sampling(sampling: Sampling) -> Iterator[Reason]:
    of = f"bytes ({size(sampling.mean)})" if sampling.by_bytes else "blocks"
    yield Reason("sampled", f"only one in {sampling.mean:,} {of} is recorded: fewer blocks than that may go unseen without --sample")
