"""The checksum of a chunk's header, which depends on a secret number and the chunk's address.

Source: scudo/standalone/checksum.cpp and chunk.h of LLVM 14 to 23. scudo uses the CRC32 instruction
if the processor has it, otherwise the BSD checksum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache

from findleaks.allocators.scudo.layout import without_checksum

UNKNOWN, CRC, BSD = 0, 1, 2  # also in scudo_blocks.c

_POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected


@cache
def _table() -> list[int]:
    """Return the CRC of each byte."""
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


def _crc(crc: int, value: int) -> int:
    """Return what the CRC32 instruction returns for the eight bytes of `value`."""
    table = _table()
    for byte in value.to_bytes(8, "little"):
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc


def _bsd(checksum: int, value: int) -> int:
    for byte in value.to_bytes(8, "little"):
        checksum = ((checksum >> 1 | checksum << 15) + byte) & 0xFFFF
    return checksum


def checksum_of(algorithm: int, cookie: int, chunk: int, header: int) -> int:
    """Return the checksum that the packed `header` of the chunk at `chunk` must have."""
    bare = without_checksum(header)
    if algorithm == BSD:
        return _bsd(_bsd(cookie & 0xFFFF, chunk), bare)
    crc = _crc(_crc(cookie, chunk), bare)
    return (crc ^ crc >> 16) & 0xFFFF


def choose_algorithm(cookie: int, headers: Iterable[tuple[int, int]]) -> int:
    """Return the algorithm that fits most of these (chunk, packed header); UNKNOWN if neither fits
    more than half of them."""
    fits: Counter[int] = Counter()
    count = 0
    for chunk, header in headers:
        count += 1
        fits.update(one for one in (CRC, BSD) if checksum_of(one, cookie, chunk, header) == header >> 48)
    best = fits.most_common(1)
    return best[0][0] if best and 2 * best[0][1] > count else UNKNOWN
