"""Which of an owner's pointers are the heads of containers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Optional

from findleaks.audit.containers import Container
from findleaks.audit.containers.arrays import deque, pointers, vector
from findleaks.audit.containers.hashes import chained, single, standard
from findleaks.audit.containers.lists import chain, claimed, ring
from findleaks.audit.containers.reader import Place, Reader
from findleaks.audit.containers.trees import gnu_tree, llvm_tree, plain_tree

Test = Callable[[Place], bool]

NEAR = 64
"""Pointers around a list's head that may be its tail or a cursor."""

_HEADS = (gnu_tree, standard, single, deque, ring, llvm_tree, vector)
"""Those told by the words of the head, the surest first."""


def found_in(reader: Reader, words: Mapping[int, int], wanted: Optional[Test] = None) -> list[Container]:
    """The containers whose heads are among the words `words` (address -> value, ascending) that point to blocks. `wanted` says of what
    a head points to whether it is to be looked at at all (default: always). No word belongs to two containers."""
    found: list[Container] = []
    reached = 0
    taken: set[int] = set()
    for number, (address, value) in enumerate(words.items()):
        if address < reached or address in taken:
            continue
        place = reader.place(value)
        if place is None or (wanted is not None and not wanted(place)):
            continue
        made = _at(reader, address, value, place)
        if made is None:
            continue
        made.start = max(made.start, reached)
        near = itertools.islice(words.items(), max(number - NEAR, 0), number + NEAR)
        made.words = claimed(reader, made, {a: v for a, v in near if a not in taken}) if len(made.nodes) else []
        taken.update(span.start for span in made.words)
        found.append(made)
        reached = max(reached, made.end)
    return found


def known(reader: Reader, address: int, made: Container) -> None:
    """This container was found at `address` before."""
    reader.known["", address] = made


def _at(reader: Reader, address: int, value: int, place: Place) -> Optional[Container]:
    """The container whose head is or begins at `address`."""
    key = ("", address)
    if key not in reader.known:
        reader.known[key] = _look(reader, address, value, place)
    made = reader.known[key]
    assert made is None or isinstance(made, Container)
    return made


def _look(reader: Reader, address: int, value: int, place: Place) -> Optional[Container]:
    for head in _HEADS:
        made = head(reader, address)
        if made is not None:
            return made
    table, span = (place.start, place.start + place.size // reader.size * reader.size), (address, address + reader.size)
    array = place.offset == 0 and place.size >= 4 * reader.size
    chains = chained(reader, *table, span) if array else None
    if chains is not None and not chains.problem:
        return chains
    made = plain_tree(reader, address, place, value) or chain(reader, address, place, value) or chains
    return made or (pointers(reader, address, place) if array else None)


def begun_at(reader: Reader, place: Place) -> Optional[Container]:
    """The list or tree whose first node is this block, whatever points to it."""
    key = ("block", place.start)
    if key not in reader.known:
        reader.known[key] = plain_tree(reader, 0, place, place.start) or chain(reader, 0, place, place.start)
    made = reader.known[key]
    assert made is None or isinstance(made, Container)
    return made
