"""Read a stopped process through a function, with a cache of pages for short reads."""

from __future__ import annotations

import struct

from findleaks.errors import UnreadableMemory
from findleaks.target.arch import Arch
from findleaks.target.base import Region
from findleaks.target.image_target import ImageTarget

_PAGE = 4096  # bytes
# Bytes fetched for a short read, because one request to another machine then serves many reads
_AHEAD = 4 * _PAGE
_MOST_PAGES = 1 << 14  # most pages in the cache


class PagedReader(ImageTarget):
    """Implements `read` and `word` of the Target protocol with `_read_some` of the subclass."""

    longest_read = 1 << 30  # most bytes of one call of `_read_some`

    def __init__(self, arch: Arch) -> None:
        self.arch = arch
        self._unpack = struct.Struct(arch.word_format).unpack_from
        self._pages: dict[int, bytes] = {}  # by address; b"": unreadable

    def _read_some(self, address: int, size: int) -> bytes:
        """Return the bytes that can be read from `address` on, at most `size`; b"" if none can."""
        raise NotImplementedError

    def _read_error(self, region: Region, address: int) -> str:
        raise NotImplementedError

    def read(self, address: int, size: int) -> bytes:
        """Return exactly `size` bytes, never fewer.
        Raises UnreadableMemory."""
        at, end = address, address + size
        reached = address if size > _AHEAD else end
        while reached < end:  # check the regions before reading, because a corrupt size may be huge
            region = self._region_at(reached)
            if region is None:
                raise UnreadableMemory(address, size)
            reached = region.end
        parts = []
        while at < end:
            size_left = end - at
            data = self._read_cached(at, size_left) if size_left <= _AHEAD else self._read_some(at, min(size_left, self.longest_read))
            if not data:
                region = self._region_at(at)
                if region is None:
                    raise UnreadableMemory(address, size)
                raise UnreadableMemory(address, size, self._read_error(region, at))
            parts.append(data)
            at += len(data)
        return b"".join(parts)

    def _read_cached(self, address: int, size: int) -> bytes:
        """Return at most `size` bytes of the page that contains `address`. If the page is not
        cached, fetch it and a few more pages."""
        base = address & -_PAGE
        if base not in self._pages:
            region = self._region_at(address)
            if region is None:
                return b""
            data = self._read_some(base, min(_AHEAD, region.end - base)) or self._read_some(base, _PAGE)
            if len(self._pages) > _MOST_PAGES:
                self._pages.clear()
            self._pages[base] = b""
            for low in range(0, len(data), _PAGE):
                self._pages[base + low] = data[low : low + _PAGE]
        return self._pages[base][address - base : address - base + size]

    def word(self, address: int) -> int:
        """Return the unsigned, pointer-sized word at `address`.
        Raises UnreadableMemory."""
        page = self._pages.get(address & -_PAGE)
        at = address & (_PAGE - 1)
        if page is not None and at + self.arch.word <= len(page):
            return int(self._unpack(page, at)[0])
        return int(self._unpack(self.read(address, self.arch.word))[0])
