"""A process on another machine, whose memory is read in pieces through the debugger's API."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Optional

from findleaks.errors import TargetError, UnreadableMemory
from findleaks.target import elf
from findleaks.target.arch import ARCHES, Arch, arch_of
from findleaks.target.base import Module, Piece, Range, Region, Thread
from findleaks.target.files import Place
from findleaks.target.layout import top_of
from findleaks.target.modules import Image, check, debug_data, images, tables
from findleaks.target.notes import Mapping
from findleaks.target.reader import Closing
from findleaks.target.residency.presence import Presence
from findleaks.target.symbols import Symbolic
from findleaks.target.thread_pointers import completed

CHUNK = 1 << 20
"""Bytes of one call of the debugger's API for long reads. Both debuggers are slower with much
shorter and with much longer ones."""
_PAGE = 4096  # bytes
_AHEAD = 4 * _PAGE
"""Bytes of one call for short reads: one request to the other machine serves many."""
_MOST_PAGES = 1 << 14  # in the cache

Read = Callable[[int, int], bytes]
"""(address, size) -> the bytes that could be read from `address` on; b"" if none."""


class RemoteTarget(Symbolic, Closing):
    """A stopped process behind a debugger.

    `regions` are sorted and disjoint; `read` and `threads` ask the debugger. Symbols come from
    files of this machine (below `sysroot`, if given) where their build-ids match, else from the
    modules in memory. Without `offsets` the regions' file offsets are not known.
    """

    live = True
    path = ""
    truncated = False

    def __init__(
        self,
        pid: int,
        regions: Sequence[Region],
        read: Read,
        threads: Callable[[Arch], Sequence[Thread]],
        where: str,
        sysroot: str = "",
        offsets: bool = True,
    ) -> None:
        Symbolic.__init__(self)
        if not regions:
            raise TargetError(f"process {pid} ({where}): what is mapped cannot be found out: use findleaks on its own machine, or a core")
        self.pid: Optional[int] = pid
        self.warnings: list[str] = []
        self.unread: list[Range] = []
        self._regions = [region for region in regions if region.end <= top_of(8)]
        self._starts = [region.start for region in self._regions]
        self._read_some, self._sysroot = read, sysroot.rstrip("/")
        self._pages: dict[int, bytes] = {}
        self.arch = self._find_arch(where)
        self._unpack = struct.Struct(self.arch.word_format).unpack_from
        mappings = self._mappings() if offsets else self._heads()
        self._images = images(self.read, mappings, self.arch.machine, self.arch.page)
        self._modules = [self._named(found.module) for found in self._images]
        self._ask_threads = threads
        self._threads: Optional[Sequence[Thread]] = None
        self.exe_path = self._modules[0].path if self._modules else ""
        self.description = f"process {pid} ({where})"

    def _find_arch(self, where: str) -> Arch:
        """The architecture of the first ELF image in memory."""
        for region in self._regions:
            try:
                head = elf.header(self.read(region.start, min(64, region.size))) if region.readable and not region.file_offset else None
            except (UnreadableMemory, elf.ElfError):
                continue
            if head is not None:
                arch = arch_of(head.machine, head.bits, head.byteorder)
                if arch is None:
                    known = ", ".join(a.name for a in ARCHES)
                    raise TargetError(f"{where}: a process of {head.machine_name} ({head.bits}-bit); only {known} is supported for now")
                return arch
        raise TargetError(f"{where}: no program is to be found in its memory")

    def _mappings(self) -> list[Mapping]:
        return [Mapping(r.start, r.end, r.file_offset, r.name) for r in self._regions if r.name.startswith("/") or r.name == "[vdso]"]

    def _heads(self) -> list[Mapping]:
        """Mappings where file offsets are not known: those with an ELF header begin a file."""
        found = []
        for region in self._regions:
            try:
                head = region.readable and self.read(region.start, 4) == b"\x7fELF"
            except UnreadableMemory:
                head = False
            found.append(Mapping(region.start, region.end, 0 if head else 1, ""))
        return found

    def _named(self, module: Module) -> Module:
        region = self._region_at(module.start)
        path = module.path or (region.name if region is not None else "")
        return Module(path, module.bias, module.start, module.end, module.build_id)

    # -- bytes

    def _region_at(self, address: int) -> Optional[Region]:
        index = bisect_right(self._starts, address) - 1
        return self._regions[index] if index >= 0 and address < self._regions[index].end else None

    def read(self, address: int, size: int) -> bytes:
        """Exactly `size` bytes, or UnreadableMemory; never short."""
        parts = []
        at, end = address, address + size
        while at < end:
            region = self._region_at(at)
            if region is None:
                raise UnreadableMemory(address, size)
            want = min(end, region.end) - at
            data = self._page(at)[:want] if want <= _AHEAD else self._read_some(at, min(want, CHUNK))
            if not data:
                raise UnreadableMemory(address, size, f"the debugger cannot read {at:#x}")
            parts.append(data)
            at += len(data)
        return b"".join(parts)

    def _page(self, address: int) -> bytes:
        """The rest of the page that `address` is in, from the cache. Reads a few pages at once."""
        base = address & -_PAGE
        if base not in self._pages:
            region = self._region_at(address)
            available = region.end - base if region is not None else _PAGE
            data = self._read_some(base, min(_AHEAD, available)) or self._read_some(base, _PAGE)
            if len(self._pages) > _MOST_PAGES:
                self._pages.clear()
            self._pages[base] = b""
            for low in range(0, len(data), _PAGE):
                self._pages[base + low] = data[low : low + _PAGE]
        return self._pages[base][address - base :]

    def word(self, address: int) -> int:
        """The pointer-sized unsigned word at `address`, or UnreadableMemory."""
        page = self._pages.get(address & -_PAGE)
        at = address & (_PAGE - 1)
        if page is not None and at + self.arch.word <= len(page):
            return int(self._unpack(page, at)[0])
        return int(self._unpack(self.read(address, self.arch.word))[0])

    def nonzero(self, start: int, end: int) -> Iterator[Range]:
        """See Target."""
        return iter((Range(start, end),))

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        """The readable parts of [start, end), ascending, each at most 1 MiB."""
        index = max(bisect_right(self._starts, start) - 1, 0)
        while index < len(self._regions) and self._regions[index].start < end:
            region = self._regions[index]
            index += 1
            low, high = max(start, region.start), min(end, region.end)
            while low < high and region.readable:
                data = self._read_some(low, min(CHUNK, high - low))
                if data:
                    yield Piece(low, memoryview(bytearray(data)))
                    low += len(data)
                else:
                    low = self._skip(low, high, region)

    def _skip(self, low: int, high: int, region: Region) -> int:
        """Record that nothing can be read at `low`; the address to try next."""
        after = min(high, (low & -_PAGE) + _PAGE)
        if len(self.unread) > 1024:  # it would go on like that: give up the region
            after = high
        if region.writable:
            if self.unread and self.unread[-1].end == low:
                self.unread[-1] = Range(self.unread[-1].start, after)
            else:
                self.unread.append(Range(low, after))
        return after

    # -- the rest of the protocol

    def resident(self, start: int, end: int) -> Optional[int]:
        """See Target. A debugger's API does not report it."""
        return None

    def presence(self, progress: Callable[[float], None]) -> Optional[Presence]:
        """See Target. A debugger's API does not report it."""
        return None

    def regions(self) -> Sequence[Region]:
        return self._regions

    def modules(self) -> Sequence[Module]:
        return self._modules

    def threads(self) -> Sequence[Thread]:
        if self._threads is None:
            self._threads = completed(self, sorted(self._ask_threads(self.arch), key=lambda thread: thread.tid))
        return self._threads

    def symbol_tables(self, module: Module) -> Sequence[elf.Table]:
        for loaded in self._images:
            if loaded.module.start == module.start:
                return self._tables(loaded, module.path)
        return []

    def debug_data(self, module: Module) -> Sequence[elf.Buffer]:
        for loaded in self._images:
            if loaded.module.start == module.start and module.path.startswith("/"):
                source = check([Place(module.path, self._sysroot), Place(module.path)], loaded).file
                return debug_data(source, loaded.module.build_id, self._sysroot)
        return []

    def _tables(self, loaded: Image, path: str) -> Sequence[elf.Table]:
        build_id = loaded.module.build_id
        found: list[elf.Table] = []
        if path.startswith("/"):
            found = tables(check([Place(path, self._sysroot), Place(path)], loaded).file, build_id, self._sysroot)
        if not found and loaded.head is not None:
            table = elf.table_of_image(self.read, loaded.head, loaded.segments, loaded.module.bias)
            found = [table] if table is not None else []
        return found

    def close(self) -> None:
        """Drop the cache."""
        self._pages.clear()
