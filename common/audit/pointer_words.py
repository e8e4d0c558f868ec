"""The words of an owner that point into heaps, and the arrays of pointers among them."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.bulk import find_pointers
from findleaks.audit.containers.reader import Reader
from findleaks.engine.pointer_runs import Bounds, PointerRun
from findleaks.session import Session
from findleaks.target.base import Range

MANY = 256
"""Fewest pointers, only zeros between, that are an array and one field, whatever they lead to."""

GAP = 1 << 16  # most bytes of zeros between two pointers of one array
MAX_ARRAYS = 1024  # most arrays of one owner, the largest; words of others are handled one by one


class Words(NamedTuple):
    """An owner's words that point into heaps."""

    addresses: array[int]  # of the words that are in no array, ascending
    values: array[int]
    runs: list[tuple[Range, array[int]]]  # arrays, each with its pointers


class Found(NamedTuple):
    """All words that point into heaps, ascending, and the arrays of pointers among them."""

    addresses: array[int]
    values: array[int]
    runs: list[PointerRun]


def memory_words(session: Session, reader: Reader, memory: Sequence[Range], phase: str, gap: int = GAP) -> Found:
    """The words in `memory` with values from the lowest to the highest block; 16 bytes a word."""
    found = Found(array("Q"), array("Q"), [])
    if reader.low >= reader.high:
        return found
    search = reader.blocks.pointer_runs(Bounds(reader.low, reader.high, MANY, gap))
    end = 0
    for one in memory:
        # An array may continue from a file's mapping into the anonymous one after it.
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


def _few_words(session: Session, reader: Reader, memory: Sequence[Range]) -> Optional[Words]:
    """The words of an owner that has fewer than MANY, so that they are no array; None for others.
    Of a thousand small owners, the calls of the engine would take longer than all the rest."""
    if len(memory) != 1 or memory[0].end - memory[0].start >= MANY * reader.size:
        return None
    made = Words(array("Q"), array("Q"), [])
    for piece in session.pieces(memory, "reading fields", whole=True):
        skip = -piece.address % reader.size
        for at, value in enumerate(reader.arch.words(piece.data[skip:])):
            if reader.low <= value < reader.high:
                made.addresses.append(piece.address + skip + at * reader.size)
                made.values.append(value)
    return made


def read_words(session: Session, reader: Reader, memory: Sequence[Range]) -> Words:
    """The words of an owner, with arrays of pointers apart."""
    few = _few_words(session, reader, memory)
    if few is not None:
        return few
    found = memory_words(session, reader, memory, "reading fields")
    if not found.runs:
        return Words(found.addresses, found.values, [])
    made = Words(array("Q"), array("Q"), [])
    most = sorted(found.runs, key=lambda run: -run.pointers)[:MAX_ARRAYS]
    begin, done = memory[0].start, 0
    for start, end, _ in sorted(most):
        first, last = bisect_left(found.addresses, start), bisect_left(found.addresses, end)
        made.addresses.extend(found.addresses[done:first])
        made.values.extend(found.values[done:first])
        # Empty slots before the first pointer belong to the array, too.
        whole = not first and start - begin <= GAP and reader.zeros(begin, start)
        made.runs.append((Range(begin if whole else start, end), found.values[first:last]))
        done = last
    made.addresses.extend(found.addresses[done:])
    made.values.extend(found.values[done:])
    return made
