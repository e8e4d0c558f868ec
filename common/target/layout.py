"""Decode the program headers of a core: the mappings, and the part of each mapping that is in the
file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Optional

from findleaks.target import elf
from findleaks.target.base import Region, anonymous_name
from findleaks.target.notes import Mapping
from findleaks.target.ranges import find_overlaps, gaps
from findleaks.target.runs import Runs
from findleaks.value_classes import NamedTuple

STACK, VDSO = "[stack]", "[vdso]"
_MOST_BYTES = 1 << 62  # most bytes: a header that claims a larger end in the file is invalid
_LAST_PAGE = 4096  # bytes


class Load(NamedTuple):
    """A PT_LOAD segment. [start, end) was mapped."""

    start: int
    end: int
    flags: int
    offset: int
    filesz: int  # bytes from `start` that were dumped, by the program header
    there: int  # how many of these bytes are in the file


def top_of(word: int) -> int:
    """Return the end of the memory that a process can have, given the bytes of a word.
    Nothing is ever mapped in the last page of the address space, because the kernel uses its
    addresses as error numbers (Linux include/linux/err.h, MAX_ERRNO). Memory that a core claims
    there is ignored. So the end of a range, and of a word or structure just after it, fits in 64
    bits."""
    return (1 << 8 * word) - _LAST_PAGE


def loads_of(headers: Sequence[elf.Segment], size: int, word: int, data: Optional[Runs] = None) -> list[Load]:
    """Return the PT_LOADs of a core file of `size` bytes, sorted by address, up to `top_of(word)`.
    `data` are the parts of the file that are not holes. If segments overlap in the file, each byte
    belongs to the first segment that contains it. No program writes such cores, but in a hostile
    core 60,000 segments may contain the same megabytes."""
    last = top_of(word)
    loads = []
    for s in headers:
        if s.type == elf.PT_LOAD and s.vaddr < last and 0 < s.memsz <= (1 << 8 * word) - s.vaddr:
            end = min(s.vaddr + s.memsz, last)
            filesz = min(s.filesz, end - s.vaddr)
            loads.append(Load(s.vaddr, end, s.flags, s.offset, filesz, max(0, min(filesz, size - s.offset))))
    known = data if data is not None else Runs.of([(0, size)])
    if sum(known.bytes(d.offset, d.offset + d.there) for d in loads) > known.total:
        loads = _remove_shared(loads)
    loads.sort()
    for index, after in enumerate(loads[1:]):
        # The missing part of a segment must not hide the next one
        if after.start < loads[index].end:
            loads[index] = loads[index]._replace(end=max(loads[index].start + loads[index].filesz, after.start))
    return [d for d in loads if d.start < d.end]


def _remove_shared(loads: Sequence[Load]) -> list[Load]:
    """Remove those bytes of each load that an earlier load in the file already contains."""
    found = []
    reached = 0
    for d in sorted(loads, key=lambda d: (d.offset, -d.there, d.start)):
        if d.there and d.offset < reached:
            found.append(d._replace(there=0))
        else:
            found.append(d)
            reached = max(reached, d.offset + d.there)
    return found


def expected_size(headers: Sequence[elf.Segment]) -> int:
    """Return the size of a complete file by its headers; impossible headers are ignored."""
    return max((s.offset + s.filesz for s in headers if s.filesz and s.offset + s.filesz < _MOST_BYTES), default=0)


def regions_of(loads: Sequence[Load], files: Sequence[Mapping], stack: int, is_code: Callable[[int, str, int], bool]) -> list[Region]:
    """Return the regions of a core, sorted and disjoint: its segments, with the names of the mapped
    files, and mapped files without a segment. (GDB writes no segments for read-only memory that it
    does not dump.)
    `stack` is an address in the main thread's stack. `is_code` is called with an address, the path
    of the file, and the offset in the file."""
    starts = [m.start for m in files]
    regions: list[Region] = []
    last = 0
    for d in loads:
        start = max(d.start, last)
        mode = bool(d.flags & elf.PF_R), bool(d.flags & elf.PF_W), bool(d.flags & elf.PF_X)
        # Some programs write adjacent mappings as one segment: split it by mapped file.
        for file, low, high in find_overlaps(files, starts, start, d.end):
            if start < low:
                regions.append(Region(start, low, *mode))
            low = max(low, start)  # mappings of a corrupt core may overlap
            if low < high:
                regions.append(Region(low, high, *mode, anonymous_name(file.path), file.offset + low - file.start))
                start = high
        if start < d.end:
            regions.append(Region(start, d.end, *mode, STACK if start <= stack < d.end else ""))
        last = max(last, d.end)
    starts = [r.start for r in regions]
    added = []
    for file in files:
        for gap in gaps(file.start, file.end, regions, starts):
            offset = file.offset + gap.start - file.start
            added.append(Region(gap.start, gap.end, True, False, is_code(gap.start, file.path, offset), file.path, offset))
    return sorted([*regions, *added], key=lambda r: r.start) if added else regions
