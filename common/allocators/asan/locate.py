"""Find AddressSanitizer's allocator without symbols, by the variables of its parts.

layout.py has the sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.asan.chunks import Region
from findleaks.allocators.asan.layout import (
    ALLOCATED,
    CHUNK_CLASSES,
    CLASSES,
    FREE_ARRAY,
    HEADER,
    LARGE_BASE,
    LARGE_CHUNKS,
    LARGE_COUNT,
    LARGE_WORDS,
    MAGIC,
    MOST_LARGE,
    PAGE,
    PRIMARY_WORDS,
    QUARANTINED,
    REGION,
    REGION_INFOS,
    SLACK,
    SPACE,
    SPACE_BEGIN,
    UNIT,
    RegionInfo,
    class_size,
    state_of,
    used_size,
)
from findleaks.allocators.base import Problem
from findleaks.allocators.images import Image, find_images
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target

SAMPLE = 64  # chunks of a class that are examined to identify the layout of headers


class Found(NamedTuple):
    """An allocator: its file, the address of its variables there, and its address range.

    `infos` are the records of the classes, `regions` the classes with chunks. `headers` is the
    array of the large chunks' headers. `beside` is true if the data about chunks is elsewhere, not
    in the chunks, as in other sanitizers."""

    image: Image
    address: int
    space: int
    infos: Range
    regions: Sequence[Region]
    headers: Range
    beside: bool
    problems: list[Problem]


def locate(target: Target, engine: Engine) -> Iterator[Found]:
    """Yield the allocators in the process. SizeClassAllocator64 begins with the address and the
    size of its range. The range contains the space and then the records."""
    memory = Memory(target)
    for image in find_images(target):
        for piece in image.pieces(target):
            for address in engine.search(piece, SPACE + CLASSES * 64, SPACE + SLACK):
                found = _at(memory, image, address - 8)
                if found is not None:
                    yield found


def _at(memory: Memory, image: Image, address: int) -> Optional[Found]:
    """Read the allocator whose variables are at `address`, or return None."""
    words = memory.words(address, SPACE_BEGIN + 1) or ()
    space = words and (words[SPACE_BEGIN] or words[0])
    if not space or space % PAGE or not words[0] <= space <= words[0] + words[1] - SPACE:
        return None
    best = max((_fit(memory, space, layout) for layout in REGION_INFOS), key=lambda fit: fit.score)
    if not best.score:
        return None
    problems: list[Problem] = []
    regions = list(_regions(best, space, problems))
    infos = Range(space + SPACE, space + SPACE + 8 * len(best.words))
    return Found(image, address, space, infos, regions, _large_headers(memory, address, problems), _beside(best, regions), problems)


class _Fit(NamedTuple):
    """The records of the classes in one layout, and the number of classes with chunks whose record
    fits the layout."""

    layout: RegionInfo
    words: Sequence[int]
    score: int


def _fit(memory: Memory, space: int, layout: RegionInfo) -> _Fit:
    """Count how many records of classes fit a layout."""
    words = memory.words(space + SPACE, CLASSES * layout.size // 8)
    if words is None:
        return _Fit(layout, (), 0)
    records = [(number, _record(words, layout, number)) for number in CHUNK_CLASSES]
    return _Fit(layout, words, sum(bool(record[1]) and _good(number, *record) for number, record in records))


def _word(layout: RegionInfo, number: int) -> int:
    """Return the index of the first word of a class's record."""
    return number * layout.size // 8


def _record(words: Sequence[int], layout: RegionInfo, number: int) -> tuple[int, int, int]:
    """Return mapped_free_array, allocated_user and mapped_user of a class."""
    at = _word(layout, number)
    return words[at + layout.free_array], words[at + layout.allocated], words[at + layout.mapped]


def _good(number: int, free_array: int, carved: int, mapped: int) -> bool:
    """Whether the record of a class is plausible."""
    if carved % class_size(number) or free_array % UNIT or mapped % UNIT:
        return False
    return carved <= mapped <= FREE_ARRAY and free_array <= REGION - FREE_ARRAY


def _regions(fit: _Fit, space: int, problems: list[Problem]) -> Iterator[Region]:
    """Yield the region of each size class that has chunks. Report damaged records."""
    for number in CHUNK_CLASSES:
        free_array, carved, mapped = _record(fit.words, fit.layout, number)
        if not (free_array or carved or mapped):
            continue
        start = space + number * REGION
        if not _good(number, free_array, carved, mapped):
            at = space + SPACE + number * fit.layout.size
            what = f"AddressSanitizer's record of its {class_size(number)}-byte chunks at {at:#x} is damaged: they are not read"
            problems.append(Problem(at, what, damaged=Range(at, at + fit.layout.size)))
            continue
        array = Range(start + FREE_ARRAY, start + FREE_ARRAY + free_array)
        yield Region(number, start, class_size(number), start + carved, start + mapped, array)


def _beside(fit: _Fit, regions: Sequence[Region]) -> bool:
    """Return whether most size classes store 16 bytes of metadata for each chunk outside of the
    chunk (allocated_meta)."""
    used = [one for one in regions if one.carved > one.start]
    words = [fit.words[_word(fit.layout, one.number) + fit.layout.allocated + 1] for one in used]
    return 2 * sum(word == (one.carved - one.start) // one.chunk * 16 for one, word in zip(used, words)) > len(used)


def _large_headers(memory: Memory, address: int, problems: list[Problem]) -> Range:
    """Return the part in use of the array of the large chunks' headers."""
    words = memory.words(address, PRIMARY_WORDS + LARGE_WORDS) or ()
    for at in range(4, len(words) - LARGE_WORDS):
        chunks, base, count = (words[at + word] for word in (LARGE_CHUNKS, LARGE_BASE, LARGE_COUNT))
        if words[at] == memory.target.arch.page and chunks == base and chunks and chunks % PAGE == 0:
            if count < MOST_LARGE:
                return Range(chunks, chunks + 8 * count)
            break
    problems.append(
        Problem(address, f"AddressSanitizer's table of large chunks is not found behind {address:#x}: they are not read", False)
    )
    return Range(0, 0)


def older(memory: Memory, regions: Sequence[Region]) -> bool:
    """Return whether the chunk headers have the layout of LLVM 11 and before. In this layout, the
    requested size is in the second word, and most bits of the first word's upper half are set."""
    fit = misfit = 0
    for region in regions:
        for at in range(region.start, min(region.carved, region.start + SAMPLE * region.chunk), region.chunk):
            words = memory.words(at, 2)
            if words is None:
                break
            first = words[0] if words[0] != MAGIC else memory.word(words[1]) or 0
            if state_of(first) in (ALLOCATED, QUARANTINED):
                good = 0 < used_size(first) <= region.chunk - HEADER
                fit += good
                misfit += not good
    return misfit > fit
