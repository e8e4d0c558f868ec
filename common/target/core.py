"""A core file as a target, with nothing but the file: no debugger, and no files of the process where they are not the same."""

from __future__ import annotations

import os
import stat
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.arch import ARCHES, Arch, arch_of
from findleaks.errors import TargetError, UnreadableMemory
from findleaks.target import elf, notes
from findleaks.target.base import Module, Range, Region, Thread
from findleaks.target.modules import DELETED, Check, Image, check, images, tables
from findleaks.target.notes import Mapping
from findleaks.target.reader import Closing, Extent, ExtentReader, Source, Zeros, disjoint, gaps, map_file
from findleaks.target.symbols import Symbolic
from findleaks.target.units import human

STACK, VDSO = "[stack]", "[vdso]"


class _Load(NamedTuple):
    """A PT_LOAD: what was mapped, and how many bytes of it the file really holds."""

    start: int
    end: int
    flags: int
    offset: int
    filesz: int
    there: int


class CoreTarget(ExtentReader, Symbolic, Closing):
    """A core file. `unread` are the writable ranges that were mapped and are not in the core, `truncated` says that the file ends
    before its headers say; `exe_path` is the path of the program when it ran."""

    live = False

    def __init__(self, view: memoryview, path: str, exe: str = "", sysroot: str = "") -> None:
        Symbolic.__init__(self)
        self.path = path
        self.warnings: list[str] = []
        self._name = os.path.basename(path) or path
        self._core = Source(view)
        self._exe, self._sysroot = exe, sysroot.rstrip("/")
        head = self._header(view)
        arch = self._arch(head)
        headers = elf.segments(view, head)
        loads = self._loads(view, headers, arch)
        ExtentReader.__init__(self, arch, disjoint([Extent(d.start, d.start + d.there, d.offset, self._core) for d in loads]))
        self._process = self._notes(view, head, headers)
        self.pid: Optional[int] = self._process.pid
        self._loads_, self._files = loads, self._mappings(loads)
        self._images = images(self.read, self._files, arch.machine, arch.page)
        self._main = self._main_image()
        self._checks: dict[int, Check] = {}
        self._modules = [self._named(image) for image in self._images]
        self._fill()
        self._regions = self._make_regions()
        self.unread = self._find_unread()
        self.exe_path = self._main.module.path if self._main is not None else self._process.name
        self.description = self._describe()

    # -- opening

    def _header(self, view: memoryview) -> elf.Header:
        try:
            head = elf.header(view)
        except elf.ElfError as error:
            raise TargetError(f"{self._name}: {error}: a core file is needed") from None
        if head.type != elf.ET_CORE:
            kind = {elf.ET_REL: "an object file", elf.ET_EXEC: "a program", elf.ET_DYN: "a program or library"}.get(head.type, "no core")
            raise TargetError(f"{self._name}: this is {kind}, not a core file")
        return head

    def _arch(self, head: elf.Header) -> Arch:
        arch = arch_of(head.machine, head.bits, head.byteorder)
        if arch is None:
            known = ", ".join(a.name for a in ARCHES)
            raise TargetError(f"{self._name}: a core of {head.machine_name} ({head.bits}-bit); only {known} is supported for now")
        return arch

    def _loads(self, view: memoryview, headers: Sequence[elf.Segment], arch: Arch) -> list[_Load]:
        size, top = len(view), 1 << 8 * arch.word
        loads = []
        for s in headers:
            if s.type == elf.PT_LOAD and s.memsz and s.vaddr + s.memsz <= top:
                filesz = min(s.filesz, s.memsz)
                there = max(0, min(filesz, size - s.offset))
                loads.append(_Load(s.vaddr, s.vaddr + s.memsz, s.flags, s.offset, filesz, there))
        loads.sort()
        self._expected = max((s.offset + s.filesz for s in headers if s.offset + s.filesz < 1 << 62), default=0)
        self.truncated = self._expected > size
        if not any(d.there for d in loads):
            if self.truncated or size < 1 << 12:
                raise TargetError(f"{self._name}: truncated: of {human(self._expected)} only {human(size)} are there, and no memory; make it again")
            raise TargetError(f"{self._name}: the core holds no memory of the process")
        return loads

    def _notes(self, view: memoryview, head: elf.Header, headers: Sequence[elf.Segment]) -> notes.Process:
        found: list[elf.Note] = []
        cut = False
        for s in headers:
            if s.type == elf.PT_NOTE:
                data = view[s.offset : s.offset + s.filesz]
                cut = cut or len(data) < s.filesz
                found += elf.notes(data, head, s.align)
        process = notes.parse(self.arch, found)
        self.warnings += [f"{self._name}: {problem}" for problem in process.problems]
        if not process.threads:
            why = "the notes are cut off" if cut else "there are no notes of threads"
            self.warnings.append(f"{self._name}: {why}: registers and stacks are unknown, so that what only they refer to looks lost")
        return process

    def _mappings(self, loads: Sequence[_Load]) -> list[Mapping]:
        """The mapped files; where the core does not name them, the segments that start with an ELF header stand for them."""
        if self._process.files:
            known = list(self._process.files)
            vdso = self._process.auxv.get(notes.AT_SYSINFO_EHDR, 0)
            known += [Mapping(d.start, d.end, 0, VDSO) for d in loads if d.start == vdso]
            return sorted(known)
        result = []
        for d in loads:
            try:
                is_elf = d.there >= 64 and self.read(d.start, 4) == b"\x7fELF"
            except UnreadableMemory:
                is_elf = False
            result.append(Mapping(d.start, d.end, 0 if is_elf else 1, ""))
        return result

    # -- modules and their files

    def _main_image(self) -> Optional[Image]:
        at = self._process.auxv.get(notes.AT_PHDR, 0) or self._process.auxv.get(notes.AT_ENTRY, 0)
        for found in self._images:
            if found.module.start <= at < found.module.end:
                return found
        return self._images[0] if self._images else None

    def _named(self, found: Image) -> Module:
        """The module; where no note named it, the program's own name or its DT_SONAME does."""
        module = found.module
        if module.path or found.head is None:
            return module
        path = ""
        if found is self._main:
            path = self._string(self._process.auxv.get(notes.AT_EXECFN, 0)) or self._process.name
        else:
            tags = elf.dynamic(self.read, found.head, found.segments, module.bias)
            if elf.DT_SONAME in tags and elf.DT_STRTAB in tags:
                strings = tags[elf.DT_STRTAB] + (module.bias if tags[elf.DT_STRTAB] < module.start else 0)
                path = self._string(strings + tags[elf.DT_SONAME])
        return Module(path, module.bias, module.start, module.end, module.build_id)

    def _string(self, address: int) -> str:
        try:
            return elf.text(self.read(address, 256), 0)
        except UnreadableMemory:
            return ""

    def _candidates(self, found: Image, path: str) -> list[str]:
        plain = path.removesuffix(DELETED)
        result = []
        if found is self._main and self._exe:
            result.append(self._exe)
        if self._sysroot:
            result += [self._sysroot + plain, f"{self._sysroot}/{os.path.basename(plain)}"]
        return [*result, plain] if plain.startswith("/") else result

    def _fill(self) -> None:
        """Take the bytes the core lacks (text, constants, data never written to) from the modules' files, each only when it is
        proven to be the same file; and the zeros of a module's .bss that was never written to."""
        extra: list[Extent] = []
        absent: list[str] = []
        vague: list[str] = []
        zero = Zeros(max((d.end - d.start for d in self._loads_ if d.flags & elf.PF_W and not d.filesz), default=1))
        covered, starts = self._extents, self._starts
        for found, module in zip(self._images, self._modules):
            name = os.path.basename(module.path)
            if module.path == VDSO or not found.head:
                continue
            result = check(self._candidates(found, module.path), found)
            self._checks[module.start] = result
            if result.mismatch:
                ours, theirs = _short(result.build_id), _short(module.build_id)
                self.warnings.append(
                    f"{os.path.basename(result.path)} on this machine (build-id {ours}) is not the core's ({theirs}): not used. Give --sysroot."
                )
            elif result.file is None:
                (absent if not result.path else vague).append(name or hex(module.start))
            for s in found.segments:
                if s.type != elf.PT_LOAD:
                    continue
                low = s.vaddr // self.arch.page * self.arch.page + module.bias
                file_end = -(-(s.vaddr + s.filesz) // self.arch.page) * self.arch.page + module.bias if s.filesz else low
                end = -(-(s.vaddr + s.memsz) // self.arch.page) * self.arch.page + module.bias
                if result.file is not None and s.filesz:
                    offset = s.offset - (s.vaddr - s.vaddr // self.arch.page * self.arch.page)
                    stop = min(file_end, low + max(0, result.file.size - offset))
                    extra += [Extent(g.start, g.end, offset + g.start - low, result.file) for g in gaps(low, stop, covered, starts)]
                if s.flags & elf.PF_W and not self.truncated:
                    extra += [Extent(g.start, g.end, 0, zero) for g in self._untouched(file_end, end)]
        if extra:
            self.set_extents(disjoint([*covered, *extra]))
        for names, why in ((absent, "not on this machine"), (vague, "without a build-id in the core, so that they cannot be compared")):
            if names:
                listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
                self.warnings.append(f"{listed}: {why}: their read-only data and symbols are missing. Give --sysroot.")

    def _untouched(self, start: int, end: int) -> Iterator[Range]:
        for d in self._loads_:
            if d.flags & elf.PF_W and not d.filesz and d.start < end and start < d.end:
                yield Range(max(start, d.start), min(end, d.end))

    # -- regions

    def _make_regions(self) -> list[Region]:
        stack = self._process.auxv.get(notes.AT_RANDOM, 0)
        if not stack and self._process.threads:
            stack = self._process.threads[0].sp
        files = [m for m in self._files if m.path] if self._process.files else []
        starts = [m.start for m in files]
        regions: list[Region] = []
        last = 0
        for d in self._loads_:
            start = max(d.start, last)
            readable, writable, executable = bool(d.flags & elf.PF_R), bool(d.flags & elf.PF_W), bool(d.flags & elf.PF_X)
            index = max(bisect_right(starts, start) - 1, 0)
            while start < d.end:
                # A segment is one mapping, but some writers of cores join neighbours: split it where the mapped file changes.
                while index < len(files) and files[index].end <= start:
                    index += 1
                file = files[index] if index < len(files) and files[index].start < d.end else None
                if file is None:
                    end, name, offset = d.end, STACK if start <= stack < d.end else "", 0
                elif start < file.start:
                    end, name, offset = file.start, "", 0
                else:
                    end, name, offset = min(file.end, d.end), file.path, file.offset + start - file.start
                regions.append(Region(start, end, readable, writable, executable, name, offset))
                start = end
            last = max(last, d.end)
        return self._with_left_out(regions, files)

    def _with_left_out(self, regions: list[Region], files: Sequence[Mapping]) -> list[Region]:
        """Add the mapped files that have no segment: GDB writes none for what it does not dump, and those are read only."""
        covered = [Extent(r.start, r.end, 0, self._core) for r in regions]
        starts = [r.start for r in regions]
        added = []
        for file in files:
            for gap in gaps(file.start, file.end, covered, starts):
                added.append(Region(gap.start, gap.end, True, False, self._code(gap.start), file.path, file.offset + gap.start - file.start))
        return sorted([*regions, *added], key=lambda r: r.start) if added else regions

    def _code(self, address: int) -> bool:
        for found in self._images:
            if found.module.start <= address < found.module.end:
                return any(
                    s.type == elf.PT_LOAD and s.flags & elf.PF_X and s.vaddr // self.arch.page * self.arch.page <= address - found.module.bias < s.vaddr + s.memsz
                    for s in found.segments
                )
        return False

    def _find_unread(self) -> list[Range]:
        """Writable memory the core lacks. Anonymous memory without a byte in a core that has other such memory was never written
        to: the kernel leaves it out (fs/coredump.c, vma_dump_size), and it can hold no pointer."""
        unread: list[Range] = []
        shared: dict[str, int] = {}
        cut_stacks = 0
        anonymous = any(d.there for d in self._loads_ if d.flags & elf.PF_W and not self._file_at(d.start))
        for d in self._loads_:
            if not d.flags & elf.PF_W or d.there == d.end - d.start:
                continue
            file = self._file_at(d.start)
            if not d.filesz and file is None and anonymous:
                continue
            for gap in gaps(d.start + d.there, d.end, self._extents, self._starts):
                unread.append(gap)
                if not d.filesz and file is not None:
                    shared[file.path] = shared.get(file.path, 0) + gap.end - gap.start
        if self.truncated:
            cut_stacks = sum(1 for t in self._process.threads if self._at(t.sp) < 0)
            held = len(self._core.view())
            stacks = f"; {cut_stacks} of {len(self._process.threads)} thread stacks are missing" if cut_stacks else ""
            self.warnings.insert(
                0,
                f"{self._name}: truncated: {human(held)} of {human(self._expected)} are there{stacks}. "
                "What is found lost may be referred to from the missing part.",
            )
        if shared:
            names = ", ".join(list(shared)[:3]) + (f" and {len(shared) - 3} more" if len(shared) > 3 else "")
            self.warnings.append(f"{human(sum(shared.values()))} of writable files are not in the core ({names}): pointers in them are not seen.")
        if not anonymous and not self.truncated:
            self.warnings.append(f"{self._name}: the core has no anonymous memory (coredump_filter): heaps and most roots are missing")
        return unread

    def _file_at(self, address: int) -> Optional[Mapping]:
        if not self._process.files:
            return None
        if not hasattr(self, "_file_starts"):
            self._file_starts = [m.start for m in self._files]
        index = bisect_right(self._file_starts, address) - 1
        return self._files[index] if index >= 0 and address < self._files[index].end else None

    def _describe(self) -> str:
        n = len(self._process.threads)
        pid = f" (pid {self.pid})" if self.pid is not None else ""
        return f"core of {self.exe_path or 'an unnamed program'}{pid}, {n} thread{'' if n == 1 else 's'}"

    # -- the protocol

    def regions(self) -> Sequence[Region]:
        return self._regions

    def modules(self) -> Sequence[Module]:
        return self._modules

    def threads(self) -> Sequence[Thread]:
        return self._process.threads

    @property
    def auxv(self) -> dict[int, int]:
        """The auxiliary vector by AT_ type; {} if the core has none."""
        return self._process.auxv

    def symbol_tables(self, module: Module) -> Sequence[elf.Table]:
        result = self._checks.get(module.start)
        found = tables(result.file if result else None, module.build_id, self._sysroot)
        for loaded in self._images:
            if not found and loaded.module.start == module.start and loaded.head is not None:
                table = elf.table_of_image(self.read, loaded.head, loaded.segments, module.bias)
                found = [table] if table is not None else []
        return found

    def interrupted(self) -> bool:
        return False

    def close(self) -> None:
        self.close_extents()


def _short(build_id: str) -> str:
    return f"{build_id[:8]}…" if build_id else "none"


def open_core(path: str, exe: str = "", sysroot: str = "") -> CoreTarget:
    """The target of a core file, compressed (gzip, zstd, xz, bzip2) or not. `exe` is the program's file and `sysroot` the folder that
    stands for "/" of the machine the core is from, for when they are not at the paths the core names. TargetError says in one
    line why a file cannot be used."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise TargetError(f"{path}: {error.strerror.lower() if error.strerror else error}") from None
    except ValueError:
        raise TargetError(f"{path!r} is no file name") from None
    name = os.path.basename(path) or path
    try:
        info = os.fstat(fd)
        if stat.S_ISDIR(info.st_mode):
            raise TargetError(f"{path}: this is a folder, not a core file")
        if not stat.S_ISREG(info.st_mode):
            raise TargetError(f"{path}: not a regular file: save the core to a file first")
        if not info.st_size:
            raise TargetError(f"{path}: the file is empty (ulimit -c 0, or no space left when it was written?)")
        start = os.pread(fd, 8, 0)
        cut = ""
        if start[:4] != b"\x7fELF":
            from findleaks.target.compressed import unpacked  # slow to import, and seldom needed

            packed, fd = fd, -1
            fd, cut = unpacked(packed, name, start)
        size = os.fstat(fd).st_size
        try:
            target = CoreTarget(map_file(fd, size), path, exe, sysroot)
        except OSError as error:
            raise TargetError(f"{path}: cannot be mapped: {error.strerror}") from None
    finally:
        if fd >= 0:
            os.close(fd)
    if cut:
        target.warnings.insert(0, cut)
        target.truncated = True
    return target
