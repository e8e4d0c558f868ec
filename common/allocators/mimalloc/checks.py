"""The checks of `verify` in mimalloc, and the padding of debug and secure builds (MI_PADDING).

The last 8 bytes of a block (mi_padding_t in mimalloc/types.h) are the padding: a canary and
`delta`, the number of bytes that were not requested. The canary depends on the block's address and
the page's keys; since 2.2 its lowest byte is 0. Up to 16 of the unrequested bytes are 0xde, except
in blocks with a segment of their own (mi_verify_padding in free.c)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Optional, Protocol

from findleaks.allocators.base import Problem
from findleaks.allocators.memory import Memory
from findleaks.allocators.mimalloc.aligned import Live
from findleaks.allocators.mimalloc.layout import MimallocPage
from findleaks.allocators.mimalloc.lists import FreeLists, encode
from findleaks.engine.contract import Blocks
from findleaks.target.base import Range

VOTES, VOTES_A_PAGE = 64, 4  # blocks whose canary is examined, in total and of one page
YIELD_SECONDS = 0.1  # interval at which verify() yields None
FILL = 0xDE
FILLED = 16  # maximum number of bytes after a request that are filled with FILL


class MimallocView(Protocol):
    """See instance.Mimalloc. The checks set `checked`, and change nothing else."""

    memory: Memory
    lists: FreeLists
    pages: list[MimallocPage]
    padding: bool
    checked: dict[str, int]

    @property
    def live(self) -> Live: ...


def _read_padding(memory: Memory, page: MimallocPage, block: int) -> tuple[int, Optional[int]]:
    """Return the block's last word, and the number of bytes requested. The latter is None if the
    canary is wrong."""
    word = memory.word(block + page.size - 8)
    if word is None:
        return 0, None
    canary, delta = word & 0xFFFFFFFF, word >> 32
    expected = encode(block, page.keys, page.meta) & 0xFFFFFFFF
    if canary in (expected, expected & 0xFFFFFF00) and delta <= page.size - 8:
        return word, page.size - 8 - delta
    return word, None


def are_padded(memory: Memory, pages: Sequence[MimallocPage], live: Live) -> bool:
    """Return whether blocks end with a padding: at least a quarter of a sample of blocks must have
    the right canary.

    A quarter is enough, because if a free list is damaged, free blocks look like blocks in use, and
    do not have the canary."""
    votes = count = 0
    for page in pages:
        if not any(page.keys) or not page.used or count >= VOTES:
            continue
        free = live.free(page)
        used = (block for block in range(page.start, page.end, page.size) if block not in free)
        for block in islice(used, VOTES_A_PAGE):
            count += 1
            votes += _read_padding(memory, page, block)[1] is not None
    return votes > 0 and 4 * votes >= count


def read_usable(memory: Memory, page: MimallocPage, block: int) -> int:
    """Return malloc_usable_size of the block's start. If the canary is wrong, return the largest
    possible size."""
    size = _read_padding(memory, page, block)[1]
    return page.size - 8 if size is None else size


def verify(allocator: MimallocView, blocks: Blocks) -> Iterator[Optional[Problem]]:
    """Compare each page's counts with its lists; find blocks on two lists, and damaged canaries."""
    next_yield = time.monotonic() + YIELD_SECONDS
    checked = allocator.checked = {"pages": 0, "free-list links": 0}
    yield from find_double_frees(allocator)
    overruns: list[Problem] = []
    filled = 0
    for page in allocator.pages:
        free, remote = allocator.lists.counts.get(page.meta, (0, 0))
        checked["pages"] += 1
        checked["free-list links"] += free + remote
        if page.meta in allocator.lists.cut:
            pass  # some blocks are unknown, which has been reported
        elif page.used + free != page.capacity:
            what = (
                f"page {page.meta:#x} ({page.size} bytes a block) counts {page.used} blocks in use and has {free} on its free lists, "
                f"but its capacity is {page.capacity}: a list or the count was overwritten, or a block was freed twice"
            )
            yield Problem(page.meta, what, damaged=Range(page.meta, page.meta))
        elif remote > page.used:
            what = f"page {page.meta:#x} counts {page.used} blocks in use, of which other threads freed {remote}"
            yield Problem(page.meta, what, damaged=Range(page.meta, page.meta))
        if allocator.padding and page.meta not in allocator.lists.cut:
            yield from _check_canaries(allocator, page)
            filled += _check_fills(allocator, page, overruns)
        if time.monotonic() > next_yield:
            yield None
            next_yield = time.monotonic() + YIELD_SECONDS
    if filled > len(overruns):  # only some builds fill
        yield from overruns


def find_double_frees(allocator: MimallocView) -> Iterator[Problem]:
    """Yield the blocks that are on two lists, or twice on one: they were freed twice."""
    nodes = sorted([*allocator.lists.free, *allocator.lists.remote])
    for before, node in zip(nodes, nodes[1:]):
        if before == node:
            what = f"block {node:#x} is on its page's free lists twice: it was freed twice"
            yield Problem(node, what, damaged=Range(node, node))


def _check_fills(allocator: MimallocView, page: MimallocPage, overruns: list[Problem]) -> int:
    """Count the blocks of a page whose fill is intact. Add the others to `overruns`."""
    if page.capacity < 2:
        return 0
    free, right = allocator.live.free(page), 0
    for block in range(page.start, page.end, page.size):
        size = None if block in free else _read_padding(allocator.memory, page, block)[1]
        words = None if size is None else allocator.memory.words(block + size & -8, 3)
        if size is None or words is None:
            continue
        end = block + size
        spare = min(page.size - 8 - size, FILLED)
        data = b"".join(word.to_bytes(8, "little") for word in words)[end & 7 :][:spare]
        wrong = [number for number, byte in enumerate(data) if byte != FILL]
        right += bool(spare) and not wrong
        if wrong:
            what = f"block {block:#x} ({size} bytes) was written past its end: it has {data[wrong[0]]:#04x} where mimalloc wrote {FILL:#x}"
            overruns.append(Problem(block, what, damaged=Range(end + wrong[0], end + wrong[-1] + 1)))
    return right


def _check_canaries(allocator: MimallocView, page: MimallocPage) -> Iterator[Problem]:
    """Report the blocks in use of a page whose canary is damaged."""
    free = allocator.live.free(page)
    for block in range(page.start, page.end, page.size):
        if block in free:
            continue
        allocator.checked["canaries"] = allocator.checked.get("canaries", 0) + 1
        word, size = _read_padding(allocator.memory, page, block)
        if size is None:
            at = block + page.size - 8
            what = f"block {block:#x} ({page.size} bytes) has {word:#x} for its canary: it was written past its end"
            yield Problem(block, what, damaged=Range(at, at + 8))
