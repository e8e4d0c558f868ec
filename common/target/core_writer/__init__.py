"""Write an ELF core of a process in the kernel's format, for debuggers and for findleaks.

The file is sparse: pages that the process never touched, or returned to the kernel, are holes. A
note of findleaks (target/snapshot_note.py) has the data for which the format has no place, such as
resident pages and thread names."""

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
from findleaks.target.core_writer.headers import lay_out_core
from findleaks.target.core_writer.notes import notes
from findleaks.target.core_writer.output import Output, Packed, Sparse, check_path, check_space, part_file
from findleaks.target.layout import top_of
from findleaks.target.maps import regions_of
from findleaks.target.stop_record import StopRecord

Progress = Callable[[float], None]
"""Progress callback: takes the completed part of the work (0: unknown), and may raise."""


class Written(NamedTuple):
    """Result of `write_core`. Sizes in bytes."""

    path: str
    size: int  # bytes of the uncompressed core, holes included
    memory: int  # bytes of the process's memory in the core
    on_disk: int  # disk space of the file
    threads: int


def check(path: str, compress: bool = False) -> None:
    """Check that `write_core` can write to this path, and can compress. Call this before the
    process is stopped.
    Raises TargetError."""
    check_path(path)
    if compress:
        zstd.check()


def write_core(target: Process, path: str, compress: bool = False, progress: Progress = lambda part: None) -> Written:
    """Write a core of a process that `attach` opened, compressed with zstd if `compress`.

    `target` is a CopiedProcess, whose process runs while the core is written, or a LiveTarget,
    which stays stopped until the core is written. `path` is replaced once the core is complete and
    on disk. After any failure, including exceptions of `progress` and KeyboardInterrupt, `path` is
    as before. Raises TargetError if the disk is full, the file cannot be created, the process has
    ended (LiveTarget only), or nothing on this machine can compress."""
    record = target.record(progress)
    if record is None:
        raise TargetError(
            f"pid {target.pid}: the system does not report which pages of the process are in memory, "
            "so a core would contain all its address space; use gcore"
        )
    assert target.pid is not None
    regions = [region for region in regions_of(record.maps) if region.end <= top_of(target.arch.word)]
    chosen = contents.segments(target, record, regions)
    with contextlib.closing(contents.Reader(target, record)) as reader:
        own = snapshot_note.encode_note(_own(target, record, reader.unread(chosen)), target.arch.page)
        layout = lay_out_core(target.arch, chosen, notes(target.arch, record, regions, target.auxv, target.pid, own))
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
        record.pages.presence,
        unread,
        record.maps,
        target.thread_names(),
        __version__,
        target.kernel_state(),
    )
