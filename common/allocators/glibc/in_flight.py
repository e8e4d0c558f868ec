"""The blocks that a thread inside malloc or free refers to, and the structures that it is changing.

malloc.c refers to a chunk by its header (mem2chunk), two words before the block. malloc_consolidate
(2.17 to 2.42) first detaches a whole fastbin. After that, only a local variable points to the first
chunk, and each chunk links to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from findleaks.allocators.base import Problem, any_within, list_ranges_around
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.target.base import Range
from findleaks.target.ranges import subtract

if TYPE_CHECKING:
    from findleaks.allocators.glibc.view import GlibcView

MANGLED_BY = 12  # PROTECT_PTR stores a link XORed with its own address >> 12


def find_blocks_in_flight(heap: GlibcView, words: Sequence[int], blocks: Blocks) -> Iterator[int]:
    """Yield the blocks whose headers these words point to, and the blocks that these blocks link to
    (see Allocator)."""
    header, mask = 2 * heap.memory.size, heap.memory.arch.mask
    yield from ((word + header) & mask for word in words)
    todo = [word for one in words for word in (one, (one + header) & mask) if _starts_block(blocks, word)]
    seen = set(todo)
    while todo:
        block = todo.pop()
        link = heap.memory.word(block)
        if link is None:
            continue
        links = {False: {link}, True: {link ^ block >> MANGLED_BY}, None: {link, link ^ block >> MANGLED_BY}}[heap.mangled]
        for address in {(one + header) & mask for one in links} | links:
            if address not in seen and _starts_block(blocks, address):
                seen.add(address)
                todo.append(address)
                yield address


def _starts_block(blocks: Blocks, address: int) -> bool:
    """Whether a block in use starts at `address`."""
    index = blocks.find(address)
    return index >= 0 and blocks.address(index) == address and blocks.state(index) == State.IN_USE


def is_changing(heap: GlibcView, problem: Problem, words: Sequence[int], blocks: Blocks) -> bool:
    """Whether a word points to the memory that the problem is about (see Allocator).

    A problem of a whole arena is about malloc_state and top, and a problem of a thread cache about
    all of the cache. A problem of the number of mmapped chunks is about all pages where such a
    chunk may begin."""
    if any_within(words, _list_ranges(heap, problem, blocks)):
        return True
    if not heap.instance.par or problem.address != heap.instance.par:
        return False
    page, spans = heap.memory.arch.page, [Range(span.start, span.end) for span in heap.spans]
    anonymous = [Range(r.start, r.end) for r in heap.target.regions() if r.writable and r.private and not r.name]
    return any(any_within([word], subtract(anonymous, spans)) for word in words if word and word % page == 0)


def _list_ranges(heap: GlibcView, problem: Problem, blocks: Blocks) -> Iterator[Range]:
    """Yield the ranges that the problem is about, except for mmapped chunks."""
    header = 2 * heap.memory.size
    yield from list_ranges_around(problem, blocks, header)
    for arena in heap.instance.arenas:
        if arena.address <= problem.address < arena.end or problem.address == arena.top:
            yield Range(arena.address, arena.end)
            yield Range(arena.top, arena.top + header)
    for cache in heap.tcaches.caches:
        if cache.address <= problem.address < cache.address + cache.layout.size:
            yield Range(cache.address, cache.address + cache.layout.size)
