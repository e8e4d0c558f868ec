"""Walk the chunks of a span, past foreign memory between fenceposts and past corruption."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.glibc.arenas import GlibcSpan
from findleaks.allocators.glibc.blame import Verdict, find_sound, is_sound
from findleaks.allocators.glibc.engine import ChunkWalk, walk_chunks
from findleaks.allocators.glibc.layout import FLAG_BITS, PREV_INUSE, measure_fencepost
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.errors import Interrupted
from findleaks.target.base import Range

if TYPE_CHECKING:
    from findleaks.allocators.glibc.heap_view import HeapView

ABSENT = "its memory is absent from the target"
MAX_PROBLEMS = 20  # problems of one span; if there are more, the whole span is damaged


def walk_pieces(memory: Memory, blocks: Blocks, chunk: int, end: int, unsure: Optional[list[int]] = None) -> ChunkWalk:
    """Walk from `chunk`, piece by piece, to `end` or a problem. The problem is ABSENT if memory is
    missing. Headers that put the chunk before them in doubt are appended to `unsure` (see
    walk_chunks). Raises Interrupted."""
    while True:
        if memory.target.is_interrupted():
            raise Interrupted()
        piece = next(iter(memory.target.pieces(chunk, end + 2 * memory.size)), None)
        if piece is None or piece.address != chunk or len(piece.data) < 2 * memory.size:
            return ChunkWalk(chunk, False, ABSENT)
        walked = walk_chunks(blocks, piece, chunk, end)
        while walked.unsure:
            if unsure is not None:
                unsure.append(walked.chunk)
            walked = walk_chunks(blocks, piece, walked.chunk, end)
        if walked.done or walked.problem:
            return walked
        if walked.chunk <= chunk:
            return ChunkWalk(chunk, False, ABSENT)
        chunk = walked.chunk


def walk_span(glibc: HeapView, blocks: Blocks, span: GlibcSpan) -> None:
    """Append the blocks of `span`, and fill in its `foreign`, `last_free` and `unsure`.

    After a fencepost, the walk resumes where chunks are sound again. After corruption, it resumes
    at the next chunk that is on a free list; if there is none, where chunks are sound again. The
    memory in between is `foreign`."""
    memory = glibc.memory
    chunk, found = span.first, 0
    while chunk < span.stop:
        walked = walk_pieces(memory, blocks, chunk, span.stop, span.unsure)
        at = walked.chunk
        if walked.done or at >= span.stop:
            return
        fence = measure_fencepost(memory, at, span.arena.layout.align)
        if fence:
            resume = find_sound(memory, at + fence, span)
            head = memory.word(at + memory.size)
            if head is not None and not head & PREV_INUSE:
                span.last_free.append(at)
            span.metadata.append(Range(at, at + fence))
            at += fence
            if resume is None:
                what = f"{span.arena.name}: memory of another owner starts at {at:#x}; where malloc's memory continues is unknown"
                glibc.problems.append(Problem(at, what, False))
                found = MAX_PROBLEMS
        else:
            found += 1
            resume = _find_anchor(memory, at, span, glibc.listed_chunks) if found < MAX_PROBLEMS else None
            listed = resume is not None
            if resume is None and found < MAX_PROBLEMS and walked.problem != ABSENT:
                resume = find_sound(memory, at + 2 * memory.size, span)
            there = walked.problem != ABSENT and memory.word(at + memory.size) is not None
            verdict = glibc.judge.judge(span, _find_previous(memory, blocks, at), at, resume or span.end) if there else None
            bad = verdict.chunk if verdict else at
            place = Range(bad + memory.size, bad + 2 * memory.size) if there else None
            what = _describe_corruption(at, span, verdict, resume, listed)
            glibc.problems.append(Problem(bad, what, there, place, verdict.expected if verdict else None))
        span.foreign.append(Range(at, resume or span.end))
        if resume is None:
            return
        chunk = resume


def _find_anchor(memory: Memory, bad: int, span: GlibcSpan, anchors: Sequence[int]) -> Optional[int]:
    """Return the first sound chunk behind `bad` that is on a free list and before span.stop, or
    None."""
    behind = anchors[bisect_right(anchors, bad) : bisect_left(anchors, span.stop)]
    return next((chunk for chunk in behind if is_sound(memory, chunk, span)), None)


def _find_previous(memory: Memory, blocks: Blocks, chunk: int) -> int:
    """Return the chunk that was walked last, if it ends at `chunk`; or 0."""
    last = len(blocks) - 1
    before = blocks.address(last) - 2 * memory.size if last >= 0 else 0
    head = memory.word(before + memory.size) if before else None
    return before if head is not None and before + (head & ~FLAG_BITS) == chunk else 0


def _describe_corruption(chunk: int, span: GlibcSpan, verdict: Optional[Verdict], resume: Optional[int], listed: bool) -> str:
    """Describe for the user why the walk ended at `chunk`. Without a verdict, memory is missing."""
    name = "the main heap" if span.arena.number == 0 else f"a heap of {span.arena.name}"
    if span.arena.held:
        name += " (its lock is held: a thread was changing it)"
    if verdict is None:
        what = f"{name} cannot be read from {chunk:#x}: absent from the target"
    else:
        what = f"{name} is corrupt at {verdict.chunk:#x}: {verdict.what}"
    if resume is None:
        what += f". The {chunk - span.first:,} bytes before it are read"
        return f"{what}; the {span.stop - chunk:,} bytes after it are not, and count as roots"
    where = "a chunk on a free list" if listed else "where chunks are sound again"
    return f"{what}. Reading resumes at {resume:#x}, {where}; the {resume - chunk:,} bytes between are not read, and count as roots"
