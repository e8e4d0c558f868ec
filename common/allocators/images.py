"""Find loaded files, their writable data, which contain the variables of allocators, and versions
in their read-only memory."""

from __future__ import annotations

import os
import re
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
        """Yield the file's writable memory in pieces, without long runs of zeros (see
        nonzero_pieces)."""
        for start, end in self.data:
            yield from nonzero_pieces(target, start, end)


def find_modules(target: Target, names: tuple[str, ...]) -> list[Module]:
    """Return the loaded files whose base names begin with one of `names`."""
    return [module for module in target.modules() if os.path.basename(module.path).startswith(names)]


def find_version(target: Target, module: Module, pattern: re.Pattern[bytes]) -> str:
    """Return the first group of a pattern that matches in the read-only memory of a loaded file, or
    "" if there is no match."""
    for region in target.regions():
        if region.readable and not region.writable and module.start <= region.start < module.end:
            for piece in nonzero_pieces(target, region.start, region.end):
                match = pattern.search(piece.data)
                if match is not None:
                    return match[1].decode("ascii")
    return ""


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
