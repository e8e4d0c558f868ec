"""Which parts of a process's memory its core has, as the kernel would choose them by default.
Sources: Linux fs/coredump.c, vma_dump_size (6.x); Documentation/filesystems/proc.rst (VmFlags)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Union

from findleaks.target import elf
from findleaks.target.base import Piece, Range, Region, is_shared_memory
from findleaks.target.copied import PIECE, CopiedProcess
from findleaks.target.copying import KERNELS
from findleaks.target.files import content
from findleaks.target.live import LiveTarget
from findleaks.target.mapped_files import MappedFile, MappedFiles
from findleaks.target.modules import DELETED
from findleaks.target.ranges import merged
from findleaks.target.stop_record import StopRecord

Process = Union[CopiedProcess, LiveTarget]

_RESERVED = 1 << 30
"""Bytes from which an anonymous mapping without a page is left out, as the kernel leaves out all of
them: else packing and copying a core would take as long as its reservations are large. Smaller
ones are holes of the file, so that debuggers read the zeros that the process would."""
_MOST_SHARED = 64 << 20
"""Bytes of a writable shared mapping of a file on disk up to which it is written, unlike the
kernel's default: it may hold pointers. A JVM has one of 32 KiB, a data base may have many GiB."""
_MOST_NOTE = 1 << 20  # bytes of an unwritten mapping kept for a build-id that lies far into it
_MAPPING = re.compile(rb"([0-9a-f]+)-[0-9a-f]+ [r-][w-][x-][ps] [0-9a-f]+ ([0-9a-f:]+) ")


class Segment(NamedTuple):
    """A mapping, and how many bytes of it, from its start, the core has: holes included.
    `droppable`: the kernel may empty its pages at any time (MAP_DROPPABLE), so that no program
    keeps pointers there; glibc 2.41 keeps the states of its random numbers in such a mapping."""

    region: Region
    size: int
    droppable: bool = False


def segments(target: Process, record: StopRecord, regions: Sequence[Region]) -> list[Segment]:
    """The mappings of the process with what the core has of each:

    - all of private memory that the process wrote to, and of readable anonymous memory;
    - all of shared memory that is in no file of a disk, and of writable mappings of a file on disk
      that are not large; also where the process has protected it (PROT_NONE);
    - of unwritten private mappings of ELF files the first page, and the one with the build-id;
    - the vDSO;
    - nothing of the rest: text and constants, other shared files, reserved addresses, and what the
      process excluded by madvise(MADV_DONTDUMP)."""
    excluded, droppable = _excluded(record.proc)
    disks = _on_disk(record)
    ids = _build_ids(target)
    found = []
    for region in regions:
        if region.start in excluded:
            size = 0
        elif region.name.startswith(KERNELS):
            size = region.size if region.name.startswith("[vdso") else 0
        elif not region.private:
            small = region.writable and region.size <= _MOST_SHARED
            held = region.readable or (region.may_hold_data and record.moment.shared.bytes(region.start, region.end))
            size = region.size if held and (small or region.start not in disks) else 0
        elif record.moment.own.bytes(region.start, region.end):
            size = region.size
        elif region.anonymous:
            size = region.size if region.readable and region.size < _RESERVED else 0
        else:
            size = _of_file(target, region, ids)
        found.append(Segment(region, size, region.start in droppable))
    return found


def _of_file(target: Process, region: Region, ids: Sequence[Range]) -> int:
    """Bytes that are kept of a private mapping of a file, which was not written to."""
    if not region.readable:
        return 0
    size, page = 0, target.arch.page
    if not region.file_offset and next((bytes(one.data[:4]) for one in target.stored(region.start, region.start + 4)), b"") == b"\x7fELF":
        size = page
    for start, end in ids:
        if region.start <= start < region.end and end - region.start <= _MOST_NOTE:
            size = max(size, -(-(end - region.start) // page) * page)
    return min(size, region.size)


def _build_ids(target: Process) -> list[Range]:
    """Where the notes of the loaded files are, of which one is the build-id."""
    return [
        Range(segment.vaddr + image.module.bias, segment.vaddr + image.module.bias + segment.filesz)
        for image in target.images()
        if image.module.build_id
        for segment in image.segments
        if segment.type == elf.PT_NOTE and segment.filesz
    ]


def _excluded(proc: str) -> tuple[set[int], set[int]]:
    """Starts of the mappings that the process excluded from dumps ("dd") and of devices ("io"), and
    of droppable mappings ("dp"); none where that cannot be read."""
    found: set[int] = set()
    droppable: set[int] = set()
    try:
        text = content(f"{proc}/smaps")
    except OSError:
        return found, droppable
    start = 0
    for line in text.split(b"\n"):
        if line.startswith(b"VmFlags:"):
            flags = line.split()[1:]
            if b"dd" in flags or b"io" in flags:
                found.add(start)
            if b"dp" in flags:
                droppable.add(start)
        else:
            match = _MAPPING.match(line)
            if match is not None:
                start = int(match[1], 16)
    return found, droppable


def _on_disk(record: StopRecord) -> set[int]:
    """Starts of mappings of files that have a name in a file system other than tmpfs: of a shared
    one the kernel dumps nothing, as the file has it."""
    memory = set()
    try:
        for line in content(f"{record.proc}/mountinfo").split(b"\n"):
            fields, _, kind = line.partition(b" - ")
            if kind.split(b" ", 1)[0] in (b"tmpfs", b"devtmpfs", b"hugetlbfs"):
                memory.add(_device(fields.split()[2]))
    except (OSError, IndexError, ValueError):
        pass
    found = set()
    for line in record.maps.split(b"\n"):
        match = _MAPPING.match(line)
        if match is not None and not line.endswith(DELETED.encode()) and b"/" in line:
            major, _, minor = match[2].partition(b":")
            if (int(major, 16), int(minor, 16)) not in memory:
                found.add(int(match[1], 16))
    return found


def _device(text: bytes) -> tuple[int, int]:
    major, _, minor = text.partition(b":")
    return int(major), int(minor)


class Reader:
    """Reads what segments of a process have. `close` it."""

    def __init__(self, target: Process, record: StopRecord) -> None:
        self._target, self._moment = target, record.moment
        self._files = MappedFiles(record.proc, record.maps, target.arch.page)

    def pieces(self, segment: Segment) -> Iterator[Piece]:
        """The parts of a segment that may be other than zeros, ascending, at most 8 MiB at once."""
        region, end = segment.region, segment.region.start + segment.size
        if isinstance(self._target, CopiedProcess):
            yield from self._target.stored(region.start, end)
            return
        if not region.private:
            # Of shared memory the file has also what is not mapped now.
            file = MappedFile(self._files, region)
            parts = file.data_parts(region.start, end)
            for start, stop in parts:
                for low in range(start, stop, PIECE):
                    yield Piece(low, file.some(low, min(PIECE, stop - low)))
            if parts:
                return
        for start, stop in self._runs(region, end):
            yield from self._target.stored(start, stop)

    def _runs(self, region: Region, end: int) -> Iterator[Range]:
        """The parts to read of a process while it is stopped. Of its own memory and of shared
        memory these are its pages: reading others would give them to it."""
        if region.name.startswith(KERNELS) or (region.private and not region.anonymous):
            return iter((Range(region.start, end),))
        return (self._moment.own if region.private else self._moment.shared).within(region.start, end)

    def unread(self, chosen: Sequence[Segment]) -> list[Range]:
        """Memory that the core lacks though it is mapped and the process may have written to it:
        what could not be read, and what has pages but was excluded. A writable file without bytes
        in the core is seen in its headers."""
        found = list(self._target.unread)
        for region, size, droppable in chosen:
            if size or droppable or region.name.startswith(KERNELS):
                continue
            if region.anonymous:
                found += self._moment.own.within(region.start, region.end)
            elif not (region.private or region.writable) and is_shared_memory(region.name):
                found += self._moment.shared.within(region.start, region.end)
        return merged(found)

    def close(self) -> None:
        self._files.close()


def all_bytes(target: Process, record: StopRecord, chosen: Sequence[Segment], look: Callable[[], None]) -> int:
    """About how many bytes the core holds, for progress and to see whether the disk has space."""
    total = 0
    for segment in chosen:
        region, end = segment.region, segment.region.start + segment.size
        look()
        if region.private and region.anonymous:
            total += record.moment.own.bytes(region.start, end)
        elif region.private:
            total += segment.size
        else:
            total += record.moment.shared.bytes(region.start, end)
    return total
