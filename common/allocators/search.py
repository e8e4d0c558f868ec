"""Search memory for words by their value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from findleaks.allocators.bulk import find_pointers
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.target.base import Range, Target
from findleaks.target.ranges import nonzero_pieces


def find_words_between(target: Target, engine: Engine, ranges: Iterable[Range], low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield (address, value) of the aligned words with a value in [low, high), ascending.

    `low` must be above 0, since long runs of zeros are skipped. Raises Interrupted."""
    for start, end in ranges:
        for piece in nonzero_pieces(target, start, end):
            if target.is_interrupted():
                raise Interrupted
            yield from zip(*find_pointers(engine, piece, low, high))
