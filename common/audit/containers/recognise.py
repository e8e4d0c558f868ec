"""Recognition of containers: which of an owner's pointers are their heads."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Optional

from findleaks.audit.containers import Container
from findleaks.audit.containers.arrays import deque, pointers, vector
from findleaks.audit.containers.hashes import chained, single, standard
from findleaks.audit.containers.lists import chain, claimed, ring
from findleaks.audit.containers.reader import Place, Reader
from findleaks.audit.containers.trees import gnu_tree, llvm_tree, plain_tree

Test = Callable[[Place], bool]

NEAR = 64  # pointers on either side of a list's head that may be its tail or a cursor

_HEADS = (gnu_tree, standard, single, deque, ring, llvm_tree, vector)
"""Recognisers for heads of several words, the most certain first."""


def found_in(
    reader: Reader, words: Mapping[int, int], wanted: Optional[Test] = None, alone: Optional[Callable[[int], bool]] = None
) -> list[Container]:
    """Return containers with heads among `words` (address -> value, ascending) that point to
    blocks.
    No word belongs to two containers.

    `wanted`: whether to examine a place that a word points to (default: always). `alone`: whether
    to try the word at an address also as a head of one word (default: always), see `headed`. A word
    before a container is always examined: otherwise it might be taken as part of that container's
    head."""
    found: list[Container] = []
    order = list(words)
    reached = 0
    taken: set[int] = set()

    def look(number: int, single: bool) -> Optional[Container]:
        address = order[number]
        place = reader.place(words[address]) if address >= reached and address not in taken else None
        if place is None or (wanted is not None and not wanted(place)):
            return None
        return _in_words(reader, address) or (headed(reader, address, words[address], place) if single else None)

    def add(made: Container, number: int) -> None:
        nonlocal reached
        made.start = max(made.start, reached)
        near = itertools.islice(words.items(), max(number - NEAR, 0), number + NEAR)
        made.words = claimed(reader, made, {a: v for a, v in near if a not in taken}) if len(made.nodes) else []
        taken.update(span.start for span in made.words)
        found.append(made)
        reached = max(reached, made.end)

    for number, address in enumerate(order):
        made = look(number, alone is None or alone(address))
        if made is None:
            continue
        passed = bisect_left(order, max(made.start, reached), 0, number) if alone is not None else number
        for before in range(passed, number):
            single = look(before, True)
            if single is not None:
                add(single, before)
        if address not in taken:
            add(made, number)
    return found


def _once(reader: Reader, what: str, address: int, recognise: Callable[[], Optional[Container]]) -> Optional[Container]:
    """Return the result of `recognise` for this address. It is called once for each `what`."""
    key = what, address
    if key not in reader.recognised:
        reader.recognised[key] = recognise()
    return reader.recognised[key]


def first_recognised(reader: Reader, address: int, heads: Iterable[Callable[[Reader, int], Optional[Container]]]) -> Optional[Container]:
    """Return the container that the first successful recogniser finds at `address`; None if none
    does."""
    return next(filter(None, (head(reader, address) for head in heads)), None)


def _in_words(reader: Reader, address: int) -> Optional[Container]:
    """Return the container whose head of several words is, or begins, at `address`."""
    return _once(reader, "head", address, lambda: first_recognised(reader, address, _HEADS))


def headed(reader: Reader, address: int, value: int, place: Place) -> Optional[Container]:
    """Return the container whose head is the single word `value`, which points to `place`.
    The place is tried as a node of each kind, and walked if it fits."""
    return _once(reader, "word", address, lambda: _from_word(reader, address, value, place))


def _from_word(reader: Reader, address: int, value: int, place: Place) -> Optional[Container]:
    if not reader.points_out(place):
        # Every container with a head of one word has a node or a table with further pointers.
        return None
    table, span = (place.start, place.start + place.size // reader.size * reader.size), (address, address + reader.size)
    array = place.offset == 0 and place.size >= 4 * reader.size
    chains = chained(reader, *table, span) if array else None
    if chains is not None and not chains.problem:
        return chains
    made = plain_tree(reader, address, place, value) or chain(reader, address, place, value) or chains
    return made or (pointers(reader, address, place) if array else None)


def begun_at(reader: Reader, place: Place) -> Optional[Container]:
    """Return the list or tree whose first node is this block, whichever word points to it."""
    start = place.start

    def recognise() -> Optional[Container]:
        return (plain_tree(reader, 0, place, start) or chain(reader, 0, place, start)) if reader.points_out(place) else None

    return _once(reader, "block", start, recognise)
