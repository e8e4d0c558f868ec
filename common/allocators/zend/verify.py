"""Check a heap of Zend's memory manager, in addition to the checks of layout.py and instance.py.

Source: Zend/zend_alloc.c of PHP 8.1 to 8.4 (zend_mm_alloc_pages, zend_mm_free_pages_ex,
zend_mm_get_next_free_slot)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.zend.layout import CHUNK, FREE_SLOTS, SIZES, Chunks, Place
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.target.base import Range

_LOOK = 20_000  # number of blocks after which None is yielded


def verify(
    memory: Memory, place: Place, chunks: Chunks, counters: Mapping[str, int], blocks: Blocks, checked: dict[str, int]
) -> Iterator[Optional[Problem]]:
    """Yield the problems, and count the free blocks in `checked`; see Allocator.verify."""
    yield from _check_ring(memory, chunks)
    yield from _check_counts(place, chunks, counters)
    if place.free_slot != FREE_SLOTS[0]:
        yield from _check_shadows(memory, place, chunks, blocks, checked)


def _check_ring(memory: Memory, chunks: Chunks) -> Iterator[Optional[Problem]]:
    """Check the link to the previous chunk, and the number of free pages, of each chunk."""
    size = memory.size
    before = chunks.in_use[-1].start if chunks.in_use else 0
    for chunk in chunks.in_use:
        back = memory.word(chunk.start + 2 * size)
        if back != before:
            place = Range(chunk.start + 2 * size, chunk.start + 3 * size)
            yield Problem(
                place.start, f"PHP's chunk {chunk.start:#x} is linked back to {back or 0:#x}, not to {before:#x}", True, place, before
            )
        if chunk.free != chunk.counted:
            place = Range(chunk.start + 3 * size, chunk.start + 3 * size + 4)
            what = f"PHP's chunk {chunk.start:#x} counts {chunk.counted} free pages; its map has {chunk.free}"
            yield Problem(place.start, what, True, place)
        before = chunk.start
    yield None


def _check_counts(place: Place, chunks: Chunks, counters: Mapping[str, int]) -> Iterator[Optional[Problem]]:
    """Compare the heap's counters with the chunks and huge blocks that were found."""
    used, cached = len(chunks.in_use), len(chunks.cached)
    real = (used + cached) * CHUNK + sum(huge.size for huge in chunks.huge)
    wanted = {"chunks_count": used, "cached_chunks_count": cached, "memory_get_usage(true)": real}
    for name, found in wanted.items():
        if counters[name] != found:
            yield Problem(place.address, f"PHP's {name} is {counters[name]:,}; {found:,} were found")


def _check_shadows(memory: Memory, place: Place, chunks: Chunks, blocks: Blocks, checked: dict[str, int]) -> Iterator[Optional[Problem]]:
    """Compare the link of each free block with its copy at the end of the block (8.4). The copy has
    the bytes of the link in reverse order, XORed with `shadow_key`. The last block of a list has no
    copy."""
    checked["free blocks"] = 0
    mask, key, word = memory.arch.mask, chunks.words[place.free_slot - 1], memory.size
    for chunk in chunks.in_use:
        for index in range(blocks.at_or_after(chunk.start), blocks.at_or_after(chunk.start + CHUNK)):
            if index % _LOOK == 0:
                yield None
            size = blocks.size(index)
            if blocks.state(index) != State.FREE or size < 2 * word or size > SIZES[-1]:
                continue
            checked["free blocks"] += 1
            start = blocks.address(index)
            link, shadow = memory.word(start) or 0, (memory.word(start + size - word) or 0) ^ key
            if link and int.from_bytes((shadow & mask).to_bytes(word, "little"), "big") != link:
                damaged = Range(start, start + size)
                yield Problem(start, f"free block {start:#x} of {size} bytes: its link to the next was overwritten", True, damaged)
