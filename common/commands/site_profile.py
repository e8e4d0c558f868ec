"""Build the profile of blocks by the stacks that allocated them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat

from findleaks.allocators.sites import SourceFrame
from findleaks.audit.block_batches import Batch
from findleaks.audit.site_stacks import SiteNames, StackFrame, frame_label
from findleaks.commands.profiles import blocks_measures, call_frame
from findleaks.errors import UsageError
from findleaks.formatting import blocks as blocks_of
from findleaks.formatting import size as size_of
from findleaks.report.profile import Frame, Profile, Sample, frame_name
from findleaks.session import Session

NOT_RECORDED = "stack not recorded"
"""The name of the frame for blocks whose allocation was not recorded."""


def of_sites(session: Session, title: str, word: str, batches: Iterable[Batch], whole: bool = False) -> Profile:
    """Return a profile of blocks by allocation site. `batches`: the blocks in columns.

    `word`: what the blocks are, such as "leaked". If the recorder samples, each sampled block
    counts for the blocks that it represents, and the blocks without a sample are left out. `whole`:
    whether to include the recorder's own frames. Raises UsageError if no stacks were recorded."""
    sites = session.sites
    if not len(sites):
        raise UsageError("no allocation stacks were recorded in this process; `find --by site` prints how to record them")
    sums: dict[int, list[float]] = {}
    for batch in batches:
        for address, size, site in zip(batch.addresses, batch.sizes, batch.sites or repeat(0)):
            number, weight = sites.site_and_weight(address) if site else (0, 1.0)
            found = sums.setdefault(number, [0.0, 0.0])
            found[0] += weight
            found[1] += weight * size
    names = SiteNames(session)
    rates = {one.interval for one in sites.recordings if one.sampled}
    profile = Profile(f"{title}: {session.target.description}", blocks_measures(word), [], rate=max(rates, default=0))
    unknown = sums.pop(0, [0, 0])
    if unknown[0] and not rates:
        sums[0] = unknown
    known: dict[StackFrame, Frame] = {}
    profile.samples = [
        Sample(_stack(names, number, known, whole), (round(blocks), round(held))) for number, (blocks, held) in sorted(sums.items())
    ]
    if rates:
        profile.notes = [f"estimates: the recorder takes one sample every {size_of(profile.rate)} on average"]
    elif unknown[0]:
        profile.notes = [f"{blocks_of(int(unknown[0]))}, {size_of(int(unknown[1]))}, without a recorded stack"]
    return profile


def _stack(names: SiteNames, number: int, known: dict[StackFrame, Frame], whole: bool) -> tuple[Frame, ...]:
    if not number:
        return (Frame(NOT_RECORDED),)
    frames = names.frames(number) if whole else names.callers(number)
    return tuple(known.get(one) or known.setdefault(one, _frame(one)) for one in reversed(frames))


def _frame(frame: StackFrame) -> Frame:
    if isinstance(frame, SourceFrame):
        return Frame(frame_name(frame_label(frame)), file=frame_name(frame.file), line=frame.line)
    return call_frame(frame)
