"""Write the files of -o: profiles of stacks, and blocks. Commands import this module only if a file
is requested."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator
from typing import Optional

from findleaks.audit.block_batches import Batch
from findleaks.audit.block_rows import BlockRows
from findleaks.report.files import write_file
from findleaks.report.profile import Profile
from findleaks.results.written import WrittenFile
from findleaks.session import Session
from findleaks.target.base import Target


def of_target(profile: Profile, target: Target) -> Profile:
    """Add the target's mappings to a profile, and the time at which the process was read."""
    profile.regions, profile.time = target.regions(), target.taken_at
    profile.modules = sorted(target.modules(), key=lambda one: one.path != target.exe_path)
    return profile


def write_profile(session: Session, profile: Profile, file: str, form: str) -> WrittenFile:
    """Write the profile in this format, one of output.FORMATS. Raises UsageError if the format
    cannot represent the profile, and FindleaksError if the file cannot be written."""
    session.report_progress(f"writing {os.path.basename(file)}", 0.0)
    data = render(profile, form)
    write_file(file, data)
    return WrittenFile(file, len(data), form, profile.notes)


def render(profile: Profile, form: str) -> bytes:
    """Return the content of the file."""
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


def write_blocks(
    session: Session, rows: BlockRows, file: str, form: str, order: Optional[array[int]] = None, limit: int = 0
) -> WrittenFile:
    """Write the blocks as CSV, SQLite or Parquet. `order`: indices of the blocks in the order of
    the file; None: all by address. limit 0: all."""
    found = block_batches(session, rows, order, limit)
    about = {"findleaks": "blocks/1", "process": session.target.description}
    if form == "parquet":
        from findleaks.report.block_parquet import write_parquet

        write_parquet(file, found, rows.names, about)
    elif form == "csv":
        from findleaks.report.block_files import write_csv

        write_csv(file, found, rows.names)
    else:
        from findleaks.report.block_files import write_sqlite

        sites: set[int] = set()
        write_sqlite(file, _noting(found, sites), rows.names, about, site_rows(session, sites))
    return WrittenFile(file, os.path.getsize(file), form)


def block_batches(session: Session, rows: BlockRows, order: Optional[array[int]] = None, limit: int = 0) -> Iterator[Batch]:
    """Return the columns of blocks in batches. `order`: indices of the blocks in the wanted order;
    None: all by address. limit 0: all."""
    for batch in rows.batches(order, limit):
        session.report_progress("writing blocks", 0.0)
        yield batch


def _noting(batches: Iterable[Batch], sites: set[int]) -> Iterator[Batch]:
    """Yield the batches unchanged, and add the numbers of their sites to `sites`."""
    for batch in batches:
        sites.update(filter(None, batch.sites))
        yield batch


def site_rows(session: Session, numbers: Iterable[int]) -> Iterator[tuple[object, ...]]:
    """Yield the rows of the table `sites`: the call stacks of these sites, innermost frame
    first."""
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
