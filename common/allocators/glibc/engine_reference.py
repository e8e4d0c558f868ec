"""The Python reference engine's functions for glibc's chunks; see engine.py.

Tests compare them with common/native/glibc_chunks.c."""

from __future__ import annotations

from array import array

from findleaks.allocators.glibc import engine as terms
from findleaks.allocators.glibc.engine import ChunkWalk, SoundChunks
from findleaks.allocators.glibc.layout import FLAG_BITS, IS_MMAPPED, PREV_INUSE
from findleaks.engine.reference.blocks import PureBlocks
from findleaks.engine.reference.engine import PureEngine
from findleaks.engine.reference.words import words_of
from findleaks.engine.shared import MAX_BLOCKS, TooManyBlocks
from findleaks.engine.terms import State
from findleaks.target.base import Piece


def walk_chunks(blocks: PureBlocks, piece: Piece, chunk: int, end: int) -> ChunkWalk:
    blocks.check_open()
    word = blocks.arch.word
    shift = 3 if word == 8 else 2
    least, align = 4 * word, 2 * word - 1
    first, words = words_of(piece, blocks.arch)
    code, size = _start_problem(blocks, chunk, end, first), 0
    if code:
        blocks.pending = False
        return ChunkWalk(chunk, False, terms.describe_problem(code, chunk, size, end))
    base = first - word
    # chunks below this address have their size word in this piece
    limit = base + (len(words) << shift)
    starts: list[int] = []
    sizes: list[int] = []
    states = bytearray()
    pending = blocks.pending
    granule_mask = blocks.granule - 1
    done = chunk == end and not pending
    flags = ~FLAG_BITS
    while chunk < limit and not done:
        head = words[(chunk - base) >> shift]
        if chunk < end:
            size = head & flags
            if size < least or size & align or size > end - chunk or (chunk + 2 * word) & granule_mask:
                code = _size_problem(size, word, end - chunk)
                # An invalid header is not evidence about the block before it, which stays in use.
                pending = False
                break
        if pending and not head & PREV_INUSE:
            index = ((chunk - base) >> shift) - 1
            if index >= 0 and words[index] != (sizes[-1] if sizes else blocks.sizes[-1]) + word:
                # The chunk is in use, or it is free and its end was overwritten. Headers alone
                # cannot decide.
                code, pending = terms.DIFFERS, False
                break
            if states:
                states[-1] = State.FREE
                sizes[-1] -= word
            else:
                blocks.states[-1] = State.FREE
                blocks.sizes[-1] -= word
        if chunk == end:
            done, pending = True, False
            break
        pending = not head & IS_MMAPPED
        starts.append(chunk + 2 * word)
        sizes.append(size - (word if pending else 2 * word))
        states.append(State.IN_USE)
        chunk += size
        done = chunk == end and not pending
    blocks.pending = pending
    blocks.starts.extend(starts)
    blocks.sizes.extend(sizes)
    blocks.states += states
    if len(blocks.starts) > MAX_BLOCKS:
        raise TooManyBlocks("blocks")
    return ChunkWalk(chunk, done, terms.describe_problem(code, chunk, size, end), code == terms.DIFFERS)


def _start_problem(blocks: PureBlocks, chunk: int, end: int, first: int) -> int:
    """Return the code of the reason why no walk can begin at `chunk`, or OK. `first` is the address
    of the piece's first word."""
    word = blocks.arch.word
    if chunk > end or end + 2 * word > blocks.arch.mask or (chunk + 2 * word) % blocks.granule or chunk % word:
        return terms.MISPLACED
    if chunk + word < first:
        return terms.MISSED
    return terms.OVERLAP if chunk < end and chunk + 2 * word < blocks.floor() else terms.OK


def _size_problem(size: int, word: int, space: int) -> int:
    """Return the code of what is wrong with a chunk `space` bytes before the end. Its size or
    address is invalid."""
    if size < 4 * word:
        return terms.SMALL
    if size % (2 * word):
        return terms.UNALIGNED
    return terms.PAST_END if size > space else terms.MISPLACED


def sound_chunks(engine: PureEngine, piece: Piece, chunk: int, stop: int, normal: int, previous: int) -> SoundChunks:
    arch = engine.arch
    word = arch.word
    mask, least = 2 * word - 1, 4 * word
    first, words = words_of(piece, arch)
    count, free = 0, array("Q")
    while chunk < stop and chunk % word == 0 and 0 <= (chunk + word - first) // word < len(words):
        at = (chunk + word - first) // word
        head = words[at]
        size, flags = head & ~mask, head & mask
        behind_free = False
        if size < least or (head & ~FLAG_BITS) > stop - chunk:
            break
        if flags != normal:
            before = (previous + word - first) // word
            near = previous and previous % word == 0 and previous < chunk and before >= 0
            if flags == normal & ~PREV_INUSE and near and at >= 1:
                behind_free = bool(words[before] & PREV_INUSE) and words[at - 1] == words[before] & ~FLAG_BITS
                if not behind_free:
                    break
            elif flags != PREV_INUSE or at + size // word >= len(words) or words[at + size // word] & PREV_INUSE:
                break
        if behind_free:
            free.append(previous)
        count, previous, chunk = count + 1, chunk, chunk + (head & ~FLAG_BITS)
    return SoundChunks(chunk, previous, count, free)
