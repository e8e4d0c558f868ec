"""What the readers of gperftools' and Google's tcmalloc share: both descend from one program."""

from __future__ import annotations

from findleaks.allocators.images import Image, images
from findleaks.engine.contract import Engine
from findleaks.target.base import Target

MARKS = (8 << 32, 16 << 32 | 8)
"""The first words of SizeMap::class_to_size_, for either alignment of the entry 8.

It has 32-bit sizes, from size class 0 up: 0, 8, 16, …
"""


def class_tables(target: Target, engine: Engine, least: int) -> list[tuple[Image, int]]:
    """Addresses at which class_to_size_ may begin, in files with at least `least` bytes of data."""
    found = []
    for image in images(target):
        if image.size < least:
            continue
        for piece in image.pieces(target):
            for address in engine.search_any(piece, MARKS):
                # 0 with the first mark, 8 with the other
                low = piece.data[address - piece.address]
                found.append((image, address - (4 if low else 0)))
    return found
