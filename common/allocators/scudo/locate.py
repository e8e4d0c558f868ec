"""Find scudo's allocator without symbols, by its array of RegionInfo.

Each RegionInfo has the address of its region. Memory of the class is mapped from this address on.
Therefore, the allocator contains a word with the start of such a mapping, and the words at the same
place in the other records are addresses with nearly the same lower 32 bits. layout.py has the
sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.images import Image, find_images
from findleaks.allocators.memory import Memory
from findleaks.allocators.scudo.layout import CLASSES, LAYOUTS, MOST_OFFSET, RECORDS, REGION, STRIDE, RegionInfo, class_size
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target

MOST_STARTS = 3  # mappings of a group that are searched for
# An allocator with an unknown layout has an array of at least LEAST_RECORDS records, each with the
# start of a region. STRIDES: possible sizes of a record in bytes.
LEAST_RECORDS = 16
STRIDES = range(0x40, 0x401, 8)


class SizeClass(NamedTuple):
    """A class: its blocks of `size` bytes extend from `start` to `carved`, and memory is mapped up
    to `mapped`. `popped` and `pushed` count the blocks that thread caches took and returned. Class
    0 has the allocator's own batches."""

    number: int
    size: int
    start: int
    carved: int
    mapped: int
    popped: int
    pushed: int


class Found(NamedTuple):
    """An allocator at `address` in the file `image`, with this layout. `starts` are the addresses
    of the regions of all classes. `classes` are the classes with memory. `records` is the array of
    RegionInfo. `space` are the addresses that are reserved for the classes."""

    image: Image
    address: int
    layout: RegionInfo
    starts: Sequence[int]
    classes: Sequence[SizeClass]
    records: Range
    space: Range
    problems: list[Problem]


class Unknown(NamedTuple):
    """An allocator like scudo at `address` in the file `image`, with a layout that is unknown."""

    image: Image
    address: int


def locate(target: Target, engine: Engine, groups: Sequence[Sequence[int]]) -> Iterator[Found | Unknown]:
    """Yield the allocators in the process. `groups` has the starts of mappings that may be regions
    of classes, for each possible allocator."""
    memory = Memory(target)
    for image in find_images(target):
        for group in groups:
            found = _search_image(memory, engine, image, group)
            if found is not None:
                yield found


def _search_image(memory: Memory, engine: Engine, image: Image, group: Sequence[int]) -> Optional[Found | Unknown]:
    """Search the data of a file for the records of classes that these mappings belong to."""
    hits: list[int] = []
    for start in group[:MOST_STARTS]:
        there = [hit for piece in image.pieces(memory.target) for hit in engine.search(piece, start, start + 1)]
        for hit in there:
            found = _at(memory, image, hit, start)
            if found is not None:
                return found
        if not there:
            return None  # the allocator has the addresses of all regions
        hits += there[:16]
    if len(group) < MOST_STARTS:
        return None
    array = next((hit for hit in hits if has_records(memory, hit)), None)
    return Unknown(image, array) if array is not None else None


def has_records(memory: Memory, hit: int) -> bool:
    """Whether the word at `hit` may belong to an array of RegionInfo with an unknown layout.

    In such an array, each record has the start of another region of 4 GiB, and together these
    regions have no gaps. Each region begins at a random page of its first MOST_OFFSET pages. In a
    program's own table of reserved addresses, either all distances are multiples of 4 GiB, or there
    are few addresses."""
    low = memory.word(hit) or 0
    slack = MOST_OFFSET * memory.target.arch.page
    for stride in STRIDES:
        starts: list[int] = []
        for way, at in ((-stride, hit), (stride, hit + stride)):
            word = memory.word(at)
            while word and word % memory.target.arch.page == 0 and (word - low + slack) % REGION <= 2 * slack and len(starts) < 2 * CLASSES:
                starts.append(word)
                at += way
                word = memory.word(at)
        regions = {(one - low + slack) // REGION for one in starts}
        # Each record refers to another region, and at most two regions between the lowest and the
        # highest have no record.
        if len(starts) >= LEAST_RECORDS and len(regions) == len(starts) and max(regions) - min(regions) < len(starts) + 2:
            return len({(one - low) % REGION for one in starts}) > 1
    return False


def _at(memory: Memory, image: Image, hit: int, start: int) -> Optional[Found]:
    """Read the allocator that has the start of a region at `hit`, or return None."""
    page = memory.target.arch.page

    def is_start(word: Optional[int]) -> bool:
        if word is None or word % page or word >> 32 == 0 or abs(word - start) >= (CLASSES + 1) * REGION:
            return False
        return (word - start + MOST_OFFSET * page) % REGION <= 2 * MOST_OFFSET * page

    first = last = hit
    while is_start(memory.word(first - STRIDE)) and hit - first < CLASSES * STRIDE:
        first -= STRIDE
    while is_start(memory.word(last + STRIDE)) and last - hit < CLASSES * STRIDE:
        last += STRIDE
    if last - first != (CLASSES - 1) * STRIDE:
        return None
    starts = [memory.word(first + number * STRIDE) or 0 for number in range(CLASSES)]
    fits = [fit for layout in LAYOUTS for fit in (_fit(memory, image, first, starts, layout),) if fit is not None]
    return max(fits, key=lambda fit: (-len(fit.problems), sum(one.carved > one.start for one in fit.classes)), default=None)


def _fit(memory: Memory, image: Image, first: int, starts: Sequence[int], layout: RegionInfo) -> Optional[Found]:
    """Read the allocator, if its records may have this layout. In a wrong layout, records are
    damaged, or classes have no blocks."""
    space = _find_space(memory, first, starts, layout)
    if space is None:
        return None
    problems: list[Problem] = []
    classes = list(_read_classes(memory, first, starts, layout, problems))
    address = first - layout.allocator
    records = Range(address + RECORDS, address + RECORDS + CLASSES * STRIDE)
    return Found(image, address, layout, starts, classes, records, space, problems)


def _find_space(memory: Memory, first: int, starts: Sequence[int], layout: RegionInfo) -> Optional[Range]:
    """Return the addresses reserved for the classes, if the records have this layout."""
    slack = range(memory.target.arch.page, MOST_OFFSET * memory.target.arch.page + 1)
    if layout.reserved is None:
        base = memory.word(first + layout.primary) or 0
        good = all(start - base - number * REGION in slack for number, start in enumerate(starts))
        return Range(base, base + CLASSES * REGION) if good else None
    bases = [memory.word(first + number * STRIDE + layout.reserved) or 0 for number in range(CLASSES)]
    good = all(start - base in slack for base, start in zip(bases, starts))
    good = good and sorted(bases) == list(range(min(bases), min(bases) + CLASSES * REGION, REGION))
    return Range(min(bases), min(bases) + CLASSES * REGION) if good else None


def _read_classes(memory: Memory, first: int, starts: Sequence[int], layout: RegionInfo, problems: list[Problem]) -> Iterator[SizeClass]:
    """Yield the classes that have memory. Report damaged records."""
    page = memory.target.arch.page
    for number, start in enumerate(starts):
        at = first + number * STRIDE
        words = [memory.word(at + place) for place in (layout.allocated, layout.mapped, layout.popped, layout.pushed)]
        allocated, mapped, popped, pushed = (word or 0 for word in words)
        size = class_size(number) if number else page
        if not mapped and not allocated and None not in words:
            continue
        if None in words or mapped % page or not allocated <= mapped <= REGION or (number and allocated % size):
            what = f"scudo's record of its {size}-byte blocks at {at:#x} is damaged: they are not read"
            problems.append(Problem(at, what, damaged=Range(at, at + max(layout.allocated, layout.mapped) + 8)))
            continue
        yield SizeClass(number, size, start, start + allocated, start + mapped, popped, pushed)
