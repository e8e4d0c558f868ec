"""A minidump as a target.

Memory that the process wrote to is read from the dump. Code and constants that the dump lacks are
read from files of modules that are proven to match."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Optional

from findleaks.formatting import size as human
from findleaks.formatting import some
from findleaks.target import elf
from findleaks.target.base import Range, Region, Thread, is_shared_memory
from findleaks.target.image_target import ImageTarget
from findleaks.target.layout import STACK, loads_of
from findleaks.target.minidump import records, streams
from findleaks.target.minidump.modules import find_images
from findleaks.target.missing import READ_ONLY, UNDUMPED, Uncertain, format_ranges
from findleaks.target.module_files import ModuleFiles
from findleaks.target.modules import FileSource, Image
from findleaks.target.notes import AT_ENTRY, AT_PHDR
from findleaks.target.ranges import gaps, merge_ranges, region_at, subtract
from findleaks.target.reader import Extent, ExtentReader, Source, disjoint
from findleaks.target.thread_pointers import add_thread_pointers

ENOUGH = 0.5
"""Minimum share of the writable memory, without stacks, that must be in the dump for an analysis of
the heap."""
_TRIPLETS = ("x86_64-linux-gnu", "aarch64-linux-gnu")
LIBRARY_FOLDERS = (
    *("/lib64", "/usr/lib64", *(f"{folder}/{name}" for name in _TRIPLETS for folder in ("/lib", "/usr/lib"))),
    *("/lib", "/usr/lib", "/usr/local/lib"),
)
_MOST_FOLDERS = 64  # most modules whose folders are searched
COMPLETE = "use a core (gcore PID), or LLDB's `process save-core --style full --plugin-name=minidump FILE`"


class MinidumpTarget(ExtentReader, ImageTarget):
    """A minidump. `unread`: writable memory that was mapped and is not in the dump."""

    live = False

    def __init__(self, view: memoryview, path: str, exe: str, sysroot: str, remedy: str) -> None:
        ImageTarget.__init__(self)
        self.path = path
        self._name = os.path.basename(path) or path
        self._sysroot = sysroot.rstrip("/") or sysroot[:1]
        file = streams.open_streams(view, self._name)
        self._dump = dump = records.read_records(file, self._name)
        self._source = Source(view)
        self.truncated = file.cut or any(memory.offset + memory.size > len(view) for memory in dump.memory)
        ExtentReader.__init__(self, dump.arch, self._list_extents(len(view)))
        self.pid: Optional[int] = dump.pid
        self.crashed = dump.crashed
        self.unknown_registers = dump.unknown_registers
        self.taken_at, self.start_time = float(file.written) or None, dump.started
        mapped = [Region(e.start, e.end, True, True, False) for e in self._extents]
        search = ModuleFiles(exe, self._sysroot, remedy, "the minidump", self.path, self._folders())
        self.separate.shunned = search.shunned
        entry = dump.auxv.get(AT_PHDR, 0) or dump.auxv.get(AT_ENTRY, 0)
        self._images, self._files = find_images(self.arch, self.read, dump.modules, dump.regions, mapped, entry, search)
        self._modules = [image.module for image in self._images]
        self._set_regions(self._with_stack(dump.regions or self._derive_regions(mapped)))
        main = region_at(self._modules, entry) or next(iter(self._modules), None)
        self.exe_path, self.called = main.path if main is not None else dump.name, dump.called
        self.unread = list(self._absent())
        self.uncertain = list(self._uncertain())
        self.lacks = self._lacks()
        self.warnings += [*self._problems(), *search.warnings()]
        self.set_extents(disjoint([*self._extents, *self._backing()]))
        self.description = self._describe_format()

    def _folders(self) -> list[str]:
        """Return folders in which to search for libraries that the dump names without a folder (as
        Crashpad does): the folders of the dynamic linker and of the other modules. A file that is
        found must have the right build-id."""
        named = (os.path.dirname(module.path) for module in self._dump.modules[:_MOST_FOLDERS] if module.path.startswith("/"))
        return list(dict.fromkeys([*LIBRARY_FOLDERS, *named]))

    def _list_extents(self, size: int) -> list[Extent]:
        """Return the memory in the dump, without overlaps. The headers of a hostile dump may claim
        any number of ranges of the same bytes."""
        ranges = self._dump.memory
        flags = elf.PF_R | elf.PF_W
        loads = loads_of(
            [elf.Segment(elf.PT_LOAD, flags, m.offset, m.start, m.size, m.size, 0) for m in ranges], size, self._dump.arch.word
        )
        return disjoint([Extent(d.start, d.start + d.there, d.offset, self._source) for d in loads])

    def _derive_regions(self, mapped: Sequence[Region]) -> list[Region]:
        """Return the regions of a dump without a list of mappings: the segments of modules whose
        headers are known, and the other memory of the dump, which counts as writable."""
        known = [
            Region(
                max(s.vaddr // self.arch.page * self.arch.page + image.module.bias, image.module.start),
                min(-(-(s.vaddr + s.memsz) // self.arch.page) * self.arch.page + image.module.bias, image.module.end),
                bool(s.flags & elf.PF_R),
                bool(s.flags & elf.PF_W),
                bool(s.flags & elf.PF_X),
                image.module.path,
                s.offset // self.arch.page * self.arch.page,
            )
            for image in self._images
            for s in image.segments
            if s.type == elf.PT_LOAD and s.memsz
        ]
        kept: list[Region] = []
        for region in sorted(known, key=lambda region: region.start):
            if region.start < region.end and (not kept or region.start >= kept[-1].end):
                kept.append(region)
        others = subtract([Range(r.start, r.end) for r in mapped], [Range(r.start, r.end) for r in kept])
        return sorted([*kept, *(Region(start, end, True, True, False) for start, end in others)], key=lambda region: region.start)

    def _with_stack(self, regions: Sequence[Region]) -> list[Region]:
        """Return the regions, with the name of the main thread's stack. Only /proc/PID/maps has
        this name."""
        main = next((thread.sp for thread in self._dump.threads if thread.tid == self.pid), 0)
        return [replace(region, name=STACK) if main in region and region.writable and not region.name else region for region in regions]

    def _backing(self) -> Iterator[Extent]:
        """Yield extents of module files for missing parts of segments that are never written to."""
        page = self.arch.page
        for image in self._images:
            file, module = self._files.get(image.module.start), image.module
            if file is None:
                continue
            for s in image.segments:
                if s.type == elf.PT_LOAD and s.filesz and not s.flags & elf.PF_W:
                    low = s.vaddr // page * page
                    start, offset = low + module.bias, s.offset - (s.vaddr - low)
                    end = min(-(-(s.vaddr + s.filesz) // page) * page + module.bias, start + max(0, file.size - offset), module.end)
                    for gap in gaps(max(start, module.start), end, self._extents, self._starts):
                        yield Extent(gap.start, gap.end, offset + gap.start - start, file)

    # -- what is missing

    def _absent(self) -> Iterator[Range]:
        """Yield writable memory that the dump lacks, except the unused parts of stacks."""
        writable = [Range(r.start, r.end) for r in self._regions if r.writable and r.readable]
        yield from subtract(subtract(writable, [Range(e.start, e.end) for e in self._extents]), self._dead_ends())

    def _uncertain(self) -> Iterator[Uncertain]:
        """See Target. This is memory that may have been writable before. LLDB's minidumps never
        contain such memory."""
        for region in self._regions:
            anonymous = not region.name or is_shared_memory(region.name)
            if region.may_hold_data or (anonymous and not (region.writable or region.executable)):
                for gap in gaps(region.start, region.end, self._extents, self._starts):
                    yield Uncertain(*gap, READ_ONLY if region.readable else UNDUMPED)

    def _dead_ends(self) -> list[Range]:
        """Return the unused parts of stacks, which LLDB omits. These parts are below the lowest
        stack pointer in a mapping. The mapping must follow a guard page, except that of the main
        thread's stack."""
        lowest: dict[int, int] = {}
        for thread in self._dump.threads:
            region = self._region_at(thread.sp)
            if region is not None and region.writable:
                lowest[region.start] = min(thread.sp, lowest.get(region.start, thread.sp))
        found = []
        for start, sp in lowest.items():
            region, below = self._region_at(start), self._region_at(start - 1)
            if region is not None and (region.name == STACK or (below is not None and not below.readable)):
                found.append(Range(start, max(start, sp - self.arch.red_zone)))
        return merge_ranges(found)

    def _lacks(self) -> str:
        """Explain why the heap cannot be analysed; "" if it can. Dumps by Breakpad and Crashpad,
        and the default kind of LLDB's dumps, have little memory except the stacks."""
        stacks = [Range(r.start, r.end) for r in {self._region_at(thread.sp) for thread in self._dump.threads} if r is not None]
        there = [Range(e.start, e.end) for e in self._extents]
        if self._dump.regions:
            heap = subtract([Range(r.start, r.end) for r in self._regions if r.writable and r.readable], stacks)
        else:  # whole mappings
            heap = subtract([part for part in there if not (part.start | part.end) % self.arch.page], stacks)
        wanted = _bytes(heap)
        held = wanted - _bytes(subtract(heap, there))
        if held > ENOUGH * wanted:
            return ""
        which = f"{human(held)} of {human(wanted)} of the other writable memory" if wanted and held else "no other writable memory"
        return (
            f"{self._name}: the minidump has the threads' stacks and {which}: "
            f"only `whatis` and `stacks` work. The other commands need all memory: {COMPLETE}"
        )

    def _problems(self) -> Iterator[str]:
        if self.truncated:
            there = f"{self._name}: truncated: the minidump names memory or records beyond the end of the file"
            yield f"{there}. Blocks reported as leaked may be referenced from the missing part."
        if not self._dump.threads:
            unknown = "there are no threads: registers and stacks are unknown"
            yield f"{self._name}: {unknown}, so blocks that only they refer to are reported as leaked"
        if self.unread and not self.lacks:
            named = (self._region_at(part.start) for part in self.unread)
            names = [
                region.name if region is not None and region.name else format_ranges([part]) for region, part in zip(named, self.unread)
            ]
            which = some(list(dict.fromkeys(names)))
            yield f"{human(_bytes(self.unread))} of writable memory is not in the minidump ({which}): pointers in it are not seen."

    def _describe_format(self) -> str:
        n = len(self._dump.threads)
        pid = f" (pid {self.pid})" if self.pid is not None else ""
        return f"minidump of {self.exe_path or 'an unnamed program'}{pid}, {n} thread{'' if n == 1 else 's'}"

    # -- the Target protocol

    @cached_property
    def _threads(self) -> Sequence[Thread]:
        return add_thread_pointers(self, self._dump.threads)

    def threads(self) -> Sequence[Thread]:
        return self._threads

    def thread_names(self) -> Mapping[int, str]:
        return self._dump.names

    @property
    def auxv(self) -> Mapping[int, int]:
        return self._dump.auxv

    def _file(self, image: Image) -> Optional[FileSource]:
        return self._files.get(image.module.start)


def _bytes(ranges: Sequence[Range]) -> int:
    return sum(end - start for start, end in ranges)
