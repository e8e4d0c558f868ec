"""Convert call stacks and allocation sites to results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from findleaks.allocators.sites import SourceFrame
from findleaks.audit import site_stacks
from findleaks.audit.site_stacks import SiteNames, list_recording_hints
from findleaks.results.amounts import Amount
from findleaks.results.sites import Recorder, Site, StackFrame
from findleaks.session import Session
from findleaks.unwind.stacks import NamedFrame


@lru_cache(1 << 14)
def native_frame(frame: NamedFrame) -> StackFrame:
    """Return a frame as a result. If its function is inlined, the offset is unknown. Equal
    frames have the same object as their result, because many stacks have equal frames."""
    return StackFrame(
        None if frame.kind else frame.address,
        frame.function or None,
        None if frame.inlined or frame.kind else frame.offset,
        frame.module or None,
        frame.file or None,
        frame.line or None,
        frame.inlined,
        frame.kind or None,
        frame.is_async,
        frame.reason or None,
    )


def _frame(frame: site_stacks.StackFrame) -> StackFrame:
    if isinstance(frame, SourceFrame):
        return StackFrame(None, frame.function or None, None, None, frame.file, frame.line or None)
    return native_frame(frame)


def allocation_site(session: Session, names: SiteNames, number: int) -> Site:
    """Return the site with this number: its recorder, the recorder's counts, and its frames."""
    _, site, recording = session.sites[number]
    return Site(
        number,
        recording.recorder,
        live=Amount.of(site.live),
        allocated=Amount.of_known(site.allocated),
        estimated=Amount.of_known(site.estimated),
        frames=[_frame(frame) for frame in names.frames(number)],
    )


def allocation_sites(session: Session, numbers: Sequence[int]) -> list[Site]:
    """Return the sites with these numbers."""
    names = SiteNames(session)
    return [allocation_site(session, names, number) for number in numbers]


def recording_hints(session: Session) -> Sequence[str]:
    """Return how to start the program so that stacks are recorded; () if stacks were recorded."""
    return () if len(session.sites) else list_recording_hints(session)


def recorders(session: Session) -> list[Recorder]:
    """Return the recorders of allocation stacks, with the number of sites and blocks of each."""
    return [Recorder(one.recorder, one.interval, len(one.sites), len(one.addresses)) for one in session.sites.recordings]
