"""Read numbers and text of a section of DWARF, in pure Python."""

from __future__ import annotations

from typing import Optional

from findleaks.target.elf import Buffer

MOST_LEB = 20  # Maximum number of bytes of a LEB128 number.
MASK = (1 << 64) - 1


class Malformed(Exception):
    """Data that are damaged, or end too early."""


class Data:
    """A section, which is not copied. Its numbers are in the target's byte order."""

    def __init__(self, data: Buffer, order: str) -> None:
        self.data, self.order = data, order

    def text(self, at: int, end: int) -> Optional[bytes]:
        """Return the bytes before the next zero; None if there is none before `end`."""
        step, begin = 64, at
        while at < end:
            found = bytes(self.data[at : min(at + step, end)]).find(0)
            if found >= 0:
                return bytes(self.data[begin : at + found])
            at, step = at + step, 1 << 12
        return None

    def number(self, at: int, size: int) -> int:
        return int.from_bytes(self.data[at : at + size], "big" if self.order == "big" else "little")

    def uleb(self, at: int, end: int) -> tuple[int, int]:
        """Decode an unsigned LEB128 number. Return the number and the offset after it."""
        number = 0
        for count in range(MOST_LEB):
            if at >= end:
                break
            byte = self.data[at]
            at += 1
            number |= (byte & 0x7F) << 7 * count
            if byte < 0x80:
                return number & MASK, at
        raise Malformed

    def sleb(self, at: int, end: int) -> tuple[int, int]:
        number, after = self.uleb(at, end)
        bits = 7 * (after - at)
        if bits < 64 and self.data[after - 1] & 0x40:
            number |= MASK << bits & MASK
        return number, after
