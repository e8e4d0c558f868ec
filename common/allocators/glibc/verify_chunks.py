"""Check every chunk header of a span: its flags, and whether the chunk before it is free.

malloc.c, do_check_inuse_chunk and do_check_free_chunk:

- PREV_INUSE is clear if and only if the chunk before is in a bin. Then the word before the header
  repeats the size of that chunk.
- Free chunks are never adjacent.
- NON_MAIN_ARENA is set in chunks in use of thread arenas, and in no free chunk.
- Chunks in thread caches and fastbins look like chunks in use."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.glibc.engine import sound_chunks
from findleaks.allocators.glibc.layout import FLAG_BITS, IS_MMAPPED, NON_MAIN_ARENA, PREV_INUSE
from findleaks.allocators.glibc.prev_inuse import make_copy_problem, make_not_free_problem, make_size_word_problem
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.target.base import Range

if TYPE_CHECKING:
    from findleaks.allocators.glibc.arenas import GlibcSpan

MAX_PROBLEMS = 200  # reported problems of one span; with more, the whole span is damaged


class Headers:
    """Checks the headers of one span, in all parts that the reader walked."""

    def __init__(self, memory: Memory, engine: Engine, span: GlibcSpan, listed: Callable[[int], bool]) -> None:
        self.memory = memory
        self.engine = engine
        self.span = span
        self.listed = listed  # whether a chunk is in a bin; called only for suspicious chunks
        self.count = 0  # headers checked
        self.free: array[int] = array("Q")  # chunks that their next header marks free, ascending
        self.problems = 0

    def check(self) -> Iterator[Optional[Problem]]:
        """Yield problems, and None after each piece of memory."""
        for start, stop, closed in list_runs(self.span):
            for problem in self._stretch(start, stop, closed):
                self.problems += problem is not None
                yield problem
                if self.problems >= MAX_PROBLEMS:
                    return

    def _stretch(self, chunk: int, stop: int, closed: bool) -> Iterator[Optional[Problem]]:
        """Check the chunks from `chunk` to the header at `stop`. `closed` means that the header at
        `stop` is valid and shows whether the last chunk is free."""
        memory, word = self.memory, self.memory.size
        arena_flag = NON_MAIN_ARENA if self.span.arena.number else 0
        normal, mask, least = PREV_INUSE | arena_flag, 2 * word - 1, 4 * word
        before = 0  # the chunk before this one, or 0
        for piece in memory.target.pieces(chunk, stop + 2 * word if closed else stop):
            if memory.target.is_interrupted():
                raise Interrupted
            if piece.address > chunk + word:
                return
            # The headers of chunks below this address are in this piece.
            end = min(stop, piece.address + len(piece.data) - 2 * word + 1)
            while chunk < end:
                chunk, before, count, free = sound_chunks(self.engine, piece, chunk, stop, normal, before)
                self.count += count
                self.free += free
                if chunk < end:
                    head = memory.word(chunk + word)
                    if head is None or head & mask & ~FLAG_BITS or head < least:
                        return  # the reader's walk also ended here, and reported the reason
                    yield from self._odd(chunk, head, before, normal)
                    self.count += 1
                    before = chunk
                    chunk += head & ~FLAG_BITS
            yield None
            if chunk >= stop:
                break
        if closed and chunk == stop and before:
            closing = memory.word(stop + word)
            if closing is not None and not closing & PREV_INUSE:
                yield from self._behind_free(stop, closing, before)

    def _odd(self, chunk: int, head: int, before: int, normal: int) -> Iterator[Problem]:
        """Check a header that differs from those of chunks in use that follow chunks in use."""
        memory, word = self.memory, self.memory.size
        if head & IS_MMAPPED:
            why = f"IS_MMAPPED is set, but it is in a heap of {self._name()}; free() of this block would unmap memory"
            yield make_size_word_problem(memory, chunk, why, head & ~IS_MMAPPED)
        if not head & PREV_INUSE:
            yield from self._behind_free(chunk, head, before)
        if (head ^ normal) & NON_MAIN_ARENA:
            after = memory.word(chunk + (head & ~FLAG_BITS) + word)
            if head & NON_MAIN_ARENA or (after is not None and after & PREV_INUSE):
                should = "is set in the main arena" if head & NON_MAIN_ARENA else f"is missing in {self._name()}"
                why = f"NON_MAIN_ARENA {should}; free() of this block would go to the wrong arena"
                yield make_size_word_problem(memory, chunk, why, head ^ NON_MAIN_ARENA)

    def _behind_free(self, chunk: int, head: int, before: int) -> Iterator[Problem]:
        """Check a header that marks the chunk before it as free."""
        memory, word = self.memory, self.memory.size
        if not before:
            why = "it marks the block before it as free, but this is the first block of its heap"
            yield make_size_word_problem(memory, chunk, why, head | PREV_INUSE)
            return
        copy, own = memory.word(chunk), memory.word(before + word)
        size = (own or 0) & ~FLAG_BITS
        if copy is not None and own is not None and copy != size:
            if self.listed(before):
                self.free.append(before)
                yield make_copy_problem(memory, before, chunk)
            else:
                yield make_not_free_problem(memory, before, chunk)
            return
        if self.free and own is not None and not own & PREV_INUSE:
            prior = memory.word(before)
            if prior is not None and self.free[-1] + prior == before:
                first, second = self.free[-1] + 2 * word, before + 2 * word
                what = f"the free blocks at {first:#x} and {second:#x} are adjacent: malloc merges such blocks"
                yield Problem(before + word, what, damaged=Range(before + word, before + 2 * word))
        self.free.append(before)

    def _name(self) -> str:
        return "the main arena" if self.span.arena.number == 0 else self.span.arena.name


def list_runs(span: GlibcSpan) -> Iterator[tuple[int, int, bool]]:
    """Yield (first chunk, final header, whether that header is sound) of each run that the reader
    walked."""
    fences = sorted(part.start for part in span.metadata if part.start > span.first)
    chunk = span.first
    for foreign in sorted(span.foreign):
        fence = fences[bisect_left(fences, chunk)] if bisect_left(fences, chunk) < len(fences) else span.end
        if fence < foreign.start:
            yield chunk, fence, True
        elif foreign.start > chunk:
            yield chunk, foreign.start, False
        chunk = foreign.end
    if chunk < span.stop:
        yield chunk, span.stop, not span.top_unknown
