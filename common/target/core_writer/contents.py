"""Select the parts of a process's memory that its core contains, as the kernel does by default.
Sources: Linux fs/coredump.c, vma_dump_size (6.x); Documentation/filesystems/proc.rst (VmFlags)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Union

from findleaks.target import elf
from findleaks.target.base import Piece, Range, Region, is_shared_memory
from findleaks.target.copied import PIECE, CopiedProcess
from findleaks.target.copying import KERNELS
from findleaks.target.files import read_file
from findleaks.target.live import LiveTarget
from findleaks.target.mapped_files import MappedFile, MappedFiles
from findleaks.target.modules import DELETED
from findleaks.target.ranges import merge_ranges
from findleaks.target.stop_record import StopRecord

Process = Union[CopiedProcess, LiveTarget]

_RESERVED = 1 << 30
"""Anonymous mappings without pages of at least this many bytes are left out, because otherwise
packing and copying a core would take time in proportion to its reserved addresses. (The kernel
leaves out all mappings without pages.) Smaller mappings without pages become holes of the file, so
that debuggers read zeros there, as the process would."""
_MOST_SHARED = 64 << 20
"""Maximum size in bytes of a writable shared mapping of a disk file that is written to the core.
The kernel leaves out such mappings by default, but they may contain pointers. A JVM has such a
mapping of 32 KiB, a database has many GiB."""
_MOST_NOTE = 1 << 20  # most bytes of an unmodified mapping that are written for its build-id
_MAPPING = re.compile(rb"([0-9a-f]+)-[0-9a-f]+ [r-][w-][x-][ps] [0-9a-f]+ ([0-9a-f:]+) ")


class Segment(NamedTuple):
    """A mapping in the core. `size` is the number of bytes from its start that the core contains,
    including holes of the file. `droppable`: the kernel may discard its pages at any time
    (MAP_DROPPABLE), so programs keep no pointers there. glibc 2.41 keeps the states of its random
    number generators in such a mapping."""

    region: Region
    size: int
    droppable: bool = False


def segments(target: Process, record: StopRecord, regions: Sequence[Region]) -> list[Segment]:
    """Return the mappings of the process, each with the size of the part that is written:

    - all private memory that the process wrote to, and all readable anonymous memory;
    - all shared memory that is not in a file on disk, and writable mappings of disk files that are
      not large; both also if the process protected them (PROT_NONE);
    - the first page and the page with the build-id of unmodified private mappings of ELF files;
    - the vDSO;
    - nothing of other mappings: text and constants, other shared files, reserved addresses, and
      memory that the process excluded by madvise(MADV_DONTDUMP)."""
    excluded, droppable = _list_excluded(record.proc)
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
            held = region.readable or (region.may_hold_data and record.pages.shared.bytes(region.start, region.end))
            size = region.size if held and (small or region.start not in disks) else 0
        elif record.pages.own.bytes(region.start, region.end):
            size = region.size
        elif region.anonymous:
            size = region.size if region.readable and region.size < _RESERVED else 0
        else:
            size = _of_file(target, region, ids)
        found.append(Segment(region, size, region.start in droppable))
    return found


def _of_file(target: Process, region: Region, ids: Sequence[Range]) -> int:
    """Return how many bytes of a private, unmodified mapping of a file the core contains: the page
    of an ELF header, and the pages up to the end of a note with a build-id."""
    if not region.readable:
        return 0
    size, page = 0, target.arch.page
    if (
        not region.file_offset
        and next((bytes(one.data[:4]) for one in target.iterate_stored(region.start, region.start + 4)), b"") == b"\x7fELF"
    ):
        size = page
    for start, end in ids:
        if region.start <= start < region.end and end - region.start <= _MOST_NOTE:
            size = max(size, -(-(end - region.start) // page) * page)
    return min(size, region.size)


def _build_ids(target: Process) -> list[Range]:
    """Return the note segments of the loaded files; the build-id is one of their notes."""
    return [
        Range(segment.vaddr + image.module.bias, segment.vaddr + image.module.bias + segment.filesz)
        for image in target.images()
        if image.module.build_id
        for segment in image.segments
        if segment.type == elf.PT_NOTE and segment.filesz
    ]


def _list_excluded(proc: str) -> tuple[set[int], set[int]]:
    """Return two sets with the starts of mappings. The first has devices ("io") and mappings that
    the process excluded from dumps ("dd"); the second has droppable mappings ("dp"). Both are empty
    if smaps cannot be read."""
    found: set[int] = set()
    droppable: set[int] = set()
    try:
        text = read_file(f"{proc}/smaps")
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
    """Return the starts of mappings of named files on file systems other than tmpfs. The kernel
    does not dump such mappings if they are shared, because the file has their contents."""
    memory = set()
    try:
        for line in read_file(f"{record.proc}/mountinfo").split(b"\n"):
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
    """Reads the contents of segments. Call `close` at the end."""

    def __init__(self, target: Process, record: StopRecord) -> None:
        self._target, self._pages = target, record.pages
        self._files = MappedFiles(record.proc, record.maps, target.arch.page)

    def pieces(self, segment: Segment) -> Iterator[Piece]:
        """Yield the parts of a segment that may be nonzero, ascending, at most 8 MiB each."""
        region, end = segment.region, segment.region.start + segment.size
        if isinstance(self._target, CopiedProcess):
            yield from self._target.iterate_stored(region.start, end)
            return
        if not region.private:
            # A file of shared memory may have parts that are not mapped now.
            file = MappedFile(self._files, region)
            parts = file.data_parts(region.start, end)
            for start, stop in parts:
                for low in range(start, stop, PIECE):
                    yield Piece(low, file.some(low, min(PIECE, stop - low)))
            if parts:
                return
        for start, stop in self._runs(region, end):
            yield from self._target.iterate_stored(start, stop)

    def _runs(self, region: Region, end: int) -> Iterator[Range]:
        """Yield the parts of a stopped process to read: the pages of private and of shared memory.
        Reading other pages would allocate them in the process."""
        if region.name.startswith(KERNELS) or (region.private and not region.anonymous):
            return iter((Range(region.start, end),))
        return (self._pages.own if region.private else self._pages.shared).within(region.start, end)

    def unread(self, chosen: Sequence[Segment]) -> list[Range]:
        """Return memory that the core lacks although the process may have written to it:
        unreadable pages, and excluded ones. Writable files of which the core has no bytes are
        not included, because the program headers of the core show that they are missing."""
        found = list(self._target.unread)
        for region, size, droppable in chosen:
            if size or droppable or region.name.startswith(KERNELS):
                continue
            if region.anonymous:
                found += self._pages.own.within(region.start, region.end)
            elif not (region.private or region.writable) and is_shared_memory(region.name):
                found += self._pages.shared.within(region.start, region.end)
        return merge_ranges(found)

    def close(self) -> None:
        self._files.close()


def all_bytes(target: Process, record: StopRecord, chosen: Sequence[Segment], look: Callable[[], None]) -> int:
    """Estimate how many bytes the core has, for progress and for the check of disk space."""
    total = 0
    for segment in chosen:
        region, end = segment.region, segment.region.start + segment.size
        look()
        if region.private and region.anonymous:
            total += record.pages.own.bytes(region.start, end)
        elif region.private:
            total += segment.size
        else:
            total += record.pages.shared.bytes(region.start, end)
    return total
