"""Find which of an owner's pointers are heads of containers."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Optional

from findleaks.audit.containers import Container
from findleaks.audit.containers.arrays import recognise_deque, recognise_pointers, recognise_vector
from findleaks.audit.containers.btrees import recognise_btree
from findleaks.audit.containers.glib import recognise_glib_head, recognise_glib_pointer
from findleaks.audit.containers.hashes import recognise_chained_table, recognise_single_bucket_map, recognise_unordered_map
from findleaks.audit.containers.lists import (
    find_other_pointers,
    recognise_counted_list,
    recognise_list,
    recognise_ring,
    recognise_ring_array,
)
from findleaks.audit.containers.reader import BlockPlace, ContainerReader
from findleaks.audit.containers.trees import recognise_gnu_tree, recognise_llvm_tree, recognise_plain_tree

Test = Callable[[BlockPlace], bool]

NEAR = 64  # pointers on either side of a list's head that may be its tail or a cursor

_HEADS = (
    recognise_glib_head,
    recognise_gnu_tree,
    recognise_btree,
    recognise_unordered_map,
    recognise_single_bucket_map,
    recognise_deque,
    recognise_ring,
    recognise_counted_list,
    recognise_llvm_tree,
    recognise_vector,
)
"""Recognisers for heads of several words, the most certain first."""


def find_containers(
    reader: ContainerReader, words: Mapping[int, int], wanted: Optional[Test] = None, alone: Optional[Callable[[int], bool]] = None
) -> list[Container]:
    """Return the containers whose heads are among `words` (address -> value, ascending), which
    point to blocks.
    No word belongs to two containers.

    `wanted`: whether to examine the place that a word points to (default: always). `alone`: whether
    to try the word at an address also as a head of one word (default: always); see
    `recognise_one_word_head`. The words before a container are always tried as such heads:
    otherwise a word might be taken as part of that container's head."""
    found: list[Container] = []
    order = list(words)
    reached = 0
    taken: set[int] = set()

    def look(number: int, single: bool) -> Optional[Container]:
        address = order[number]
        place = reader.place(words[address]) if address >= reached and address not in taken else None
        if place is None or (wanted is not None and not wanted(place)):
            return None
        return _in_words(reader, address) or (recognise_one_word_head(reader, address, words[address], place) if single else None)

    def add(made: Container, number: int) -> None:
        nonlocal reached
        made.start = max(made.start, reached)
        near = itertools.islice(words.items(), max(number - NEAR, 0), number + NEAR)
        made.words = find_other_pointers(reader, made, {a: v for a, v in near if a not in taken}) if len(made.nodes) else []
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


def _once(reader: ContainerReader, what: str, address: int, recognise: Callable[[], Optional[Container]]) -> Optional[Container]:
    """Return the result of `recognise` for this address. The result is cached for each `what` and
    address."""
    key = what, address
    if key not in reader.recognised:
        reader.recognised[key] = recognise()
    return reader.recognised[key]


def first_recognised(
    reader: ContainerReader, address: int, heads: Iterable[Callable[[ContainerReader, int], Optional[Container]]]
) -> Optional[Container]:
    """Return the container that the first successful recogniser finds at `address`; None if all of
    them fail."""
    return next(filter(None, (head(reader, address) for head in heads)), None)


def _in_words(reader: ContainerReader, address: int) -> Optional[Container]:
    """Return the container whose head of several words is at `address` or begins there."""
    return _once(reader, "head", address, lambda: first_recognised(reader, address, _HEADS))


def recognise_one_word_head(reader: ContainerReader, address: int, value: int, place: BlockPlace) -> Optional[Container]:
    """Return the container whose head is the single word `value`, which points to `place`.
    The block at `place` is tried as a node of each kind of container. If it fits, the container is
    walked."""
    return _once(reader, "word", address, lambda: _from_word(reader, address, value, place))


def _from_word(reader: ContainerReader, address: int, value: int, place: BlockPlace) -> Optional[Container]:
    made = recognise_glib_pointer(reader, address, place)
    if made is not None:
        return made
    if not reader.has_pointers(place):
        # Every container with a head of one word has a node or a table with further pointers.
        return None
    table, span = (place.start, place.start + place.size // reader.size * reader.size), (address, address + reader.size)
    array = place.offset == 0 and place.size >= 4 * reader.size
    chains = recognise_chained_table(reader, *table, span) if array else None
    if chains is not None and not chains.problem:
        return chains
    rings = recognise_ring_array(reader, *table, span) if chains is not None else None
    if rings is not None:
        return rings
    made = recognise_plain_tree(reader, address, place, value) or recognise_list(reader, address, place, value) or chains
    return made or (recognise_pointers(reader, address, place) if array else None)


def recognise_first_node(reader: ContainerReader, place: BlockPlace) -> Optional[Container]:
    """Return the list or tree whose first node is this block. It does not matter which word points
    to the block."""
    start = place.start

    def recognise() -> Optional[Container]:
        return (
            (recognise_plain_tree(reader, 0, place, start) or recognise_list(reader, 0, place, start))
            if reader.has_pointers(place)
            else None
        )

    return _once(reader, "block", start, recognise)
