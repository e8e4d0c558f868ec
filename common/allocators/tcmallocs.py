"""Code shared by the readers of gperftools' and Google's tcmalloc: size classes and free lists."""

from __future__ import annotations

from array import array

from findleaks.allocators.base import Problem
from findleaks.allocators.images import Image, images
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.target.base import Target
from findleaks.target.ranges import nonzero_pieces

MARKS = (8 << 32, 16 << 32 | 8)
"""The first words of SizeMap::class_to_size_ (32-bit, from size class 0 up: 0, 8, 16, …), for
either alignment of the entry 8."""

MAX_PROBLEMS = 20


def class_tables(target: Target, engine: Engine, least: int) -> list[tuple[Image, int]]:
    """Addresses at which class_to_size_ may begin in the data of the loaded files that have at
    least `least` bytes of data."""
    found = []
    for image in images(target):
        if image.size < least:
            continue
        for start, end in image.data:
            for piece in nonzero_pieces(target, start, end):
                for address in engine.search_any(piece, MARKS):
                    # 0 with the first mark, 8 with the other
                    low = piece.data[address - piece.address]
                    found.append((image, address - (4 if low else 0)))
    return found


def mark(blocks: Blocks, addresses: array[int], state: State, what: str, problems: list[Problem]) -> None:
    """Set the state of the blocks at these addresses, which are in `what`; report those where no
    block starts."""
    unknown = blocks.set_state(addresses, state)
    for address in unknown[:MAX_PROBLEMS]:
        problems.append(Problem(address, f"{what} has {address:#x}, where no block starts: the list or a span is corrupt"))
    if len(unknown) > MAX_PROBLEMS:
        problems.append(Problem(unknown[MAX_PROBLEMS], f"and {len(unknown) - MAX_PROBLEMS:,} more in lists of that kind"))
