"""Writes an ELF core of a process in the kernel's own form, for debuggers and for findleaks.

The file is sparse: of the pages that the process never touched, or gave back, it has holes. What a
core has no place for, such as the pages that were resident and threads' names, is in a note of
findleaks' own (target/snapshot_note.py)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from findleaks.errors import TargetError
from findleaks.target import snapshot_note
from findleaks.target.base import Range
from findleaks.target.core_writer import contents, zstd
from findleaks.target.core_writer.contents import Process
from findleaks.target.core_writer.headers import laid_out
from findleaks.target.core_writer.notes import notes
from findleaks.target.core_writer.output import Output, Packed, Sparse, check_path, check_space, part_file
from findleaks.target.layout import top_of
from findleaks.target.maps import regions_of
from findleaks.target.stop_record import StopRecord

Progress = Callable[[float], None]
"""Progress callback: takes the part of the work that is done (0: unknown), and may raise."""


class Written(NamedTuple):
    """What was written. Sizes in bytes."""

    path: str
    size: int  # of the core as debuggers see it: unpacked, with holes
    memory: int  # of the process's memory in it
    on_disk: int  # that the file takes
    threads: int


def check(path: str, compress: bool = False) -> None:
    """TargetError where `write_core` cannot write there, or cannot pack: ask before the stop."""
    check_path(path)
    if compress:
        zstd.check()


def write_core(target: Process, path: str, compress: bool = False, progress: Progress = lambda part: None) -> Written:
    """Write a core of a process that `attach` gave, packed with zstd if `compress`.

    `target` is a CopiedProcess, which runs meanwhile, or a LiveTarget, which is stopped for as long
    as this takes. `path` is replaced once the core is whole and on the disk; until then, and after
    any failure, nothing is there but what was before. TargetError in one line: the disk is full,
    the file may not be made, the process has ended (LiveTarget only), nothing can pack. Whatever
    `progress` raises, and KeyboardInterrupt, leave nothing behind either."""
    record = target.record(progress)
    if record is None:
        raise TargetError(
            f"pid {target.pid}: the system does not report which pages of the process are in memory, "
            "and a core would have all its addresses: make it with gcore"
        )
    assert target.pid is not None
    regions = [region for region in regions_of(record.maps) if region.end <= top_of(target.arch.word)]
    chosen = contents.segments(target, record, regions)
    with contextlib.closing(contents.Reader(target, record)) as reader:
        own = snapshot_note.encoded(_own(target, record, reader.unread(chosen)), target.arch.page)
        layout = laid_out(target.arch, chosen, notes(target.arch, record, regions, target.auxv, target.pid, own))
        total = contents.all_bytes(target, record, chosen, lambda: progress(0.0))
        if not compress:
            check_space(path, total)
        done = 0

        def look() -> None:
            progress(min(done / (total or 1), 0.99))

        with part_file(path, look) as fd:
            with contextlib.ExitStack() as stack:
                output: Output = Sparse(fd, look)
                if compress:
                    packer = zstd.packer(fd)
                    stack.callback(packer.close)
                    output = Packed(packer, look)
                output.put(0, memoryview(layout.head))
                for segment, offset in zip(chosen, layout.offsets):
                    move = offset - segment.region.start
                    for piece in reader.pieces(segment) if segment.size else ():
                        output.put(piece.address + move, piece.data)
                        done += len(piece.data)
                if layout.tail:
                    output.put(layout.size - len(layout.tail), memoryview(layout.tail))
                output.end(layout.size)
            stored = os.fstat(fd).st_blocks * 512
    return Written(path, layout.size, done, stored, len(record.registers))


def _own(target: Process, record: StopRecord, unread: Sequence[Range]) -> snapshot_note.SnapshotNote:
    from findleaks import __version__

    taken = target.taken_at or 0.0
    return snapshot_note.SnapshotNote(
        taken,
        target.start_time or 0,
        record.moment.presence,
        unread,
        record.maps,
        target.thread_names(),
        __version__,
        target.kernel_state(),
    )
