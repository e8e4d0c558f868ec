"""The memory contexts of a PostgreSQL process, as a runtime whose types are the names of the
contexts."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.directory import Directory
from findleaks.allocators.images import find_version
from findleaks.allocators.memory import Memory
from findleaks.runtimes.base import NO_OBJECT, Count, ObjectTypes, Part, Runtime, Type
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.pool_tree import Words, find_large_pool
from findleaks.runtimes.postgresql.contexts import Context, ContextReader
from findleaks.target.base import Module, Range, Target
from findleaks.target.ranges import merge_ranges

_VERSION = re.compile(rb"PostgreSQL (\d+(?:\.\d+|beta\d+|rc\d+)) ")  # PG_VERSION_STR
WORDS = Words("memory-context", "memory context", "contexts", "PostgreSQL's memory contexts")


class PostgreSQL(Runtime):
    """PostgreSQL in a process. See base.Runtime. `root` is the address of the variable
    TopMemoryContext."""

    name = "PostgreSQL"

    def __init__(self, target: Target, directory: Directory, module: Module, root: int) -> None:
        self.problems: list[Problem] = []
        self.where = module.path.rsplit("/", 1)[-1]
        self._target, self._directory, self._module = target, directory, module
        self._memory, self._root = Memory(target), root

    @cached_property
    def version(self) -> str:  # type: ignore[override]
        """PostgreSQL's version, or ""."""
        return find_version(self._target, self._module, _VERSION)

    @cached_property
    def contexts(self) -> Sequence[Context]:
        """All contexts, each before its children."""
        top = self._memory.word(self._root)
        if not top:  # The process has not created it yet.
            return []
        reader = ContextReader(self._memory)
        found = reader.read(top)
        self.problems += [Problem(address, what, False) for address, what in reader.problems]
        return found

    def counters(self) -> Mapping[str, Count]:
        """Return the sums in the last line that pg_log_backend_memory_contexts prints."""
        usages = [one.usage for one in self.contexts]
        free = sum(usage.free or 0 for usage in usages)
        total = sum(usage.total for usage in usages)
        counts = {"Grand total": total, "free": free, "used": total - free}
        blocks = sum(len(usage.blocks) - usage.empty for usage in usages)
        chunks = sum(usage.chunks or 0 for usage in usages)
        return {**{name: Count(value, "bytes") for name, value in counts.items()}, "blocks": Count(blocks), "free chunks": Count(chunks)}

    def parts(self) -> Sequence[Part]:
        """Return the blocks of malloc that belong to contexts."""
        blocks = self._directory.blocks
        ranges = [Range(blocks.address(index), blocks.address(index) + blocks.size(index)) for index in self._owners]
        used = sum(one.usage.total - (one.usage.free or 0) for one in self.contexts)
        return [Part("memory contexts", merge_ranges(ranges), used, True, f"{len(self.contexts):,} contexts")] if ranges else []

    def types(self) -> Sequence[Type]:
        """Return the contexts by name."""
        found: dict[str, list[Context]] = {}
        for one in self.contexts:
            found.setdefault(one.name, []).append(one)
        return [_type(name, some) for name, some in found.items()]

    def findings(self) -> Sequence[Finding]:
        """Return one finding if a context and the contexts below it have much memory."""
        return find_large_pool(self.contexts[0], WORDS) if self.contexts else []

    @cached_property
    def _owners(self) -> Mapping[int, int]:
        """The number of the context that each block of malloc belongs to, by index of the block."""
        found: dict[int, int] = {}
        for place, one in enumerate(self.contexts):
            for address in (one.address, *one.usage.blocks):
                index = self._directory.blocks.find(address)
                if index >= 0:
                    found[index] = place
        return found

    def object_types(self) -> Optional[ObjectTypes]:
        """Return the name of the context of each block."""
        names = list(dict.fromkeys(one.name for one in self.contexts))
        numbers = {name: number for number, name in enumerate(names)}
        types = array("I", [NO_OBJECT]) * len(self._directory.blocks)
        for index, place in self._owners.items():
            types[index] = numbers[self.contexts[place].name]
        return ObjectTypes(types, names, array("I", [1] * len(names)), self.name, "memory context") if names else None

    def name_object(self, index: int) -> str:
        place = self._owners.get(index)
        return self.contexts[place].ident if place is not None else ""

    def describe(self, address: int) -> str:
        place = self._owners.get(self._directory.blocks.find(address))
        if place is None:
            return ""
        one = self.contexts[place]
        return f"memory context {' > '.join(one.path)}{f' ({one.ident})' if one.ident else ''}"


def _type(name: str, contexts: Sequence[Context]) -> Type:
    total = sum(one.usage.total for one in contexts)
    free = sum(one.usage.free or 0 for one in contexts)
    blocks = sum(len(one.usage.blocks) - one.usage.empty for one in contexts)
    return Type(name, len(contexts), total, {"used": total - free, "free": free, "blocks": blocks})
