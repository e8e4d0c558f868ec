"""scudo's standalone allocator (clang's -fsanitize=scudo), in a library or linked into the program,
without symbols.

x86-64: LLVM 14 to 23. layout.py has the sources.

This module is imported for every process. It only checks whether some anonymous mappings begin at
nearly the same offset in different parts of 4 GiB, as the size classes do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from findleaks.allocators.base import Allocator
from findleaks.allocators.images import find_modules
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Region, Target

NAME = "scudo"
FILES = ("libclang_rt.scudo", "libscudo")  # prefixes of the names of libraries that contain it
BITS = 32  # base-2 logarithm of the bytes of addresses of a class
WINDOW = 16  # base-2 logarithm of the bytes in which the random starts of regions differ
MOST_GROUPS = 4  # groups of mappings that are examined


def find(target: Target, engine: Engine, taken: Sequence[Range]) -> Sequence[Allocator]:
    """Find the scudos of a process. See base.Finder."""
    groups = group_spaced(target.regions()) if target.arch.word == 8 else []
    if not groups and target.arch.word == 8:
        return []
    named = find_modules(target, FILES)
    if not groups and not named:
        return []
    from findleaks.allocators.scudo.instance import make

    return make(target, engine, groups, named)


def group_spaced(regions: Sequence[Region]) -> list[list[int]]:
    """Return groups of the starts of anonymous writable mappings whose lower 32 bits differ by less
    than 128 KiB, and whose upper 32 bits differ. The largest groups are first."""
    buckets: dict[int, dict[int, int]] = defaultdict(dict)
    for region in regions:
        if region.writable and region.private and not region.name and region.start >> BITS:
            buckets[(region.start & (1 << BITS) - 1) >> WINDOW].setdefault(region.start >> BITS, region.start)
    groups = []
    for number, starts in buckets.items():
        both = {**buckets.get((number + 1) % (1 << BITS - WINDOW), {}), **starts}
        if len(both) > 1:
            groups.append(sorted(both.values()))
    return sorted(groups, key=len, reverse=True)[:MOST_GROUPS]
