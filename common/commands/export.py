"""Writes the files of `-o`: profiles of stacks, and blocks; imported where one is wanted only."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional

from findleaks.commands.blocks_rows import BlockRows
from findleaks.commands.output import Written
from findleaks.report.files import write_file
from findleaks.report.profile import Profile
from findleaks.session import Session
from findleaks.target.base import Target

ROWS_PER_REPORT = 1 << 14  # blocks written between two progress reports


def of_target(profile: Profile, target: Target) -> Profile:
    """The profile with where its addresses lie, and when the process was read."""
    profile.regions, profile.time = target.regions(), target.taken_at
    profile.modules = sorted(target.modules(), key=lambda one: one.path != target.exe_path)
    return profile


def write_profile(session: Session, profile: Profile, file: str, form: str) -> Written:
    """Write it in this format, one of output.FORMATS. UsageError where it cannot hold the profile,
    FindleaksError where the file cannot be written."""
    session.report_progress(f"writing {os.path.basename(file)}", 0.0)
    data = rendered(profile, form)
    write_file(file, data)
    return Written(file, len(data), form, profile.notes)


def rendered(profile: Profile, form: str) -> bytes:
    """The file's content."""
    if form == "flamegraph":
        from findleaks.report.flamegraph.html import render
    elif form == "pprof":
        from findleaks.report.profiles.pprof import render
    elif form == "speedscope":
        from findleaks.report.profiles.speedscope import render
    elif form == "heap":
        from findleaks.report.profiles.heap import render
    else:
        from findleaks.report.profiles.folded import render
    return render(profile)


def write_blocks(session: Session, rows: BlockRows, file: str, form: str, order: Optional[array[int]] = None, limit: int = 0) -> Written:
    """Write the blocks as CSV or SQLite: those in `order`, else by address. limit 0: all."""
    from findleaks.report.block_files import write_csv, write_sqlite

    found = block_rows(session, rows, order, limit)
    if form == "csv":
        write_csv(file, found)
    else:
        about = {"findleaks": "blocks/1", "process": session.target.description}
        sites: set[int] = set()
        write_sqlite(file, _noting(found, sites), about, site_rows(session, sites))
    return Written(file, os.path.getsize(file), form)


def block_rows(session: Session, rows: BlockRows, order: Optional[array[int]] = None, limit: int = 0) -> Iterator[Mapping[str, Any]]:
    """The JSON of blocks: those in `order`, else by address. limit 0: all."""
    import json

    for count, line in enumerate(_lines(rows.json(order, limit))):
        if count % ROWS_PER_REPORT == 0:
            session.report_progress("writing blocks", 0.0)
        yield json.loads(line)


def _lines(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from text.splitlines()


def _noting(rows: Iterable[Mapping[str, Any]], sites: set[int]) -> Iterator[Mapping[str, Any]]:
    """The rows; the numbers of their sites are put into `sites` as they are taken."""
    for row in rows:
        if row["site"]:
            sites.add(row["site"])
        yield row


def site_rows(session: Session, numbers: Iterable[int]) -> Iterator[tuple[object, ...]]:
    """Rows of the table `sites`: the stacks of these sites, the innermost frame first."""
    from findleaks.allocators.sites import SourceFrame
    from findleaks.audit.site_stacks import SiteNames

    names = SiteNames(session)
    for number in sorted(numbers):
        for place, frame in enumerate(names.frames(number)):
            source = frame.file or None, frame.line or None
            if isinstance(frame, SourceFrame):
                yield number, place, None, frame.function or None, None, None, *source
            else:
                offset = None if frame.inlined else frame.offset
                yield number, place, frame.address, frame.function or None, offset, frame.module or None, *source
