"""Find the words of talloc's chunks that are not references.

- The words behind the requested bytes, up to the end of the block, are stale.
- A chunk that others refer to (talloc_reference) has the list of these references. A reference is a
  chunk itself. Its parent is the context that the program passed. The list is bookkeeping: it does
  not make the context reachable.
- talloc_enable_null_tracking lists all chunks without a parent as children of one chunk, so that
  they can be reported. This list does not make them reachable either.
- If a pool was freed and has chunks in use, its header has stale addresses of other chunks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import EVERY_WORD, LAST_WORD, Exclusion
from findleaks.runtimes.base import Exclusions
from findleaks.runtimes.merged_exclusions import add_masks
from findleaks.runtimes.talloc.layout import (
    CHILD_WORD,
    HANDLE_TO,
    HANDLE_WORDS,
    HEADER,
    NEXT_WORD,
    PARENT_WORD,
    PREVIOUS_WORD,
    REFERENCE_NAME,
    REFERENCES_WORD,
    Chunk,
)

_MOST_HANDLES = 1 << 20


def list_bookkeeping_words(
    memory: Memory, chunks: Mapping[int, Chunk], parents: Mapping[int, int], tracker: int
) -> Iterator[tuple[Chunk, Collection[int]]]:
    """Yield chunks, each with the indices of its words that are bookkeeping, counted from the
    header.

    `chunks`: by the address of the header. `parents`: the address of the parent's header, by the
    address of a chunk's header. `tracker`: the header of the chunk that lists all chunks without a
    parent, or 0."""
    if tracker:
        yield chunks[tracker], (CHILD_WORD,)
        for below, parent in parents.items():
            if parent == tracker and below in chunks:
                yield chunks[below], (NEXT_WORD, PREVIOUS_WORD, PARENT_WORD)
    seen = set[int]()
    for chunk in chunks.values():
        handles = _find_handles(memory, chunk, chunks, parents, seen) if chunk.references else ()
        if handles:
            yield chunk, (REFERENCES_WORD,)
            yield from ((handle, [HEADER // 8 + word for word in HANDLE_WORDS]) for handle in handles)


def _find_handles(memory: Memory, chunk: Chunk, chunks: Mapping[int, Chunk], parents: Mapping[int, int], seen: set[int]) -> Sequence[Chunk]:
    """Return the references to a chunk. Returns () if one of them has no parent, because then only
    the list refers to it."""
    found, at = list[Chunk](), chunk.references
    while at:
        handle, words = chunks.get(at - HEADER), memory.words(at, HANDLE_TO + 1)
        if handle is None or handle.name != REFERENCE_NAME or words is None or words[HANDLE_TO] != chunk.address + HEADER:
            return ()
        if handle.address not in parents or at in seen or len(seen) >= _MOST_HANDLES:
            return ()
        seen.add(at)
        found.append(handle)
        at = words[0]
    return found


def exclude_words(blocks: Blocks, chunks: Sequence[Chunk], others: Iterable[tuple[Chunk, Collection[int]]]) -> Optional[Exclusions]:
    """Return the words of these chunks that are not references; see `add_masks`. `others`: chunks,
    each with the indices of such words before its end, counted from the header."""
    masks = dict[int, int]()
    for chunk in chunks:
        start, size = blocks.address(chunk.block), blocks.size(chunk.block)
        used = -(-(chunk.address + HEADER + chunk.size - start) // 8)
        is_pool = chunk.address != start  # chunks inside it follow its header
        if not is_pool and used < min(size // 8, LAST_WORD):
            masks[chunk.block] = EVERY_WORD << used & EVERY_WORD
    for chunk, words in others:
        first = (chunk.address - blocks.address(chunk.block)) // 8
        mask = sum(1 << first + word for word in words)
        masks[chunk.block] = masks.get(chunk.block, 0) | mask
    return add_masks(bytearray(len(blocks)), (Exclusion(0),), masks.items()) if masks else None
