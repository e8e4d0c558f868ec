"""The stacks that allocated the blocks, and those that freed the ones in the quarantine: their
numbers in the stack depot are in each chunk."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from findleaks.allocators.asan.chunks import Chunk, Large, Region, chunks, large_chunk
from findleaks.allocators.asan.depot import Depot
from findleaks.allocators.asan.layout import ALLOCATED, HEADER, QUARANTINED
from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.allocators.sites import Recording, Site
from findleaks.engine.terms import Totals
from findleaks.errors import Interrupted

NUMBER = (1 << 32) - 1  # the half of a context word that has the stack's number
POLL = 1 << 12  # stacks read between two checks for Ctrl-C
RUNTIME = ("libasan.so", "libclang_rt.asan")


class _Stacks:
    """Blocks with the numbers of their stacks. Sites are numbered as they are first met."""

    def __init__(self) -> None:
        self.addresses = array("Q")
        self.site_of = array("I")
        self.live: list[list[int]] = []  # blocks, bytes of each site
        self._sites: dict[int, int] = {}

    def add(self, address: int, stack: int, size: int, live: int) -> None:
        site = self._sites.setdefault(stack, len(self._sites))
        if site == len(self.live):
            self.live.append([0, 0])
        self.addresses.append(address)
        self.site_of.append(site)
        counts = self.live[site]
        counts[0] += live
        counts[1] += live * size

    def sites(self, depot: Depot) -> tuple[list[Site], int]:
        """The sites; how many have a stack that the depot does not have."""
        found: list[Site] = []
        missing = 0
        for stack, counts in zip(self._sites, self.live):
            if len(found) % POLL == 0 and depot.memory.target.interrupted():
                raise Interrupted
            frames = depot.stack(stack)
            missing += not frames
            found.append(Site(frames, Totals(*counts)))
        return found, missing


def recordings(memory: Memory, depot: Depot, regions: Sequence[Region], large: Sequence[Large], image: Image) -> list[Recording]:
    """Who allocated the blocks in use and in the quarantine, and who freed the latter."""
    allocated, freed = _Stacks(), _Stacks()
    for chunk in _every(memory, regions, large):
        state, size = chunk.first & 0xFF, chunk.first >> 32 | (chunk.first >> 16 & 0xFFFF) << 32
        address = chunk.header + HEADER
        if state not in (ALLOCATED, QUARANTINED) or not 0 < size <= chunk.end - address:
            continue  # free, or damaged: the walk has reported it
        allocated.add(address, chunk.second & NUMBER, size, int(state == ALLOCATED))
        if state == QUARANTINED and size >= 8:
            freed.add(address, chunk.block & NUMBER, size, 0)
    own = image.name if image.name.startswith(RUNTIME) else ""
    found = [_recording(allocated, depot, "AddressSanitizer", own)]
    if freed.addresses:
        found.append(_recording(freed, depot, "AddressSanitizer's quarantine", own, True))
    return found


def _recording(stacks: _Stacks, depot: Depot, name: str, own: str, freed: bool = False) -> Recording:
    sites, missing = stacks.sites(depot)
    what = f"{missing:,} of {len(sites):,} stacks of {name} are not in its stack depot, which is damaged or compressed: they are empty"
    return Recording(name, sites, stacks.addresses, stacks.site_of, own=own, warnings=[what] if missing else [], freed=freed)


def _every(memory: Memory, regions: Sequence[Region], large: Sequence[Large]) -> Iterator[Chunk]:
    """The chunks in ascending order: of both sorts, those of mappings and those of classes."""
    below = [one for one in large if regions and one.start < regions[0].start]
    yield from _large(memory, below)
    for region in regions:
        yield from chunks(memory, region)
    yield from _large(memory, large[len(below) :])


def _large(memory: Memory, large: Sequence[Large]) -> Iterator[Chunk]:
    for one in large:
        chunk = large_chunk(memory, one)
        if chunk is not None:
            yield chunk
