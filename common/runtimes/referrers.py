"""Find what refers to a managed object, or to memory outside the heap such as a mapped file."""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.target.base import Range
from findleaks.value_classes import NamedTuple


class Referrers(NamedTuple):
    """The objects of one type that refer to some memory. `objects`: the number of live objects.
    `garbage`: the number of objects that are garbage. `example`: the address of a live object; 0 if
    there is none. `bytes`: the size of the ranges of memory to which the objects refer."""

    type: str
    objects: int
    garbage: int
    example: int
    bytes: int


class ReferrerSearch:
    """The part of an ObjectGraph that finds referrers. Runtimes that cannot find them inherit these
    methods."""

    def name_variable(self, index: int) -> str:
        """Return the variable or field that refers to an object ("App.LOCK"), or ""."""
        return ""

    def list_referrers(self, memory: Sequence[Range]) -> Sequence[Referrers]:
        """Return the objects that refer to `memory`, by type. The most frequent type comes first.
        The ranges of `memory` are sorted and outside the heap."""
        return ()

    def mapping_remedies(self, type_name: str, path: Sequence[int], objects: int) -> Sequence[str]:
        """Return what unmaps files to which `objects` live objects of a type refer; () if unknown.
        `path`: the objects on a path from a root to one of them; () if all are garbage."""
        return ()

    def is_internal(self, index: int, offset: int) -> bool:
        """Return whether a word of an object is the runtime's own, and not in a field."""
        return False
