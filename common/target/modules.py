"""Find loaded ELF files in memory, and the files on this machine that are proven to match."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Optional

from findleaks.errors import TargetError, UnreadableMemory
from findleaks.target import elf
from findleaks.target.arch import ARCHES, Arch
from findleaks.target.base import MappedMemory, Module, Range, Region, Target
from findleaks.target.files import FilePlace, file_state
from findleaks.target.notes import Mapping
from findleaks.target.ranges import merge_ranges, region_at
from findleaks.target.reader import Source, map_file, zeros
from findleaks.target.runs import Runs
from findleaks.value_classes import NamedTuple

DELETED = " (deleted)"
_HEADERS = 4096  # bytes of the first read of an image
_MOST_HEADERS = 1 << 16  # most bytes read if the program headers are longer


class Image(NamedTuple):
    """A module with its ELF headers."""

    module: Module
    head: Optional[elf.Header]
    segments: Sequence[elf.Segment]
    page: bytes  # readable part of its first page, to compare files without build-ids


class FileSource(Source):
    """A file on this machine, mapped on first use. It reads as zeros if it has changed since it was
    checked."""

    def __init__(self, place: FilePlace, fd: int) -> None:
        super().__init__()
        self.place = place
        self._state = file_state(fd)
        self.size = os.fstat(fd).st_size

    def make(self) -> memoryview:
        try:
            fd = self.place.open()
        except OSError:
            return zeros(self.size)
        try:
            return map_file(fd, self.size) if file_state(fd) == self._state else zeros(self.size)
        finally:
            os.close(fd)


def supported_arch(head: elf.Header, what: str) -> Arch:
    """Return the architecture of an ELF file. TargetError, beginning with `what`, if
    unsupported."""
    for arch in ARCHES:
        if (arch.machine, arch.word * 8, arch.byteorder) == (head.machine, head.bits, head.byteorder):
            return arch
    *others, last = (arch.name for arch in ARCHES)
    known = f"{', '.join(others)} and {last}"
    raise TargetError(f"{what} of {head.machine_name} ({head.bits}-bit); only {known} are supported for now")


def headers(read: Callable[[int, int], bytes], start: int, available: int) -> Optional[tuple[elf.Header, list[elf.Segment], bytes]]:
    """Read ELF header, program headers and first page of the image at `start`; None if there is
    none."""
    size = min(_HEADERS, max(available, 0))
    try:
        page = read(start, size)
        if page[:4] != b"\x7fELF":
            return None
        head = elf.header(page)
        end = head.phoff + head.phnum * head.phentsize
        if len(page) < end <= min(_MOST_HEADERS, available):
            return head, elf.segments(read(start, end), head), page
        return head, elf.segments(page, head), page
    except (UnreadableMemory, elf.ElfError):
        return None


def module_headers(target: MappedMemory, module: Module) -> Optional[tuple[elf.Header, list[elf.Segment]]]:
    """Read the ELF header and the program headers of a loaded module. None if its first page is not
    in the target, or does not begin with an ELF header."""
    found = headers(target.read, module.start, module.end - module.start)
    return found[:2] if found is not None else None


def image(read: Callable[[int, int], bytes], mapping: Mapping, mappings: Sequence[Mapping], machine: int, page: int) -> Optional[Image]:
    """Return the module whose first page is in `mapping`, or None.
    An ELF file that is mapped as plain data is not a module: its last segment is not at the address
    that the headers require."""
    if mapping.offset:
        return None
    found = headers(read, mapping.start, mapping.end - mapping.start)
    if found is None:
        return None
    head, segments, first = found
    loads = [s for s in segments if s.type == elf.PT_LOAD and s.memsz]
    if head.type not in (elf.ET_EXEC, elf.ET_DYN) or head.machine != machine or not loads:
        return None
    low = min(s.vaddr for s in loads) // page * page
    bias = mapping.start - low
    last = max(loads, key=lambda s: s.vaddr)
    there = region_at(mappings, last.vaddr + bias)
    if last.filesz and (there is None or there.path != mapping.path):
        return None
    if last.filesz and there is not None and there.offset != there.start - bias - last.vaddr + last.offset and there.path:
        return None
    end = max(-(-(s.vaddr + s.memsz) // page) * page for s in loads) + bias
    if not mapping.start < end < 1 << head.bits:
        return None
    build_id = elf.build_id(read, head, segments, bias)
    return Image(Module(mapping.path, bias, mapping.start, end, build_id), head, segments, first)


def images(read: Callable[[int, int], bytes], mappings: Sequence[Mapping], machine: int, page: int) -> list[Image]:
    """Return all modules among sorted mappings, sorted by start and disjoint."""
    found: list[Image] = []
    for mapping in mappings:
        if not mapping.offset and (not found or mapping.start >= found[-1].module.end):
            candidate = image(read, mapping, mappings, machine, page)
            if candidate is not None:
                found.append(candidate)
    return found


def mapped_files(regions: Sequence[Region]) -> list[Mapping]:
    """Return the regions that map files, and the vDSO."""
    return [Mapping(r.start, r.end, r.file_offset, r.name) for r in regions if r.name.startswith("/") or r.name == "[vdso]"]


def find_unnamed_files(read: Callable[[int, int], bytes], parts: Iterable[tuple[int, int, bool]]) -> list[Mapping]:
    """Return the mappings of a process whose file names and offsets are unknown. Each ELF header
    begins a file.
    `parts` are (start, end, whether the beginning is readable)."""
    found = []
    for start, end, readable in parts:
        try:
            is_elf = readable and read(start, 4) == b"\x7fELF"
        except UnreadableMemory:
            is_elf = False
        found.append(Mapping(start, end, 0 if is_elf else 1, ""))
    return found


def find_bare_modules(mappings: Sequence[Mapping], known: Sequence[Image], is_code: Callable[[Mapping], bool]) -> list[Image]:
    """Find modules whose first page cannot be read, so that only their address range is known:
    files that are mapped from offset 0 and have code, or have the name of a library. The bias is
    computed as for a position-independent file."""
    taken = {found.module.path for found in known}
    spans: dict[str, list[Mapping]] = {}
    for mapping in mappings:
        if mapping.path and mapping.path not in taken:
            spans.setdefault(mapping.path, []).append(mapping)
    result = []
    for path, rows in spans.items():
        if not rows[0].offset and (any(map(is_code, rows)) or ".so" in os.path.basename(path)):
            result.append(Image(Module(path, rows[0].start, rows[0].start, rows[-1].end), None, (), b""))
    return result


class ModuleIndex:
    """Index of modules by address, and of their code. The images are sorted and disjoint."""

    def __init__(self, found: Sequence[Image], page: int) -> None:
        self._images, self._page = found, page
        self._starts = [one.module.start for one in found]
        # The first image of each file
        self._by_path = {one.module.path: one for one in reversed(found)}
        self._known: dict[int, tuple[Runs, Runs]] = {}

    def at(self, address: int) -> Optional[Image]:
        """Return the module that contains this address."""
        index = bisect_right(self._starts, address) - 1
        return self._images[index] if index >= 0 and address < self._images[index].module.end else None

    def is_code(self, address: int, path: str, offset: int) -> bool:
        """Return whether the headers of a module place code at this address, or at this offset of
        the file (V8 maps its code a second time)."""
        found = self.at(address)
        if found is not None:
            return address - found.module.bias in self._code(found)[0]
        found = self._by_path.get(path)
        return found is not None and offset in self._code(found)[1]

    def _code(self, found: Image) -> tuple[Runs, Runs]:
        """Return the ranges of a module's code in two forms: as addresses of the file, and as
        offsets in the file."""
        start, page = found.module.start, self._page
        if start not in self._known:
            code = [s for s in found.segments if s.type == elf.PT_LOAD and s.flags & elf.PF_X]
            addresses = _runs(Range(s.vaddr // page * page, s.vaddr + s.memsz) for s in code)
            self._known[start] = addresses, _runs(Range(s.offset // page * page, s.offset + s.filesz) for s in code)
        return self._known[start]


def _runs(ranges: Iterable[Range]) -> Runs:
    """Return the ranges. Omit ranges that do not fit in 64 bits: headers may claim any numbers."""
    return Runs.of(one for one in merge_ranges(ranges) if one.end < 1 << 64)


class FileCheck(NamedTuple):
    """Result of `find_module_file`. `file` is set only if it is proven to be the loaded file."""

    file: Optional[FileSource]
    path: str  # the first candidate that is an ELF file; "" if none is
    build_id: str  # build-id of the candidate
    mismatch: bool


def find_module_file(candidates: Sequence[FilePlace], loaded: Image, named: Sequence[FilePlace] = ()) -> FileCheck:
    """Find the file that a module was loaded from: the first candidate with the same build-id. If
    there is no build-id to compare, the first pages are compared, which contain the size and
    position of every segment. This is done for modules without a build-id (musl's ld.so). It is
    also done for files that the user `named`, if the core lacks the note with the build-id. For
    example, patchelf moves this note to another page (in wheels repaired by auditwheel)."""
    seen = FileCheck(None, "", "", False)
    for place in candidates:
        try:
            fd = place.open()
        except (OSError, ValueError):
            continue
        try:
            source = FileSource(place, fd)
            read = partial(_pread, fd)
            found = headers(read, 0, source.size)
            if found is None:
                continue
            head, segments, page = found
            build_id = elf.build_id(read, head, segments, None)
        except OSError:
            continue
        finally:
            os.close(fd)
        wanted = loaded.module.build_id
        if (wanted and build_id == wanted) or (not wanted and page == loaded.page and (not build_id or place in named)):
            return FileCheck(source, place.name, build_id, False)
        if not seen.path:
            seen = FileCheck(None, place.name, build_id, bool(wanted) or (loaded.head is not None and not build_id))
    return seen


def _pread(fd: int, at: int, size: int) -> bytes:
    data = os.pread(fd, size, at)
    if len(data) != size:
        raise UnreadableMemory(at, size, "the file is shorter")
    return data


def find_symbol_tables(own: Optional[elf.Buffer], separate: Callable[[], Optional[elf.Buffer]]) -> list[elf.Table]:
    """Return the symbol tables of a module. They come from its own file, from its separate debug
    file, and from its MiniDebugInfo (a compressed .symtab in .gnu_debugdata, as in Fedora's
    packages)."""
    found = _tables(own) if own is not None else []
    if len(found) < 2 or not found[0].symbols:
        apart = separate()
        if apart is not None:
            found = _tables(apart) + found
    return found


def _tables(data: elf.Buffer) -> list[elf.Table]:
    try:
        head = elf.header(data)
        found = elf.tables_of_file(data, head)
        for section in elf.sections(data, head):
            if section.name == ".gnu_debugdata":
                found += _mini_debug_info(bytes(data[section.offset : section.offset + section.size]))
        return found
    except TargetError:
        return []


def _mini_debug_info(packed: bytes) -> list[elf.Table]:
    import lzma  # seldom needed

    try:
        inner = lzma.LZMADecompressor().decompress(packed, 1 << 28)
        return elf.tables_of_file(inner, elf.header(inner))
    except (lzma.LZMAError, TargetError):
        return []


def program_module(target: Target) -> Optional[Module]:
    """Return the module of the program's file; None if it is not known."""
    path = target.exe_path.removesuffix(DELETED)
    return next((module for module in target.modules() if module.path.removesuffix(DELETED) == path), None)
