"""Text about allocation sites: their call stacks, and how to record them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.sites import SourceFrame
from findleaks.audit.site_stacks import SiteNames, frame_label
from findleaks.catalogue import CATALOGUE
from findleaks.commands.stacks import line
from findleaks.formatting import number, printable, size, wrap
from findleaks.results.amounts import Counted
from findleaks.session import Session

FRAMES = 12  # Maximum number of frames of each stack printed as text without --frames.
DEEP = 40  # Maximum number of frames printed if there is a single stack.
TRACKS = "track"  # The command that records stacks of a running process.


def stack_lines(names: SiteNames, which: int, width: int, most: int = FRAMES) -> Iterator[str]:
    """Yield the lines of a stack, one for each frame, without the recorder's own frames. `most`:
    maximum number of frames; 0: all frames, including the recorder's."""
    frames = names.callers(which) if most else names.frames(which)
    shown = frames[: most or None]
    for frame in shown:
        yield printable(frame_label(frame), 2000)[:width] if isinstance(frame, SourceFrame) else line(frame, width)
    if not frames:
        yield "an empty stack: the recorder could not unwind it"
    if len(shown) < len(frames):
        yield f"… {len(frames) - len(shown)} more (--frames 0)"


def site_lines(session: Session, which: int, width: int) -> Iterator[str]:
    """Yield the lines of a site and its stack, indented."""
    _, site, recording = session.sites[which]
    count, amount = amounts(site.live, site.estimated)
    held = f"{count} block{'' if count == '1' else 's'} in use, {amount}, " if site.live.blocks else ""
    words = f"site {which} ({recording.recorder}): {held}{'freed' if recording.freed else 'allocated'} by"
    yield from ("  " + part for part in wrap(words, width - 2))
    yield from ("    " + frame for frame in stack_lines(SiteNames(session), which, width - 4, DEEP))


def amounts(recorded: Counted, estimated: Optional[Counted]) -> tuple[str, str]:
    """Return numbers of blocks and bytes as cells. Estimates from samples are marked."""
    if estimated is None:
        return number(recorded.blocks), size(recorded.bytes)
    return f"≈ {number(estimated.blocks)}", f"≈ {size(estimated.bytes)}"


def sampling_lines(session: Session, width: int) -> Iterator[str]:
    """Yield a line for each recorder that samples."""
    for one in session.sites.recordings:
        if one.sampled:
            words = f"{one.recorder} takes one sample every {size(one.interval)} on average; figures with ≈ are estimates"
            yield from ("  " + part for part in wrap(words, width - 2))


def unrecorded_lines(session: Session, hints: Sequence[str], width: int) -> Iterator[str]:
    """Yield lines that explain how to record allocation stacks. `hints`: how to start the
    program."""
    yield from wrap("no allocation stacks were recorded in this process; to record them:", width)
    for words in hints:
        yield from ("  " + part for part in wrap(words, width - 2))
    if TRACKS in CATALOGUE and session.target.live:
        yield from wrap(f"  `{TRACKS}` records those of a running process", width)
