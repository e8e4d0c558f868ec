"""The Python reference engine's function for scudo's blocks; see engine.py.

Tests compare it with scudo_blocks.c."""

from __future__ import annotations

from array import array

from findleaks.allocators.scudo.checksum import UNKNOWN, checksum_of
from findleaks.allocators.scudo.engine import DAMAGED, Chunks, ClassKey
from findleaks.allocators.scudo.layout import AVAILABLE, HEADER, MARKER, QUARANTINED, unpack
from findleaks.engine.contract import Engine
from findleaks.target.base import Piece


def read_blocks(engine: Engine, piece: Piece, size: int, key: ClassKey) -> Chunks:
    made = Chunks(array("Q"), array("Q"), bytearray())
    words = memoryview(bytes(piece.data)).cast("Q")
    for at in range(0, len(piece.data) // size * size, size):
        header, offset, good = words[at // 8], 0, True
        if header & 0xFFFFFFFF == MARKER:
            offset = header >> 32
            good = offset % HEADER == 0 and offset <= size - 2 * HEADER
            offset = offset if good else 0
            header = words[(at + offset) // 8]
        chunk, one = piece.address + at + offset + HEADER, unpack(header)
        if header and good:
            good = one.number == key.number and one.offset * HEADER == offset and one.state <= QUARANTINED
            good = good and (one.state == AVAILABLE or one.size <= size - HEADER - offset)
            good = good and (key.algorithm == UNKNOWN or checksum_of(key.algorithm, key.cookie, chunk, header) == one.checksum)
        state = one.state if good else DAMAGED
        if state == AVAILABLE:  # The next allocation may be aligned in another way.
            chunk = piece.address + at + HEADER
        made.chunks.append(chunk)
        made.sizes.append(piece.address + at + size - chunk if state in (AVAILABLE, DAMAGED) else one.size)
        made.states.append(state)
    return made
