"""What commands print of allocation sites: JSON, stacks as text, and how to have them recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Optional, Protocol

from findleaks.allocators.sites import SourceFrame
from findleaks.audit.site_stacks import SiteNames, StackFrame, how_to_record, label
from findleaks.catalogue import CATALOGUE
from findleaks.commands.frames import frame_json
from findleaks.commands.result import fields
from findleaks.commands.stacks import line
from findleaks.engine.terms import Totals
from findleaks.formatting import number, printable, size, wrapped
from findleaks.session import Session

FRAMES = 12  # frames of each stack printed as text without --frames
DEEP = 40  # frames printed of a single stack
TRACKS = "track"  # the command that records stacks of a running process


class Counted(Protocol):
    """Something with a number of blocks and their bytes."""

    @property
    def blocks(self) -> int: ...

    @property
    def bytes(self) -> int: ...


def site_json(session: Session, names: SiteNames, which: int) -> Mapping[str, object]:
    """A site by its number: its recorder, what that counts for it, its frames."""
    _, site, recording = session.sites[which]
    return {
        "number": which,
        "recorder": recording.recorder,
        "live": site.live._asdict(),
        "allocated": site.allocated._asdict() if site.allocated is not None else None,
        "estimated": site.estimated._asdict() if site.estimated is not None else None,
        "frames": [_frame_json(frame) for frame in names.frames(which)],
    }


def sites_json(session: Session, numbers: Sequence[int]) -> list[Mapping[str, object]]:
    names = SiteNames(session)
    return [site_json(session, names, which) for which in numbers]


def _frame_json(frame: StackFrame) -> Mapping[str, object]:
    if not isinstance(frame, SourceFrame):
        return frame_json(frame)
    known = {"function": frame.function or None, "file": frame.file, "line": frame.line or None}
    return {"address": None, "offset": None, "module": None, **known}


def recorders_json(session: Session) -> list[Mapping[str, object]]:
    """Who recorded stacks, and how much of it."""
    return [
        {**fields(one, "recorder", "interval"), "sites": len(one.sites), "blocks": len(one.addresses)} for one in session.sites.recordings
    ]


def stack_lines(names: SiteNames, which: int, width: int, most: int = FRAMES) -> Iterator[str]:
    """The stack from the recorder's callers on, a line a frame. `most` frames; 0: all, also the
    recorder's own."""
    frames = names.callers(which) if most else names.frames(which)
    shown = frames[: most or None]
    for frame in shown:
        yield printable(label(frame), 2000)[:width] if isinstance(frame, SourceFrame) else line(frame, width)
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


def amounts(recorded: Counted, estimated: Optional[Totals]) -> tuple[str, str]:
    """Blocks and bytes as cells; what samples represent is marked as an estimate."""
    if estimated is None:
        return number(recorded.blocks), size(recorded.bytes)
    return f"≈ {number(estimated.blocks)}", f"≈ {size(estimated.bytes)}"


def sampling_lines(session: Session, width: int) -> Iterator[str]:
    """A line for each recorder that samples."""
    for one in session.sites.recordings:
        if one.sampled:
            words = f"{one.recorder} samples: once in {size(one.interval)} on average; figures with ≈ are estimates by its samples"
            yield from ("  " + part for part in wrapped(words, width - 2))


def unrecorded_lines(session: Session, width: int) -> Iterator[str]:
    """How stacks would have been recorded, where none were."""
    yield from wrapped("no allocation stacks were recorded in this process; what would have:", width)
    for words in how_to_record(session):
        yield from ("  " + part for part in wrapped(words, width - 2))
    if TRACKS in CATALOGUE and session.target.live:
        yield from wrapped(f"  `{TRACKS}` records those of a running process", width)
