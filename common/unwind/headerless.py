"""Find the call frame information of a module without a header (PT_GNU_EH_FRAME).

musl-gcc links programs without .eh_frame_hdr, but the linker still places .eh_frame in a read-only
segment. It begins with a common information entry (Linux Standard Base Core 5.0, 10.6.1): its
length, 0, version 1, and an augmentation such as "zR" or "zPLR"."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Literal

from findleaks.errors import UnreadableMemory
from findleaks.target.elf import PF_W, PT_LOAD
from findleaks.target.modules import module_headers
from findleaks.unwind.cfi import FrameTable, Malformed

_LARGEST = 4 << 20  # bytes of a segment that are searched
_MOST_ENTRIES = 1 << 15
_SHORTEST, _LONGEST = 8, 1 << 16  # bytes of an entry
_COMMON = re.compile(rb"\0\0\0\0\x01z[RPLSB]{0,4}\0")
_MOST_TRIES = 16  # maximum number of places that are tried as the first entry


class HeaderlessTable(FrameTable):
    """The call frame information of a module without a header."""

    def _open(self) -> None:
        self._begins, self._entries = list[int](), list[int]()
        found = module_headers(self.target, self.module)
        listed = set[tuple[int, int]]()
        for segment in found[1] if found else ():
            if segment.type == PT_LOAD and not segment.flags & PF_W and segment.filesz <= _LARGEST:
                listed.update(self._search(segment.vaddr + self.module.bias, segment.filesz))
        for begin, entry in sorted(listed):
            self._begins.append(begin)
            self._entries.append(entry)
        self.count = len(self._entries)

    def _entry(self, pc: int) -> int:
        at = bisect_right(self._begins, pc)
        return self._entries[at - 1] if at else 0

    def _search(self, start: int, size: int) -> Iterator[tuple[int, int]]:
        """Yield the start of the described code and the address of each frame description entry in
        a segment."""
        data, at = self.target.read(start, size), 0
        for _ in range(_MOST_TRIES):
            found = _COMMON.search(data, at)
            if found is None:
                break
            entries, end = self._walk(data, found.start() - 4, start)
            yield from entries
            at = max(end, found.start() + 1)

    def _walk(self, data: bytes, at: int, start: int) -> tuple[list[tuple[int, int]], int]:
        """Return the entries of a section that begins at offset `at`, and the offset of its end. A
        zero or malformed entry ends the section."""
        order: Literal["little", "big"] = self.target.arch.byteorder
        found: list[tuple[int, int]] = []
        while 0 <= at <= len(data) - 8 and len(found) < _MOST_ENTRIES:
            length = int.from_bytes(data[at : at + 4], order)
            if not _SHORTEST <= length <= _LONGEST:
                break
            if data[at + 4 : at + 8].strip(b"\0"):
                try:
                    code = self._describe(start + at).code
                except (Malformed, UnreadableMemory):
                    break
                if not self.module.start <= code.start < code.end <= self.module.end:
                    break
                found.append((code.start, start + at))
            at += 4 + length
        return found, at
