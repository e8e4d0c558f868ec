"""Pointers to objects in pools, for the search for types. ../../native/type_pools.c is the same in
C."""

from __future__ import annotations

from array import array

from findleaks.engine.type_spread import LEVEL_MASK, LEVEL_SHIFT, ROOT, Level


class Pools:
    """The blocks of pools, by index, and the pointers to them (TypeSpread.take_pool_pointers)."""

    def __init__(self) -> None:
        self.blocks, self._pointers = set[int](), array("Q")

    def note(self, owner: int, place: int, value: int, reference: int) -> None:
        self._pointers.extend((owner, place, value, reference))

    def may_be_stale(self, claim: int, owner: int, index: int) -> bool:
        """Whether a claim is only inferred, and the pointer belongs to an object of a pool, in the
        block with this index. The object may refer to a former pool."""
        return claim >> LEVEL_SHIFT & LEVEL_MASK >= Level.BASE and owner >= ROOT and index in self.blocks

    def take(self) -> array[int]:
        found, self._pointers = self._pointers, array("Q")
        return found
