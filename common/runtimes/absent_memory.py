"""Find objects that have much memory that is not resident, such as a large array that the program
created and never used. The heap itself counts the whole array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Optional

from findleaks.engine.dominators import Dominators
from findleaks.target.base import Range, Target
from findleaks.target.ranges import merge_ranges

LEAST_ABSENT = 256 << 10
"""Bytes of an object that must be neither resident nor in swap for the object to be listed."""

_SLICE = 1 << 20  # objects that are listed at a time


def find_absent_memory(target: Target, objects: Sequence[Range]) -> dict[int, int]:
    """Return how many bytes of objects are neither resident nor in swap, by the address of the
    object. Objects with fewer than LEAST_ABSENT such bytes are left out. The result is {} if it is
    unknown which memory is resident. `objects`: ascending and disjoint."""
    found: dict[int, int] = {}
    waiting = iter([one for one in objects if one.end - one.start >= LEAST_ABSENT])
    one = next(waiting, None)
    for start, end in merge_ranges(objects):
        resident = target.resident(start, end)
        if resident is None:
            return {}
        while one is not None and one.end <= end:
            if end - start - resident >= LEAST_ABSENT:
                absent = one.end - one.start - (target.resident(*one) or 0)
                if absent >= LEAST_ABSENT:
                    found[one.start] = absent
            one = next(waiting, None)
    return found


def find_resident_bytes(tree: Dominators, node: int, retained: int, absent: Mapping[int, int]) -> Optional[int]:
    """Return how many of the `retained` bytes of a node of a tree are resident or in swap. None if
    nearly all are, or if this is unknown. `absent`: the other bytes, by the index of the object."""
    total = 0
    for first in count(0, _SLICE) if absent else ():
        members = tree.members(node, first, _SLICE)
        total += sum(absent[index] for index in absent.keys() & members)
        if len(members) < _SLICE:
            break
    return retained - total if total else None
