"""Find the words of an owner that point into heaps, and the arrays of pointers among them."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Optional

from findleaks.allocators.bulk import find_pointers
from findleaks.audit.containers.reader import ContainerReader
from findleaks.engine.pointer_runs import Bounds, PointerRun
from findleaks.session import Session
from findleaks.target.base import Range
from findleaks.value_classes import NamedTuple

MANY = 256
"""Fewest pointers, with only zeros between them, that form an array, which is one field."""

GAP = 1 << 16  # maximum number of bytes of zeros between two pointers of one array
# Maximum number of arrays of one owner, the largest first; words of other arrays are handled one by
# one
MAX_ARRAYS = 1024


class OwnerWords(NamedTuple):
    """The words of one owner that point into heaps: those in no array, and the arrays."""

    addresses: array[int]  # addresses of the words that are in no array, ascending
    values: array[int]
    runs: list[tuple[Range, array[int]]]  # range and pointers of each array


class PointerWords(NamedTuple):
    """All words that point into heaps, ascending, and the arrays of pointers among them."""

    addresses: array[int]
    values: array[int]
    runs: list[PointerRun]


def read_memory_words(session: Session, reader: ContainerReader, memory: Sequence[Range], phase: str, gap: int = GAP) -> PointerWords:
    """Return the words in `memory` with values from the lowest to the highest block.
    Takes 16 bytes for each word."""
    found = PointerWords(array("Q"), array("Q"), [])
    if reader.low >= reader.high:
        return found
    search = reader.blocks.pointer_runs(Bounds(reader.low, reader.high, MANY, gap))
    end = 0
    for one in memory:
        # An array may continue from the mapping of a file into the anonymous mapping after it.
        if one.start != end:
            found.runs.extend(search.finish())
        end = one.end
        for piece in session.pieces([one], phase):
            addresses, values = find_pointers(session.engine, piece, reader.low, reader.high)
            found.addresses.extend(addresses)
            found.values.extend(values)
            found.runs.extend(search.read(piece))
    found.runs.extend(search.finish())
    return found


def _few_words(session: Session, reader: ContainerReader, memory: Sequence[Range]) -> Optional[OwnerWords]:
    """Return the words of an owner if there are fewer than MANY, which cannot form an array; else
    None.
    This avoids calls of the engine. For a thousand small owners, these calls would take longer than
    everything else."""
    if len(memory) != 1 or memory[0].end - memory[0].start >= MANY * reader.size:
        return None
    made = OwnerWords(array("Q"), array("Q"), [])
    for piece in session.pieces(memory, "reading fields", whole=True):
        skip = -piece.address % reader.size
        for at, value in enumerate(reader.arch.words(piece.data[skip:])):
            if reader.low <= value < reader.high:
                made.addresses.append(piece.address + skip + at * reader.size)
                made.values.append(value)
    return made


def read_owner_words(session: Session, reader: ContainerReader, memory: Sequence[Range]) -> OwnerWords:
    """Return the words of an owner. Words in arrays of pointers are separate."""
    few = _few_words(session, reader, memory)
    if few is not None:
        return few
    found = read_memory_words(session, reader, memory, "reading fields")
    if not found.runs:
        return OwnerWords(found.addresses, found.values, [])
    made = OwnerWords(array("Q"), array("Q"), [])
    most = sorted(found.runs, key=lambda run: -run.pointers)[:MAX_ARRAYS]
    begin, done = memory[0].start, 0
    for start, end, _ in sorted(most):
        first, last = bisect_left(found.addresses, start), bisect_left(found.addresses, end)
        made.addresses.extend(found.addresses[done:first])
        made.values.extend(found.values[done:first])
        # The array also contains the empty slots before its first pointer.
        whole = not first and start - begin <= GAP and reader.is_zero(begin, start)
        made.runs.append((Range(begin if whole else start, end), found.values[first:last]))
        done = last
    made.addresses.extend(found.addresses[done:])
    made.values.extend(found.values[done:])
    return made
