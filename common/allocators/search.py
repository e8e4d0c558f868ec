"""Search memory for words by their value."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from findleaks.allocators.bulk import find_pointers
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.target.base import Range, Target
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import nonzero_pieces


def find_words_between(target: Target, engine: Engine, ranges: Iterable[Range], low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield (address, value) of the aligned words with a value in [low, high), ascending.

    `low` must be above 0, since long runs of zeros are skipped. Raises Interrupted."""
    for start, end in ranges:
        for piece in nonzero_pieces(target, start, end):
            if target.is_interrupted():
                raise Interrupted
            yield from zip(*find_pointers(engine, piece, low, high))


def find_records(target: Target, engine: Engine, values: Sequence[int], at: int, count: int) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield the address and the words of each record whose word number `at` is one of `values`. A
    record has `count` words, and is in memory that the process can write to. Raises Interrupted."""
    word, memory = target.arch.word, Memory(target)
    regions = (region for region in target.regions() if region.readable and region.writable)
    pieces = chain.from_iterable(nonzero_pieces(target, region.start, region.end) for region in regions) if values else ()
    for piece in interruptible(target, pieces):
        places = array("Q", (place - at * word for place in engine.search_any(piece, values) if place >= at * word))
        data, missing = engine.gather((piece,), places, count * word)
        words = target.arch.words(data)
        incomplete = set(missing)  # these records extend beyond the piece
        for number, place in enumerate(places):
            record = words[number * count : (number + 1) * count] if number not in incomplete else memory.words(place, count)
            if record is not None:
                yield place, record
