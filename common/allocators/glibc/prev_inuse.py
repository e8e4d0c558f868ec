"""Find headers that contradict the chunk before them. Their PREV_INUSE bit is clear, which means
that the chunk before is free, but the copy of the size at the end of that chunk is wrong.

A string that ends one byte past its block has this effect, because its final 0 clears the lowest
byte of the next size word, which contains PREV_INUSE. malloc.c clears the bit and writes the copy
(set_foot) only for chunks in bins, which are linked in both directions. So the links show which
word was overwritten.

If a thread is stopped between these two steps, neither word was overwritten. Such a thread is
running in libc, and has the address of one of the two chunks in a register."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from findleaks.allocators.base import Problem
from findleaks.allocators.glibc import lists
from findleaks.allocators.glibc.layout import FLAG_BITS, PREV_INUSE
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.libc.thread_state import threads_running_in
from findleaks.target.base import Range

if TYPE_CHECKING:
    from findleaks.allocators.glibc.arenas import GlibcSpan
    from findleaks.allocators.glibc.heap_view import HeapView

SHOWN = 20  # problems of one span that are reported one by one


def settle_headers(heap: HeapView, span: GlibcSpan, blocks: Blocks) -> Iterator[int]:
    """Yield the doubtful headers that are right: the chunk before such a header is free. Report the
    wrong headers, each only once."""
    if not span.unsure:
        return
    memory, word = heap.memory, heap.memory.size
    # A call for a second index must not report the same headers again.
    known = any(problem.address == span.unsure[0] for problem in heap.problems)
    busy = {value for thread in threads_running_in(heap.target, heap.instance.main.address) for value in thread.registers.values()}
    count, reached = 0, None
    for chunk in span.unsure:
        index = blocks.at_or_after(chunk + 2 * word) - 1
        if index < 0 or blocks.address(index) + blocks.size(index) != chunk + word:
            continue
        before = blocks.address(index) - 2 * word
        free = is_linked(memory, before)
        if not free:
            reached = lists.find_bin_chunks(memory, span.arena, True) if reached is None else reached
            free = before in reached
        count += not known
        if not known and count <= SHOWN:
            wrong = not busy & {before, chunk}
            heap.problems.append(
                make_copy_problem(memory, before, chunk, wrong) if free else make_not_free_problem(memory, before, chunk, wrong)
            )
        if free:
            yield chunk
    if count > SHOWN:
        what = f"and {count - SHOWN:,} more headers in a heap of {span.arena.name} that wrongly mark the block before them free"
        heap.problems.append(Problem(span.unsure[SHOWN], what))


def is_linked(memory: Memory, chunk: int) -> bool:
    """Return whether a neighbour in a bin links to the chunk. One of the two neighbours is enough,
    because a link may be damaged."""
    word = memory.size
    links = memory.words(chunk + 2 * word, 2)
    return links is not None and chunk in (memory.word(links[0] + 3 * word), memory.word(links[1] + 2 * word))


def make_not_free_problem(memory: Memory, before: int, chunk: int, corrupt: bool = True) -> Problem:
    """Make the problem that `chunk` marks the chunk before it free, although that chunk is in
    use."""
    head = memory.word(chunk + memory.size) or 0
    cut = head & 0xFF == 0 and memory.arch.byteorder == "little"
    low = "; its lowest byte is 0, as after a string that was written one byte too far" if cut else ""
    why = f"it marks the block before it, at {before + 2 * memory.size:#x}, as free, but that block is in no free list{low}"
    return make_size_word_problem(memory, chunk, why, head | PREV_INUSE, corrupt)


def make_size_word_problem(memory: Memory, chunk: int, why: str, expected: int, corrupt: bool = True) -> Problem:
    """Make the problem that the size word of `chunk` is wrong. `expected` is the right value."""
    user = chunk + 2 * memory.size
    what = f"the size word of the block at {user:#x} is {memory.word(chunk + memory.size) or 0:#x}: {why}"
    return Problem(chunk, what, corrupt, Range(chunk + memory.size, user), expected)


def make_copy_problem(memory: Memory, before: int, chunk: int, corrupt: bool = True) -> Problem:
    """Make the problem that the chunk before is free, but its last word does not repeat its
    size."""
    size = (memory.word(before + memory.size) or 0) & ~FLAG_BITS
    copy = memory.word(chunk) or 0
    what = f"the free block at {before + 2 * memory.size:#x} has size {size:#x}, but the copy behind it, at {chunk:#x}, is {copy:#x}"
    return Problem(chunk, what, corrupt, Range(chunk, chunk + memory.size), size)
