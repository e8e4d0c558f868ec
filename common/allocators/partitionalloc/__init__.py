"""PartitionAlloc, the allocator of Chromium and Electron. Reading it needs no symbols.

x86-64: Chromium 121 to 156. layout.py has the sources.

This module is imported for every process. It imports the modules that read PartitionAlloc only if a
mapping looks like a super page. The slots of a super page begin 16 KiB after a multiple of 2 MiB,
so the start of an anonymous mapping is compared with such addresses."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.base import Allocator
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target

NAME = "PartitionAlloc"
SUPER_PAGE, FIRST_SLOTS = 2 << 20, 16 << 10  # bytes; also in layout.py


def find(target: Target, engine: Engine, taken: Sequence[Range]) -> Sequence[Allocator]:
    """Find the partitions of a process. See base.Finder."""
    arch = target.arch
    if arch.word != 8 or arch.byteorder != "little" or not any(_begins_slots(*region) for region in _list_mappings(target)):
        return []
    from findleaks.allocators.partitionalloc.instance import make

    return make(target, engine)


def _list_mappings(target: Target) -> list[Range]:
    return [Range(one.start, one.end) for one in target.regions() if one.writable and one.private and not one.name.startswith("/")]


def _begins_slots(start: int, end: int) -> bool:
    return start % SUPER_PAGE == FIRST_SLOTS
