"""What a process has mapped of files, read after it was let run on: from the files themselves, or from the process where they are gone.

A page of a file that the process did not write to is what the file has there. A file is the mapped one where device and inode are those
that /proc/PID/maps tells; of one that was deleted, or lies in another container, the process's own memory is read, and counts if the very
same mapping is still there afterwards.
"""

from __future__ import annotations

import os
from typing import Optional

from findleaks.errors import UnreadableMemory
from findleaks.target.base import Region
from findleaks.target.files import Place
from findleaks.target.reader import Source

AHEAD = 16 << 10
_MOST_CHUNKS = 1 << 12
_MOST_FILES = 100


class MappedFiles:
    """The files behind the mappings of `maps`, the text of /proc/PID/maps; `proc` is the process's folder there."""

    def __init__(self, proc: str, maps: bytes, page: int) -> None:
        self._proc, self.page = proc, page
        self._lines = {int(line.partition(b"-")[0], 16): line for line in maps.split(b"\n") if line}
        self._files: dict[bytes, tuple[int, int]] = {}  # by device and inode: a descriptor, or -1, and bytes
        self._memory: Optional[int] = None
        self.chunks: dict[int, bytes] = {}

    def read(self, region: Region, address: int, size: int) -> bytes:
        """What there is of [address, address + size), which lies in the region; short where it ends."""
        line = self._lines.get(region.start, b"")
        file, length = self._file(region, line)
        if file < 0:
            return self._of_process(line, address, size)
        at = region.file_offset + address - region.start
        end = -(-length // self.page) * self.page  # the last page has zeros behind the file's end; behind it nothing can be read
        size = min(size, end - at)
        if size <= 0:
            return b""
        try:
            data = os.pread(file, size, at)
        except OSError:
            return b""
        return data + bytes(size - len(data)) if len(data) < size and at + len(data) >= length else data

    def _file(self, region: Region, line: bytes) -> tuple[int, int]:
        fields = line.split(None, 5)
        key = b" ".join(fields[3:5])
        known = self._files.get(key)
        if known is None:
            if len(self._files) >= _MOST_FILES:
                self._close_files()
            known = self._files[key] = self._opened(region, fields)
        return known

    def _opened(self, region: Region, fields: list[bytes]) -> tuple[int, int]:
        try:
            major, _, minor = fields[3].partition(b":")
            wanted = os.makedev(int(major, 16), int(minor, 16)), int(fields[4])
        except (IndexError, ValueError):
            return -1, 0
        link = f"{self._proc}/map_files/{region.start:x}-{region.end:x}"
        for place in (Place(link), Place(region.name, f"{self._proc}/root"), Place(region.name)):
            try:
                fd = place.open()
            except (OSError, ValueError):
                continue
            found = os.fstat(fd)
            if (found.st_dev, found.st_ino) == wanted:
                return fd, found.st_size
            os.close(fd)
        return -1, 0

    def _of_process(self, line: bytes, address: int, size: int) -> bytes:
        try:
            if self._memory is None:
                self._memory = os.open(f"{self._proc}/mem", os.O_RDONLY | os.O_CLOEXEC)
            data = os.pread(self._memory, size, address)
            with open(f"{self._proc}/maps", "rb") as file:
                return data if line in file.read().split(b"\n") else b""
        except (OSError, OverflowError):
            return b""

    def _close_files(self) -> None:
        for fd, _ in self._files.values():
            if fd >= 0:
                os.close(fd)
        self._files.clear()

    def close(self) -> None:
        """No more of it."""
        self._close_files()
        memory, self._memory = self._memory, None
        if memory is not None:
            os.close(memory)
        self.chunks.clear()


class MappedFile(Source):
    """One mapping of them. Offsets are addresses of the process."""

    direct = False

    def __init__(self, files: MappedFiles, region: Region) -> None:
        super().__init__()
        self._files, self.region = files, region

    def part(self, offset: int, size: int) -> memoryview:
        """These bytes; UnreadableMemory where they are not all there."""
        data = self._near(offset, size) if size <= AHEAD else self._files.read(self.region, offset, size)
        if len(data) < size:
            raise UnreadableMemory(offset, size, f"{self.region.name or 'the mapping'} cannot be read at {offset + len(data):#x}")
        return memoryview(data)

    def some(self, offset: int, size: int) -> memoryview:
        """What there is of these bytes, writable."""
        return memoryview(bytearray(self._files.read(self.region, offset, size)))

    def ahead(self, offset: int, size: int) -> None:
        pass

    def _near(self, address: int, size: int) -> bytes:
        """A few bytes: read with those around them, and kept."""
        base = max(address & -AHEAD, self.region.start)
        chunks = self._files.chunks
        data = chunks.get(base)
        if data is None:
            if len(chunks) >= _MOST_CHUNKS:
                chunks.clear()
            data = chunks[base] = self._files.read(self.region, base, min(2 * AHEAD, self.region.end - base))
        return data[address - base : address - base + size]
