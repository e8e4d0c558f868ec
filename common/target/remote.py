"""A process on another machine, whose memory is read in pieces through the debugger's API."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Optional

from findleaks.errors import TargetError
from findleaks.target import elf
from findleaks.target.arch import Arch
from findleaks.target.base import Module, Piece, Region, Thread, order_threads
from findleaks.target.files import FilePlace
from findleaks.target.image_target import ImageTarget
from findleaks.target.layout import top_of
from findleaks.target.modules import Image, find_module_file, find_unnamed_files, images, mapped_files, supported_arch
from findleaks.target.paged import PagedReader
from findleaks.target.ranges import find_overlaps
from findleaks.target.reader import Source
from findleaks.target.thread_pointers import add_thread_pointers

CHUNK = 1 << 20  # bytes of a call for long reads: far smaller or larger calls are slower

Read = Callable[[int, int], bytes]  # (address, size) -> the readable bytes from `address` on


class RemoteTarget(PagedReader):
    """A stopped process behind a debugger, read by the callbacks `read` and `threads`.
    `regions` are sorted and disjoint; without `offsets` their file offsets are unknown. Symbols
    come from files of this machine (below `sysroot`, if given) whose build-ids match. If there are
    none, they come from the modules in memory."""

    live = True
    longest_read = CHUNK

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
        ImageTarget.__init__(self)
        if not regions:
            raise TargetError(f"process {pid} ({where}): its memory map cannot be read; run findleaks on that machine, or use a core")
        self.pid: Optional[int] = pid
        self._set_regions([region for region in regions if region.end <= top_of(8)])
        self._ask_memory, self._ask_threads, self._sysroot = read, threads, sysroot.rstrip("/")
        PagedReader.__init__(self, self._find_arch(where))
        readable = ((region.start, region.end, region.readable) for region in self._regions)
        mappings = mapped_files(self._regions) if offsets else find_unnamed_files(self.read, readable)
        found = images(self.read, mappings, self.arch.machine, self.arch.page)
        self._images = [image._replace(module=self._name_module(image.module)) for image in found]
        self._modules = [image.module for image in self._images]
        self._threads: Optional[Sequence[Thread]] = None
        self.exe_path = self._modules[0].path if self._modules else ""
        self.description = f"process {pid} ({where})"

    def _find_arch(self, where: str) -> Arch:
        for region in self._regions:
            if region.readable and not region.file_offset:
                try:
                    head = elf.header(self._read_some(region.start, min(64, region.size)))
                except elf.ElfError:
                    continue
                return supported_arch(head, f"{where}: a process")
        raise TargetError(f"{where}: no program found in its memory")

    def _name_module(self, module: Module) -> Module:
        region = self._region_at(module.start)
        return module if module.path or region is None else module._replace(path=region.name)

    # -- bytes

    def _read_some(self, address: int, size: int) -> bytes:
        return self._ask_memory(address, size)

    def _read_error(self, region: Region, address: int) -> str:
        return f"the debugger cannot read {address:#x}"

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        """Yield the readable parts of [start, end), ascending, each at most 1 MiB."""
        for region, low, high in find_overlaps(self._regions, self._region_starts, start, end):
            if region.readable:
                yield from self._readable_pieces(low, high, CHUNK, lambda at, size: memoryview(bytearray(self._read_some(at, size))))

    # -- the rest of the Target protocol

    def threads(self) -> Sequence[Thread]:
        if self._threads is None:
            self._threads = add_thread_pointers(self, order_threads(self._ask_threads(self.arch), self.pid))
        return self._threads

    def _file(self, image: Image) -> Optional[Source]:
        path = image.module.path
        return find_module_file([FilePlace(path, self._sysroot), FilePlace(path)], image).file if path.startswith("/") else None

    def close(self) -> None:
        self._pages.clear()
