"""Headers of glibc's chunks that agree with each other: the contract, and the pure-Python twin of ../kernel/chunks.c."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from findleaks.engine.python.blocks import words_of
from findleaks.engine.shared import PREV_INUSE
from findleaks.target.arch import Arch
from findleaks.target.base import Piece

_FLAGS = 7


class SoundChunks(NamedTuple):
    """`chunk`: the first header that does not agree, that stands outside the piece, or that is not below the end; `previous`: the one
    before it, 0 where there is none; `headers`: how many agree; `free`: those of them, ascending, that the header behind calls free."""

    chunk: int
    previous: int
    headers: int
    free: array[int]


def sound_chunks(arch: Arch, piece: Piece, chunk: int, stop: int, normal: int, previous: int) -> SoundChunks:
    """See contract.Engine."""
    word = arch.word
    mask, least = 2 * word - 1, 4 * word
    first, words = words_of(piece, arch)
    count, free = 0, array("Q")
    while chunk < stop and chunk % word == 0 and 0 <= (chunk + word - first) // word < len(words):
        at = (chunk + word - first) // word
        head = words[at]
        size, flags = head & ~mask, head & mask
        behind_free = False
        if size < least or (head & ~_FLAGS) > stop - chunk:
            break
        if flags != normal:
            before = (previous + word - first) // word
            near = previous and previous % word == 0 and previous < chunk and before >= 0
            if flags == normal & ~PREV_INUSE and near and at >= 1:
                behind_free = bool(words[before] & PREV_INUSE) and words[at - 1] == words[before] & ~_FLAGS
                if not behind_free:
                    break
            elif flags != PREV_INUSE or at + size // word >= len(words) or words[at + size // word] & PREV_INUSE:
                break
        if behind_free:
            free.append(previous)
        count, previous, chunk = count + 1, chunk, chunk + (head & ~_FLAGS)
    return SoundChunks(chunk, previous, count, free)
