"""Finds the writable data of loaded files, where allocators have their variables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from findleaks.target.base import Module, Piece, Range, Target
from findleaks.target.ranges import nonzero_pieces
from findleaks.value_classes import NamedTuple


class Image(NamedTuple):
    """A loaded file and its writable memory (.data, .bss, writable RELRO), ascending."""

    name: str
    module: Module
    data: Sequence[Range]

    @property
    def size(self) -> int:
        return sum(end - start for start, end in self.data)

    def pieces(self, target: Target) -> Iterator[Piece]:
        """Yield the data in pieces, without long runs of zeros (see nonzero_pieces)."""
        for start, end in self.data:
            yield from nonzero_pieces(target, start, end)


def find_images(target: Target) -> list[Image]:
    """Return every loaded file that has writable memory, by ascending address. Each allocator is in
    one of them: its own library, another library, or the program."""
    regions = [region for region in target.regions() if region.writable and region.readable]
    found = []
    at = 0
    for module in sorted(target.modules(), key=lambda module: module.start):
        while at < len(regions) and regions[at].end <= module.start:
            at += 1
        data = []
        for number in range(at, len(regions)):
            region = regions[number]
            if region.start >= module.end:
                break
            data.append(Range(max(region.start, module.start), min(region.end, module.end)))
        if data:
            found.append(Image(os.path.basename(module.path), module, data))
    return found
