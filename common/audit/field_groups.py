"""Groups of similar fields: for example, 200 pointers to objects of one type, each of which holds
about as much."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from findleaks.audit.fields import Field
from findleaks.engine.terms import Totals

ALIKE = 8
"""Fewest fields that become one row. Of fewer, their names say more."""

RATIO = 2
"""The largest field of a group retains at most this many times as much as the smallest. Others get
rows of their own."""


def group_fields(fields: Sequence[Field], name: Callable[[Field], str]) -> list[list[Field]]:
    """The fields one by one, or in groups of at least ALIKE similar ones; the largest group and the
    largest field of each first. `name`: what a field leads to; it is the same for all of a type or
    size."""
    found = [group for same in _by_target(fields, name) for group in _by_amount(same)]
    return sorted(found, key=lambda group: -retained_by(group).bytes)


def retained_by(fields: Iterable[Field]) -> Totals:
    """What fields of one owner retain together."""
    return Totals.sum_of(one.totals for one in fields)


def _by_target(fields: Sequence[Field], name: Callable[[Field], str]) -> Iterator[list[Field]]:
    """Fields that lead to the same kind of block, in the order given; the others one by one."""
    by_place: dict[tuple[str, int, int], list[Field]] = {}
    for number, one in enumerate(fields):
        place = one.places[0] if one.places else None
        if place is None or one.name or one.values:
            by_place["", -1, number] = [one]
        else:
            by_place.setdefault((one.found.what if one.found else "", place.size, place.offset), []).append(one)
    for same in by_place.values():
        if len(same) < ALIKE:
            yield from ([one] for one in same)
            continue
        by_name: dict[str, list[Field]] = {}
        for one in same:
            by_name.setdefault(name(one), []).append(one)
        yield from by_name.values()


def _by_amount(same: Sequence[Field]) -> Iterator[list[Field]]:
    """Fields of one kind, those that retain about as much together; the others one by one."""
    order = sorted(same, key=lambda one: -one.totals.bytes)
    first = 0
    for at in range(1, len(order) + 1):
        if at < len(order) and order[at].totals.bytes * RATIO >= order[first].totals.bytes:
            continue
        if at - first >= ALIKE:
            yield order[first:at]
        else:
            yield from ([one] for one in order[first:at])
        first = at
