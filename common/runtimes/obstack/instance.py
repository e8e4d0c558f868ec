"""The obstacks of a process, as a runtime whose types are the variables with obstacks."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.directory import Directory
from findleaks.runtimes.base import NO_OBJECT, Count, ObjectTypes, Runtime, Type
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.obstack.chunks import Obstack, ObstackReader
from findleaks.runtimes.pool_tree import PoolNode, Words, add_up, find_alike_pools, find_large_pool, sort_by_parent
from findleaks.target.base import Range, Target
from findleaks.target.program import program_name

KIND = "obstack"  # type of an obstack's chunks; the name of its variable follows, if it is in one
CHUNK = "obstack chunk"  # type of chunks that belong to no obstack
UNNAMED = "(no variable)"  # name of an obstack that is not in a variable
WORDS = Words("obstack", "obstack", "obstacks", "all obstacks")
REMEDIES = ("pass the first object that is no longer needed to obstack_free, which also frees all later ones",)


class Obstacks(Runtime):
    """All obstacks of a process. See base.Runtime."""

    name = "obstacks"
    version = ""
    objects_are_native = True
    is_pools = True

    def __init__(self, target: Target, directory: Directory, reader: ObstackReader) -> None:
        self.where = program_name(target)
        self._target, self._blocks, self._reader = target, directory.blocks, reader
        self.obstacks = reader.obstacks
        self.problems: list[Problem] = reader.problems

    @cached_property
    def _variables(self) -> Mapping[int, str]:
        """The variable with each obstack, by address of the obstack; "" if it is not in one."""
        return {one.address: self._name_variable(one) for one in self.obstacks}

    def _name_variable(self, one: Obstack) -> str:
        symbol = self._target.symbolize(one.address) if self._blocks.find(one.address) < 0 else None
        offset = one.address - symbol.address if symbol is not None else 0
        return symbol.name + (f"+{offset:#x}" if offset else "") if symbol is not None else ""

    @cached_property
    def _names(self) -> Mapping[int, str]:
        """The type of each obstack, by its address."""
        return {address: f"{KIND} {name}".rstrip() for address, name in self._variables.items()}

    def _list_chunks(self, one: Obstack) -> Iterator[tuple[int, int, int]]:
        """Yield for each chunk of an obstack: its block's index, the end of its objects, and the
        end of the block. In older chunks, the end of the objects is not recorded."""
        for number, address in enumerate(one.chunks):
            chunk = self._reader.chunks[address]
            end = self._blocks.address(chunk.block) + self._blocks.size(chunk.block)
            yield chunk.block, chunk.limit if number else one.next_free, end

    def _measure(self, one: Obstack) -> tuple[int, int]:
        """Return the bytes of an obstack's chunks, and how many of them are used."""
        rows = list(self._list_chunks(one))
        return sum(self._blocks.size(block) for block, _, _ in rows), sum(used - self._blocks.address(block) for block, used, _ in rows)

    def counters(self) -> Mapping[str, Count]:
        return {"chunks": Count(sum(len(one.chunks) for one in self.obstacks))}

    def types(self) -> Sequence[Type]:
        sums: dict[str, list[int]] = {}
        for one in self.obstacks:
            its = sums.setdefault(self._names[one.address], [0, 0, 0])
            for at, value in enumerate((1, *self._measure(one))):
                its[at] += value
        return [Type(name, count, total, {"used": used, "free": total - used}) for name, (count, total, used) in sums.items()]

    def object_types(self) -> Optional[ObjectTypes]:
        """Return the types of chunks: each has the name of its obstack."""
        names = [*dict.fromkeys(self._names.values()), CHUNK]
        numbers = {name: number for number, name in enumerate(names)}
        types = array("I", [NO_OBJECT]) * len(self._blocks)
        for chunk in self._reader.chunks.values():
            # Elements of a list that are adjacent blocks also begin with the address of their end.
            is_first_or_linked = not chunk.previous or chunk.previous in self._reader.chunks
            if is_first_or_linked and self._blocks.find(chunk.limit) in (-1, chunk.block):
                types[chunk.block] = len(names) - 1
        for one in self.obstacks:
            number = numbers[self._names[one.address]]
            for block, _, _ in self._list_chunks(one):
                types[block] = number
        return ObjectTypes(types, names, array("I", [1] * len(names)), self.name, "obstack", True)

    def bookkeeping(self) -> Sequence[Range]:
        """Return the unused parts of chunks. Their words are from objects that were freed."""
        word = self._target.arch.word
        unused = [(used // word * word, end) for one in self.obstacks for _, used, end in self._list_chunks(one)]
        return [Range(start, end) for start, end in unused if start < end]

    def findings(self) -> Sequence[Finding]:
        """Return one finding if an obstack, or several with one name, have much memory."""
        top = PoolNode(0, "", None, 0)
        nodes = [PoolNode(one.address, self._variables[one.address] or UNNAMED, top, self._measure(one)[0]) for one in self.obstacks]
        add_up(sort_by_parent(top, nodes))
        return find_large_pool(top, WORDS, REMEDIES) or find_alike_pools(top, WORDS, REMEDIES, True)

    @cached_property
    def _owners(self) -> Mapping[int, tuple[str, int]]:
        """The name of the obstack of each chunk, and the end of its objects, by index of the
        block."""
        return {block: (self._names[one.address], used) for one in self.obstacks for block, used, _ in self._list_chunks(one)}

    def describe(self, address: int) -> str:
        name, used = self._owners.get(self._blocks.find(address), ("", 0))
        return f"{name}, unused" if name and address >= used else name
