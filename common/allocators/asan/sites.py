"""The stacks that allocated the blocks, and those that freed the blocks in the quarantine.

The header of each chunk has the numbers of its stacks in the stack depot."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import compress

from findleaks.allocators.asan.chunks import Large, Region, chunks, large_chunk
from findleaks.allocators.asan.depot import Depot
from findleaks.allocators.asan.engine import Chunks
from findleaks.allocators.asan.layout import ALLOCATED, QUARANTINED
from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.allocators.sites import Recording, Site
from findleaks.engine.contract import Engine
from findleaks.engine.terms import Totals
from findleaks.errors import Interrupted

POLL = 1 << 12  # stacks read between two checks for Ctrl-C
_KNOWN = bytes(state in (ALLOCATED, QUARANTINED) for state in range(256))
_USED = bytes(state == ALLOCATED for state in range(256))
RUNTIME = ("libasan.so", "libclang_rt.asan")


class _Stacks:
    """Blocks, ascending, with the numbers of their stacks, and the sizes of the live blocks."""

    def __init__(self) -> None:
        self.blocks = array("Q")
        self.stacks = array("I")
        self.live = array("Q")  # stacks of live blocks
        self.sizes = array("Q")


def recordings(
    memory: Memory, engine: Engine, depot: Depot, regions: Sequence[Region], large: Sequence[Large], image: Image
) -> list[Recording]:
    """Return the recordings: the stacks that allocated the blocks in use and in the quarantine, and
    the stacks that freed the blocks in the quarantine."""
    allocated, freed = _Stacks(), _Stacks()
    for read in _every(memory, engine, regions, large):
        known, used = read.states.translate(_KNOWN), read.states.translate(_USED)
        allocated.blocks.extend(compress(read.blocks, known))
        allocated.stacks.extend(compress(read.stacks, known))
        allocated.live.extend(compress(read.stacks, used))
        allocated.sizes.extend(compress(read.sizes, used))
        if any(read.frees):
            freed.blocks.extend(compress(read.blocks, read.frees))
            freed.stacks.extend(compress(read.frees, read.frees))
    own = image.name if image.name.startswith(RUNTIME) else ""
    found = [_recording(engine, allocated, depot, "AddressSanitizer", own)]
    if freed.blocks:
        found.append(_recording(engine, freed, depot, "AddressSanitizer's quarantine", own, True))
    return found


def _recording(engine: Engine, stacks: _Stacks, depot: Depot, name: str, own: str, freed: bool = False) -> Recording:
    """Make a recording of blocks and their stacks."""
    numbers, _ = engine.sum_by_value(array("Q", stacks.stacks), array("Q"))
    values, sums = engine.sum_by_value(array("Q", stacks.live), stacks.sizes)
    _, counts = engine.sum_by_value(array("Q", stacks.live), array("Q"))
    live = {value: Totals(count, size) for value, count, size in zip(values, counts, sums)}
    sites: list[Site] = []
    missing = 0
    for number in numbers:
        if len(sites) % POLL == 0 and depot.memory.target.is_interrupted():
            raise Interrupted
        frames = depot.stack(number)
        missing += not frames
        sites.append(Site(frames, live.get(number, Totals(0, 0))))
    places = {number: place for place, number in enumerate(numbers)}
    site_of = array("I", map(places.__getitem__, stacks.stacks))
    what = f"{missing:,} of {len(sites):,} stacks of {name} are not in its stack depot, which is damaged or compressed: they are empty"
    return Recording(name, sites, stacks.blocks, site_of, own=own, warnings=[what] if missing else [], freed=freed)


def _every(memory: Memory, engine: Engine, regions: Sequence[Region], large: Sequence[Large]) -> Iterator[Chunks]:
    """Yield all chunks in ascending order: those in mappings and those of classes."""
    below = [one for one in large if regions and one.start < regions[0].start]
    yield from _large(memory, below)
    for region in regions:
        yield from chunks(memory, engine, region)
    yield from _large(memory, large[len(below) :])


def _large(memory: Memory, large: Sequence[Large]) -> Iterator[Chunks]:
    """Yield the chunks of these mappings."""
    for one in large:
        read = large_chunk(memory, one)
        if read is not None:
            yield read
