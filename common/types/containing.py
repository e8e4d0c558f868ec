"""Select the types that contain a type, by the size of a block. All references to the type share
the selection: thousands of types may contain one, and thousands of members may refer to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from findleaks.types.embedding import Embedding
from findleaks.types.sizes import SizeClasses
from findleaks.value_classes import NamedTuple


class Containing(NamedTuple):
    """The types that contain a type at an offset, for blocks of one size."""

    whole: Sequence[int]
    """The types of all sizes."""
    fitting: Sequence[int]
    """The types whose size results in such a block, without types that only store a value."""
    extending: Sequence[int]
    """Further types that end with an array, with which they may have the size."""
    smaller: Sequence[int]
    """The types of which the block would be larger than its size class."""
    are_members: bool
    """Whether the type is a member of all types that fit, or a member of their members."""


class ContainingTypes:
    """The types that contain each type at each offset."""

    def __init__(self, embedding: Embedding, sizes: SizeClasses, may_extend_to: Callable[[int, int], bool]) -> None:
        self._embedding, self._sizes, self._may_extend_to = embedding, sizes, may_extend_to
        self._known: dict[tuple[int, int, int], Containing] = {}

    def find(self, pointee: int, offset: int, size: int) -> Containing:
        """Return the types that contain `pointee` at an offset, for blocks of `size` bytes."""
        key = pointee, offset, size
        if key not in self._known:
            self._known[key] = self._select(pointee, offset, size)
        return self._known[key]

    def _select(self, pointee: int, offset: int, size: int) -> Containing:
        embedding, sizes = self._embedding, self._embedding.table.sizes
        whole = embedding.places(pointee).get(offset, ()) if offset < size else ()
        least, request = max(self._sizes.least(size), 1), self._sizes.least_request(size)
        fitting = [one for one in whole if least <= sizes[one] <= size and (one == pointee or not embedding.is_storage(one))]
        if offset == 0 and pointee in fitting and not embedding.is_library(pointee):
            fitting = [one for one in fitting if sizes[one] != sizes[pointee] or not embedding.is_library(one)]
        known = set(fitting)
        extending = [one for one in whole if one not in known and self._may_extend_to(one, size)]
        smaller = [one for one in whole if request <= sizes[one] < least and embedding.may_be_alone(one)]
        are_members = all(embedding.has(one, offset, pointee, False) for one in fitting)
        return Containing(whole, fitting, extending, smaller, are_members)
