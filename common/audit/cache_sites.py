"""Count the blocks of each size class by the stack that allocated them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Optional

from findleaks.allocators.base import Cache
from findleaks.arg_types import SizeRange
from findleaks.audit.caches import AllocatorCaches
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State, Totals
from findleaks.session import Session

BATCH = 1 << 16  # recorded blocks that are looked up between two checks for Ctrl-C
# Matches the name of a class with a range of sizes: the lowest and highest size in bytes.
_BAND = re.compile(r"([0-9]+)-([0-9]+)")


@dataclass
class _Sum:
    blocks: int = 0
    bytes: int = 0
    estimated: list[float] = field(default_factory=lambda: [0.0, 0.0])


@dataclass(frozen=True)
class ClassSite:
    """The blocks in use of one size class that one stack allocated.

    `instance`: index of the allocator in the list of `list_allocator_caches`. `size`: usable bytes
    of each block, 0 if the blocks differ. `estimated`: number and bytes of all blocks that the
    sampled ones represent; None if all blocks were recorded."""

    instance: int
    name: str
    size: int
    site: int
    live: Totals
    estimated: Optional[Totals]

    @property
    def weight(self) -> Totals:
        return self.estimated or self.live


def count_class_sites(session: Session, holdings: Sequence[AllocatorCaches], sizes: Optional[SizeRange] = None) -> list[ClassSite]:
    """Count the blocks of each size class by allocation site.
    The result ascends by class; in each class, the sites with the most bytes come first. `sizes`:
    lowest and highest usable size of the blocks that are counted."""
    low, high = sizes or (0, 1 << 64)
    instances = {id(holding.allocator): (i, _class_finder(holding.caches)) for i, holding in enumerate(holdings)}
    directory, sites = session.directory, session.sites
    sums: dict[tuple[int, int, str, int], _Sum] = {}
    for recording in sites.recordings:
        for start in range(0, len(recording.addresses), BATCH):
            session.report_progress("looking up allocation sites", start / len(recording.addresses))
            addresses = recording.addresses[start : start + BATCH]
            for address, index, size in zip(addresses, *directory.blocks.find_all(addresses)):
                # `find_all` returns size 0 for an address without a block.
                if not max(low, 1) <= size <= high or not _in_use(directory.blocks, index, address):
                    continue
                owned = directory.owner(address)
                known = instances.get(id(owned.allocator)) if owned is not None else None
                if known is None or owned is None:
                    continue
                number, weight = sites.site_and_weight(address)
                if sites[number].recording is not recording:
                    continue  # this block was counted with an earlier recording
                kind = known[1](size, owned.allocator.class_of(address))
                sum_ = sums.setdefault((known[0], *kind, number), _Sum())
                sum_.blocks, sum_.bytes = sum_.blocks + 1, sum_.bytes + size
                sum_.estimated[0] += weight
                sum_.estimated[1] += weight * size
    found = [_build_class_site(session, *key, sum_) for key, sum_ in sums.items()]
    return sorted(found, key=lambda one: (one.instance, one.size or _class_sort_key(one.name), -one.weight.bytes, one.site))


def _in_use(blocks: Blocks, index: int, address: int) -> bool:
    return blocks.state(index) == State.IN_USE and blocks.address(index) == address


def _build_class_site(session: Session, instance: int, size: int, name: str, number: int, sum_: _Sum) -> ClassSite:
    sampled = session.sites[number].recording.sampled
    estimated = Totals(round(sum_.estimated[0]), round(sum_.estimated[1])) if sampled else None
    return ClassSite(instance, name, size, number, Totals(sum_.blocks, sum_.bytes), estimated)


def _class_sort_key(name: str) -> int:
    """Return the sort key of a class that has no single size.
    The key of "16-32" is its lowest size; the key of "64" (a class of chunks) is that number. Any
    other class contains large blocks and comes last."""
    band = _BAND.fullmatch(name)
    return int(band[1]) if band else int(name) if name.isdecimal() else 1 << 64


def _class_finder(caches: Sequence[Cache]) -> Callable[[int, str], tuple[int, str]]:
    """Return a function that maps (size, class name or "") to (size of the class, class name).
    The size is 0 for classes of several sizes."""
    named = {cache.name: (cache.size, cache.name) for cache in caches}
    exact = {cache.size: (cache.size, cache.name) for cache in caches if cache.size}
    bands = [(int(band[1]), int(band[2]), cache.name) for cache in caches for band in (_BAND.fullmatch(cache.name),) if band]
    others = [cache.name for cache in caches if not cache.size and not _BAND.fullmatch(cache.name)]

    def class_of(size: int, name: str) -> tuple[int, str]:
        if name:
            return named.get(name, (0, name))
        if size in exact:
            return exact[size]
        band = next((name for low, high, name in bands if low <= size <= high), "")
        return (0, band) if band else (0, others[0]) if others else (size, str(size))

    return class_of
