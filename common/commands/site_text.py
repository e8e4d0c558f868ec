"""Text on allocation sites: their call stacks, and how to record them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from findleaks.allocators.sites import SourceFrame
from findleaks.audit.site_stacks import SiteNames, frame_label, list_recording_hints
from findleaks.catalogue import CATALOGUE
from findleaks.commands.stacks import line
from findleaks.formatting import number, printable, size, wrapped
from findleaks.results.amounts import Counted
from findleaks.session import Session

FRAMES = 12  # Most frames of each stack printed as text without --frames.
DEEP = 40  # Most frames printed of a single stack.
TRACKS = "track"  # The command that records stacks of a running process.


def stack_lines(names: SiteNames, which: int, width: int, most: int = FRAMES) -> Iterator[str]:
    """The stack from the recorder's callers on, one line per frame. `most`: number of frames; 0:
    all, with the recorder's own."""
    frames = names.callers(which) if most else names.frames(which)
    shown = frames[: most or None]
    for frame in shown:
        yield printable(frame_label(frame), 2000)[:width] if isinstance(frame, SourceFrame) else line(frame, width)
    if not frames:
        yield "an empty stack: the recorder could not unwind it"
    if len(shown) < len(frames):
        yield f"… {len(frames) - len(shown)} more (--frames 0)"


def site_lines(session: Session, which: int, width: int) -> Iterator[str]:
    """A site with its stack, indented."""
    _, site, recording = session.sites[which]
    count, amount = amounts(site.live, site.estimated)
    held = f"{count} block{'' if count == '1' else 's'} in use, {amount}, " if site.live.blocks else ""
    words = f"site {which} ({recording.recorder}): {held}{'freed' if recording.freed else 'allocated'} by"
    yield from ("  " + part for part in wrapped(words, width - 2))
    yield from ("    " + frame for frame in stack_lines(SiteNames(session), which, width - 4, DEEP))


def amounts(recorded: Counted, estimated: Optional[Counted]) -> tuple[str, str]:
    """Blocks and bytes as cells. Values that samples represent are marked as estimates."""
    if estimated is None:
        return number(recorded.blocks), size(recorded.bytes)
    return f"≈ {number(estimated.blocks)}", f"≈ {size(estimated.bytes)}"


def sampling_lines(session: Session, width: int) -> Iterator[str]:
    """A line for each recorder that samples."""
    for one in session.sites.recordings:
        if one.sampled:
            words = f"{one.recorder} takes one sample every {size(one.interval)} on average; figures with ≈ are estimates"
            yield from ("  " + part for part in wrapped(words, width - 2))


def unrecorded_lines(session: Session, width: int) -> Iterator[str]:
    """Lines on how to record allocation stacks, if none were recorded."""
    yield from wrapped("no allocation stacks were recorded in this process; to record them:", width)
    for words in list_recording_hints(session):
        yield from ("  " + part for part in wrapped(words, width - 2))
    if TRACKS in CATALOGUE and session.target.live:
        yield from wrapped(f"  `{TRACKS}` records those of a running process", width)
