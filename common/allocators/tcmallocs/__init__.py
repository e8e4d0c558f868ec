"""Code that the readers of gperftools' and Google's tcmalloc share, because both descend from one
program."""

from __future__ import annotations

from findleaks.allocators.images import Image, find_images
from findleaks.engine.contract import Engine
from findleaks.target.base import Target

# SizeMap::class_to_size_ has 32-bit sizes by class: 0, 8, 16, …. The 8 is in the upper or in the
# lower half of an aligned word, so the word contains (0, 8) or (8, 16).
MARKS = (8 << 32, 16 << 32 | 8)
FIRST = 20  # bytes of the first sizes, which rise and are multiples of 8


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
                at = address - piece.address - (4 if low else 0)
                if at < 0 or _may_be_sizes(piece.data[at : at + FIRST]):
                    found.append((image, piece.address + at))
    return found


def _may_be_sizes(data: memoryview) -> bool:
    """Whether these numbers of 32 bits rise and are multiples of 8."""
    sizes = [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data) - 3, 4)]
    return all(size % 8 == 0 for size in sizes) and all(one < after for one, after in zip(sizes, sizes[1:]))
