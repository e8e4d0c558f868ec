"""A core file as a target, without a debugger. Other files are used only if proven to match."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Optional

from findleaks import formatting
from findleaks.errors import TargetError, UnreadableMemory
from findleaks.target import elf, missing, notes
from findleaks.target.base import Module, Range, Region, Thread, excluded_warning
from findleaks.target.files import FORMATS, MINIDUMP
from findleaks.target.image_target import ImageTarget
from findleaks.target.layout import VDSO, Load, expected_size, loads_of, regions_of, top_of
from findleaks.target.module_files import ModuleFiles
from findleaks.target.modules import FileSource, Image, ModuleIndex, find_bare_modules, find_unnamed_files, images, supported_arch
from findleaks.target.notes import Mapping as MappedFile
from findleaks.target.ranges import find_overlaps, gaps, merge_ranges, region_at
from findleaks.target.reader import Extent, ExtentReader, Source, Zeros, disjoint, map_file
from findleaks.target.residency import holes
from findleaks.target.residency.presence import Presence
from findleaks.target.runs import Runs
from findleaks.target.thread_pointers import add_thread_pointers

if TYPE_CHECKING:
    from findleaks.target.kernel_references import KernelState
    from findleaks.target.snapshot_note import SnapshotNote

GIVE_SYSROOT = "Give --sysroot."


class CoreTarget(ExtentReader, ImageTarget):
    """A core file. `unread`: writable ranges that were mapped and are not in the core."""

    live = False

    def __init__(
        self,
        view: memoryview,
        path: str,
        exe: str = "",
        sysroot: str = "",
        parts: Optional[Sequence[Range]] = None,
        remedy: str = GIVE_SYSROOT,
    ) -> None:
        """`parts`: the file without holes (None: unknown). `remedy`: the end of warnings."""
        ImageTarget.__init__(self)
        self.path = path
        self._name = os.path.basename(path) or path
        self._core = Source(view, holes.without_long_holes(parts) if parts is not None else None)
        self._data = Runs.of(())  # parts that are not holes; empty if the holes cannot be trusted
        self._trusted: Optional[bool] = None  # whether holes can be trusted; None: unchecked
        self._remedy = remedy
        self._exe, self._sysroot = exe, sysroot.rstrip("/") or sysroot[:1]
        head = self._header(view)
        arch = supported_arch(head, f"{self._name}: a core")
        headers = elf.segments(view, head, self._core.nonzero)
        self._loads = loads = loads_of(headers, len(view), arch.word, self._core.data)
        self._load_starts = [load.start for load in loads]
        self._expected = expected_size(headers)
        self.truncated = self._expected > len(view)
        self._check_loads(len(view))
        if any(s.type == elf.PT_LOAD and s.vaddr + s.memsz > top_of(arch.word) for s in headers):
            self.warnings.append(f"{self._name}: ignored memory at the end of the address space, which no process can use")
        ExtentReader.__init__(self, arch, disjoint([Extent(d.start, d.start + d.there, d.offset, self._core) for d in loads]))
        self._process = process = self._notes(view, head, headers)
        self.arch = arch = arch.with_page(process.auxv.get(notes.AT_PAGESZ, 0))
        self._snapshot, self._of_kernel = self._own_note(), holes.is_kernel_core(head, loads, process.unit, arch.page)
        self.pid: Optional[int] = process.pid
        self.tagged, self.called = process.tagged, process.called
        self.signal, self.sender, self.first_thread = process.signal, process.sender, process.first_thread
        self.fault_address, self.fault_code = process.fault_address, process.fault_code
        self._files = self._mappings(loads)
        self._images = images(self.read, self._files, arch.machine, arch.page)
        if self._process.files:
            self._add_bare()
        self._places = ModuleIndex(self._images, arch.page)
        self._main = self._main_image()
        self._modules = [self._name_module(image) for image in self._images]
        self._checked = self._fill()
        named = [m for m in self._files if m.path] if self._process.files else []
        self._set_regions(self._read_mapped() or regions_of(loads, named, self._stack(), self._places.is_code))
        self.unread = self._find_unread()
        self.uncertain = sorted(self._find_uncertain())
        self.exe_path = self._main.module.path if self._main is not None else self._process.name
        self.crashed, self.refused_call = notes.crashed_thread(self, process), process.refused_call
        self.description = self._describe()

    # -- opening

    def _header(self, view: memoryview) -> elf.Header:
        try:
            head = elf.header(view)
        except elf.ElfError as error:
            raise TargetError(f"{self._name}: expected a core file: {error}") from None
        if head.type != elf.ET_CORE:
            kinds = {elf.ET_REL: "an object file", elf.ET_EXEC: "a program", elf.ET_DYN: "a program or library"}
            raise TargetError(f"{self._name}: expected a core file, got {kinds.get(head.type, 'another ELF file')}")
        return head

    def _check_loads(self, size: int) -> None:
        if any(load.there for load in self._loads):
            return
        if self.truncated or size < 1 << 12:
            wanted = f"{formatting.size(size)}{f' of {formatting.size(self._expected)}' if self.truncated else ''}"
            raise TargetError(f"{self._name}: truncated: only {wanted} are left, without any memory; make the core again")
        raise TargetError(f"{self._name}: the core has no memory of the process")

    def _notes(self, view: memoryview, head: elf.Header, headers: Sequence[elf.Segment]) -> notes.Process:
        mine = [s for s in headers if s.type == elf.PT_NOTE]
        cut = any(s.offset + s.filesz > len(view) for s in mine)
        process = notes.parse_notes(self.arch, elf.notes_of_core(view, head, mine))
        self.warnings += [f"{self._name}: {problem}" for problem in process.problems]
        if not process.threads:
            why = "the notes are cut off" if cut else "there are no notes of threads"
            self.warnings.append(f"{self._name}: {why}: registers and stacks are unknown: blocks that only they refer to count as leaked")
        return process

    def _own_note(self) -> Optional[SnapshotNote]:
        """Return findleaks' note; None if it is missing or damaged."""
        desc, self._process = self._process.snapshot, self._process._replace(snapshot=None)
        if desc is None:
            return None
        from findleaks.target import snapshot_note  # only cores that findleaks wrote have the note

        try:
            found = snapshot_note.decode_note(desc, self.arch.page)
        except snapshot_note.Damaged as why:
            self.warnings.append(snapshot_note.damage_warning(self._name, str(why)))
            return None
        self.taken_at, self.start_time = found.taken_at or None, found.start_time or None
        return found

    def _read_mapped(self) -> Optional[Sequence[Region]]:
        """Return the regions from findleaks' note, and record what it lists as unreadable."""
        note = self._snapshot
        if note is None:
            return None
        from findleaks.target import snapshot_note

        found = snapshot_note.regions(note, self._loads, top_of(self.arch.word))
        if found is None:
            self._snapshot = None
            self.warnings.append(snapshot_note.damage_warning(self._name, "its mappings are not the core's"))
            return None
        starts = [gap.start for gap in note.unread]
        left = (extent.part(*part) for extent in self._extents for part in gaps(extent.start, extent.end, note.unread, starts))
        self.set_extents(list(left))
        return found

    def _mappings(self, loads: Sequence[Load]) -> list[MappedFile]:
        """Return the mapped files. If none are named, return the segments with an ELF header."""
        if self._process.files:
            top = top_of(self.arch.word)
            known = [mapping._replace(end=min(mapping.end, top)) for mapping in self._process.files if mapping.start < top]
            vdso = self._process.auxv.get(notes.AT_SYSINFO_EHDR, 0)
            known += [MappedFile(d.start, d.end, 0, VDSO) for d in loads if d.start == vdso]
            return sorted(known)
        return find_unnamed_files(self.read, ((d.start, d.end, d.there >= 64) for d in loads))

    # -- modules and their files

    def _add_bare(self) -> None:
        """Add modules whose headers are cut off, or were not dumped (coredump_filter, bit 4)."""
        code = {d.start for d in self._loads if d.flags & elf.PF_X}
        files = [m for m in self._files if self._at(m.start) < 0 or m.offset]
        known = [image.module for image in self._images]
        starts = [module.start for module in known]
        added: list[Image] = []
        for found in sorted(find_bare_modules(files, self._images, lambda mapping: mapping.start in code), key=_start):
            start, end = found.module.start, found.module.end
            if not any(find_overlaps(known, starts, start, end)) and not any(one.module.end > start for one in added[-1:]):
                added.append(found)
        self._images = sorted([*self._images, *added], key=_start)

    def _main_image(self) -> Optional[Image]:
        at = self._process.auxv.get(notes.AT_PHDR, 0) or self._process.auxv.get(notes.AT_ENTRY, 0)
        return self._places.at(at) or next(iter(self._images), None)

    def _name_module(self, found: Image) -> Module:
        """Return a module with its path: from a note, else DT_SONAME or the program's name."""
        module = found.module
        if module.path or found.head is None:
            return module
        path = ""
        tags = elf.dynamic(self.read, found.head, found.segments, module.bias)
        if elf.DT_SONAME in tags and elf.DT_STRTAB in tags:
            strings = tags[elf.DT_STRTAB] + (module.bias if tags[elf.DT_STRTAB] < module.start else 0)
            path = self._string(strings + tags[elf.DT_SONAME])
        if not path and found is self._main:
            path = self._string(self._process.auxv.get(notes.AT_EXECFN, 0)) or self._process.name
        return module._replace(path=path)

    def _string(self, address: int) -> str:
        try:
            return elf.text(self.read(address, 256), 0)
        except UnreadableMemory:
            return ""

    def _fill(self) -> dict[int, Optional[FileSource]]:
        """Add unmodified memory that the core lacks. Return the files that have it, by module."""
        files: dict[int, Optional[FileSource]] = {}
        extra: list[Extent] = []
        search = ModuleFiles(self._exe, self._sysroot, self._remedy, "the core", self.path)
        self.separate.shunned = search.shunned
        for found, module in zip(self._images, self._modules):
            if module.path != VDSO:
                files[module.start] = search.find(found, module, found is self._main)
                extra += self._backing(found, files[module.start])
        if extra:
            self.set_extents(disjoint([*self._extents, *extra]))
        self.warnings += search.warnings()
        return files

    def _backing(self, found: Image, file: Optional[FileSource]) -> Iterator[Extent]:
        page, bias = self.arch.page, found.module.bias
        reached = 0  # segments of an intact file do not overlap
        for s in sorted((s for s in found.segments if s.type == elf.PT_LOAD and s.memsz), key=lambda s: s.vaddr):
            low = s.vaddr // page * page
            if low < reached:
                continue
            reached = max(s.vaddr + s.memsz, s.vaddr + s.filesz) // page * page
            file_end = -(-(s.vaddr + s.filesz) // page) * page if s.filesz else low
            if file is not None and s.filesz:
                offset = s.offset - (s.vaddr - low)
                stop = min(file_end, low + max(0, file.size - offset))
                for gap in gaps(low + bias, min(stop + bias, found.module.end), self._extents, self._starts):
                    yield Extent(gap.start, gap.end, offset + gap.start - low - bias, file)
            bss_end = -(-(s.vaddr + s.memsz) // page) * page + bias
            if s.flags & elf.PF_W and not self.truncated:
                for d, start, end in find_overlaps(self._loads, self._load_starts, file_end + bias, bss_end):
                    if d.flags & elf.PF_W and not d.filesz:
                        yield Extent(start, end, 0, Zeros(end - start))

    # -- what is missing

    def _find_unread(self) -> list[Range]:
        """Return writable memory that certainly existed and that the core lacks."""
        anonymous = any(d.there and d.flags & elf.PF_W and not self._file_name(d.start) for d in self._loads)
        found = list(missing.missing_loads(self._loads, self._file_name, self._is_module, self._lacking, anonymous))
        found += missing.missing_files(self._process.files, self._loads, self._modules)
        if self.truncated:
            stacks = [self._at(thread.sp) >= 0 for thread in self._process.threads]
            warning = missing.truncation_warning(len(self._core.view()), self._expected, stacks)
            self.warnings.insert(0, f"{self._name}: {warning}")
        elif not anonymous:
            self.warnings.append(f"{self._name}: the core has no anonymous memory (coredump_filter): heaps and most roots are missing")
        self.warnings += missing.file_warning(found)
        return merge_ranges([*(part for part, _ in found), *self._unread_when_written()])

    def _is_module(self, address: int) -> bool:
        return self._places.at(address) is not None

    def _find_uncertain(self) -> Iterator[missing.Uncertain]:
        """See Target.uncertain. Cores that findleaks wrote list what they lack."""
        if self._snapshot is None:
            yield from missing.uncertain_loads(self._loads, self._file_name, self._lacking)
            if not self._of_kernel:
                main = self._main.module if self._main is not None else Module("", 0, 0, 0)
                yield from missing.uncertain_gaps(self._regions, Range(main.start, main.end), self.arch.word)

    def _lacking(self, start: int, end: int) -> Iterator[Range]:
        """Yield the parts of [start, end) that cannot be read."""
        return gaps(start, end, self._extents, self._starts)

    def _unread_when_written(self) -> Sequence[Range]:
        """Return memory that had pages but was not written, as listed in findleaks' note."""
        found = self._snapshot.unread if self._snapshot is not None else ()
        self.excluded = [part for part in found for d in [region_at(self._loads, part.start)] if d is not None and not d.filesz]
        if self.excluded:
            self.warnings.append(excluded_warning(self.excluded))
        return found

    @cached_property
    def protected(self) -> Sequence[Range]:
        regions = (region for region in self._regions if region.may_hold_data)
        return [part for region in regions for part in self.nonzero(region.start, region.end, 0)]

    def _file_name(self, address: int) -> str:
        if not self._process.files:
            return ""
        file = region_at(self._files, address)
        return file.path if file is not None else ""

    def _stack(self) -> int:
        """Return an address in the main thread's stack, 0 if unknown. AT_RANDOM is near its end."""
        known = self._process.auxv.get(notes.AT_RANDOM, 0)
        return known or (self._process.threads[0].sp if self._process.threads else 0)

    def _describe(self) -> str:
        n = len(self._process.threads)
        pid = f" (pid {self.pid})" if self.pid is not None else ""
        return f"core of {self.exe_path or 'an unnamed program'}{pid}, {n} thread{'' if n == 1 else 's'}"

    # -- the Target protocol

    def resident(self, start: int, end: int) -> Optional[int]:
        if self._snapshot is not None:
            known = self._snapshot.presence
            return known.resident.bytes(start, end) + known.swapped.bytes(start, end)
        if not self._holes_valid():
            return None
        found = 0
        for extent, low, high in find_overlaps(self._extents, self._starts, start, end):
            if extent.source is self._core:
                move = extent.offset - extent.start
                found += self._data.bytes(low + move, high + move)
        return found

    def keep_holes(self, data: list[Range]) -> None:
        """Record the holes, for `resident` and `presence`; `data` are the parts between them."""
        first = min((load.offset for load in self._loads if load.there), default=0)
        if self._of_kernel and holes.has_page_holes(data, first, len(self._core.view()), self.arch.page):
            self._data = Runs.of(data)

    def _holes_valid(self, progress: Callable[[float], None] = lambda part: None) -> bool:
        """Whether the holes show which pages were present. This may read the whole file."""
        if self._trusted is None:
            self._trusted = bool(self._data) and holes.find_zero_page(self._core.view(), self._data, self.arch.page, progress) >= 0
        return self._trusted

    def presence(self, progress: Callable[[float], None]) -> Optional[Presence]:
        if self._snapshot is not None:
            return self._snapshot.presence
        if not self._holes_valid(progress):
            return None
        anonymous = any(d.there and d.flags & elf.PF_W and not self._file_name(d.start) for d in self._loads)
        return holes.presence_of_holes(self._data, self._loads, self._regions, anonymous)

    def threads(self) -> Sequence[Thread]:
        return self._threads

    @cached_property
    def _threads(self) -> Sequence[Thread]:
        found = self._process.threads
        # 32-bit ARM kernels do not write such a note, nor does GDB for i386.
        return add_thread_pointers(self, found) if self.arch.thread_pointer_note else found

    def thread_names(self) -> Mapping[int, str]:
        return self._snapshot.names if self._snapshot is not None else {}

    def kernel_state(self) -> Optional[KernelState]:
        return self._snapshot.kernel if self._snapshot is not None else None

    @property
    def auxv(self) -> dict[int, int]:
        """Return the auxiliary vector by AT_ type; {} if the core has none."""
        return self._process.auxv

    def _file(self, image: Image) -> Optional[FileSource]:
        return self._checked.get(image.module.start)


def _start(found: Image) -> int:
    return found.module.start


def open_core(
    path: str,
    exe: str = "",
    sysroot: str = "",
    progress: Callable[[str, float], None] = lambda phase, part: None,
    remedy: str = GIVE_SYSROOT,
) -> ImageTarget:
    """Open a core file or a minidump, compressed (gzip, zstd, xz, bzip2) or not, as a target. `exe`
    (the program's file) and `sysroot` (a folder to use as "/") locate files that are not at the
    paths in the core; `remedy` explains how to pass them; `progress` gets the completed part.
    Raises TargetError with a one-line reason if the file cannot be used."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise TargetError(f"{path}: {error.strerror.lower() if error.strerror else error}") from None
    except ValueError:
        raise TargetError(f"{path!r}: not a valid file name") from None
    name = os.path.basename(path) or path
    try:
        info = os.fstat(fd)
        if stat.S_ISDIR(info.st_mode):
            raise TargetError(f"{path}: expected a core file, got a directory")
        if not stat.S_ISREG(info.st_mode):
            raise TargetError(f"{path}: not a regular file; save the core to a file first")
        if not info.st_size:
            raise TargetError(f"{path}: the file is empty (ulimit -c 0, or no space left when it was written?)")
        start = os.pread(fd, 8, 0)
        cut, partial = "", False
        if start[:4] not in FORMATS:
            from findleaks.target.compressed import unpack_core  # slow to import, and seldom needed

            packed, fd = fd, -1
            fd, cut, partial = unpack_core(packed, name, start, lambda part: progress("unpacking the core", part))
        size = os.fstat(fd).st_size
        try:
            target = make_target(fd, size, path, exe, sysroot, remedy, packed=start[:4] not in FORMATS)
        except OSError as error:
            raise TargetError(f"{path}: cannot be mapped: {error.strerror}") from None
    finally:
        if fd >= 0:
            os.close(fd)
    if cut:
        target.warnings.insert(0, cut)
    target.truncated = target.truncated or partial
    return target


def make_target(fd: int, size: int, path: str, exe: str, sysroot: str, remedy: str, packed: bool) -> ImageTarget:
    """Create the target of an open file by its magic number. `packed`: the file was compressed, so
    its holes do not show which pages were present."""
    if os.pread(fd, 4, 0) == MINIDUMP:
        from findleaks.target.minidump.target import MinidumpTarget  # seldom needed

        return MinidumpTarget(map_file(fd, size), path, exe, sysroot, remedy)
    parts = holes.data_parts(fd, size)
    view = map_file(fd, size, parts is not None and holes.is_scattered(parts, size))
    target = CoreTarget(view, path, exe, sysroot, parts, remedy)
    if not packed and parts is not None:
        target.keep_holes(parts)
    return target
