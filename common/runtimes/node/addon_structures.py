"""The structures that Node-API makes for addons, and that leak if an addon does not delete them."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Optional

from findleaks.allocators.directory import Directory
from findleaks.engine.contract import Engine
from findleaks.engine.terms import Exclusion
from findleaks.runtimes.base import NO_OBJECT, Exclusions, ObjectTypes
from findleaks.runtimes.node.async_structures import AsyncStructures, find_async_structures
from findleaks.runtimes.node.deferreds import Deferreds, find_deferreds
from findleaks.target.base import Target

_AFTER_HANDLE = 0b110  # words of a deferred's block; they have stale contents of an earlier block


class AddonStructures:
    """Structures of addons. `deferreds`: promises that are not settled, None if there are none.
    `count`: the number of blocks of all allocators."""

    def __init__(self, deferreds: Optional[Deferreds], others: Optional[AsyncStructures], count: int) -> None:
        self.deferreds, self._others, self._count = deferreds, others, count

    def object_types(self, runtime: str) -> Optional[ObjectTypes]:
        """Return the types of their blocks. `runtime`: the name of the runtime."""
        named = {**(self._others.types if self._others is not None else {})}
        if self.deferreds is not None:
            named[self.deferreds.name] = list(self.deferreds.blocks.values())
        if not named:
            return None
        types = array("I", [NO_OBJECT]) * self._count
        for number, indices in enumerate(named.values()):
            for index in indices:
                types[index] = number
        return ObjectTypes(types, list(named), array("I", [1]) * len(named), runtime, "structure of Node-API", True)

    def excluded_words(self) -> Optional[Exclusions]:
        """Exclude the words after the handle in each deferred, which are not part of it, and the
        links of asynchronous tasks that libuv has removed from its queues."""
        stale = self._others.stale if self._others is not None else ()
        if self.deferreds is None and not stale:
            return None
        patterns = bytearray(self._count)
        for index in self.deferreds.blocks.values() if self.deferreds is not None else ():
            patterns[index] = 1
        for index in stale:
            patterns[index] = 2
        links = 0b11 << self._others.link if self._others is not None else 0
        return Exclusions(patterns, (Exclusion(0), Exclusion(_AFTER_HANDLE), Exclusion(links)))


def find_structures(target: Target, engine: Engine, directory: Directory, handles: Mapping[int, int]) -> AddonStructures:
    """Return the structures of addons. `handles`: the values of strong global handles, by their
    addresses."""
    deferreds = find_deferreds(target, engine, directory, handles)
    others = find_async_structures(target, engine, directory)
    return AddonStructures(deferreds, others, len(directory.blocks))
