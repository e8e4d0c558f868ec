"""libumem, the Solaris slab allocator, and its ports (OpenSolaris layout), read without symbols."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from findleaks.allocators.base import Allocator
from findleaks.allocators.images import Image, images
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges, nonzero_pieces, subtract

MARK = re.compile(b"invalid_cache\0")

NAME = "libumem"


def find(target: Target, engine: Engine, taken: Sequence[Range]) -> Sequence[Allocator]:
    """See base.Finder. umem_null_cache is initialised statically with a name, so the name is in a
    file's own pages: few bytes to search."""
    found: list[Allocator] = []
    for image, address in _names(target):
        from findleaks.allocators.umem.instance import make

        allocator = make(target, engine, image, address)
        if allocator is not None:
            found.append(allocator)
    return found


def _names(target: Target) -> Iterator[tuple[Image, int]]:
    """Where the name of a null cache is in the initialised data of the loaded files."""
    anonymous = merge_ranges(Range(region.start, region.end) for region in target.regions() if not region.name)
    for image in images(target):
        named = subtract(image.data, anonymous)
        for start, end in named or image.data:  # a core may not name its mappings
            for piece in nonzero_pieces(target, start, end):
                for match in MARK.finditer(piece.data):
                    yield image, piece.address + match.start()
