"""Code that the readers of gperftools' and Google's tcmalloc share, as both descend from one
program."""

from __future__ import annotations

from findleaks.allocators.images import Image, find_images
from findleaks.engine.contract import Engine
from findleaks.target.base import Target

# The first words of SizeMap::class_to_size_, which are 32-bit sizes by class (0, 8, 16, …), for
# both alignments of the entry 8.
MARKS = (8 << 32, 16 << 32 | 8)


def class_tables(target: Target, engine: Engine, least: int) -> list[tuple[Image, int]]:
    """Return addresses at which class_to_size_ may begin, in files with at least `least` bytes of
    data."""
    found = []
    for image in find_images(target):
        if image.size < least:
            continue
        for piece in image.pieces(target):
            for address in engine.search_any(piece, MARKS):
                low = piece.data[address - piece.address]  # 0 with the first mark, 8 with the other
                found.append((image, address - (4 if low else 0)))
    return found
