"""Answer questions about single objects of runtimes whose objects refer to one another through
native memory (Ruby)."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Optional

from findleaks.allocators.bulk import find_pointers
from findleaks.audit.containers.reader import ContainerReader
from findleaks.audit.heap_retention import JoinedHeap, compute_heap_tree, join_heap
from findleaks.audit.managed_graph import FoundObject
from findleaks.audit.managed_objects import find_links_to, name_variable
from findleaks.audit.object_roots import label_root
from findleaks.audit.owners import Owners, find_owners
from findleaks.audit.references import find_register_references
from findleaks.engine.dominators import Dominators
from findleaks.engine.terms import LAST_WORD
from findleaks.errors import Interrupted
from findleaks.runtimes.base import NO_OBJECT, Variable
from findleaks.runtimes.heap_dump import DumpableHeap
from findleaks.runtimes.object_graph import ManagedObject, ObjectGraph, ObjectWord
from findleaks.session import Session
from findleaks.target.base import Piece, Range
from findleaks.target.ranges import cut_out

# Limits of the search for a chain from a variable. The referrers of one object are found in time
# proportional to the number of all objects and blocks.
_FEWEST_VISITED, _MOST_EXAMINED = 16, 1 << 27


def find_joined_objects(session: Session, address: int) -> Optional[JoinedObjects]:
    """Return the objects of the runtime with an object at this address; None if there is none."""
    for runtime in session.runtimes:
        if isinstance(runtime, DumpableHeap) and runtime.contains(address):
            return session.once((find_joined_objects, id(runtime)), partial(_find_all, session, runtime))
    return None


def _find_all(session: Session, runtime: DumpableHeap) -> Optional[JoinedObjects]:
    heap = join_heap(session, runtime)
    return JoinedObjects(session, runtime, heap) if heap is not None else None


class JoinedObjects(ObjectGraph):
    """See ObjectGraph. The graph has the objects and all native blocks.

    A path begins at a variable of the language if the object is reachable from one. The dominator
    tree and the roots are those of the whole process. An object that no root reaches is not called
    garbage, because the runtime may refer to it in a way that findleaks does not read."""

    def __init__(self, session: Session, runtime: DumpableHeap, heap: JoinedHeap) -> None:
        super().__init__(session.target, session.engine, heap.blocks, heap.graph)
        self._session, self._runtime, self._heap, self._names = session, runtime, heap, runtime.object_names
        self.noun = f"{runtime.name} object"
        self._paths: dict[int, Sequence[int]] = {}

    def locate(self, address: int) -> Optional[FoundObject]:
        """Return the object that contains an address; None if there is none."""
        found = self.find(address) if self._runtime.contains(address) else None
        return FoundObject(self, self._runtime.name, found) if found is not None and self._is_object(found.block) else None

    def object(self, index: int) -> ManagedObject:
        found = super().object(index)
        return found if found.is_live else found._replace(is_live=None)

    def _is_object(self, index: int) -> bool:
        return self._heap.found[index] != NO_OBJECT

    def noun_of(self, index: int) -> str:
        return self.noun if self._is_object(index) else "native block"

    def type_of(self, index: int) -> str:
        if self._is_object(index):
            return self._names.name_object(self.blocks.address(index)) or self._heap.table.names[self._heap.found[index]]
        owner = self._buffer_owners.get(index, -1)
        return f"memory of {self.type_of(owner)} at {self.blocks.address(owner):#x}" if owner >= 0 else "native memory"

    def labels(self) -> tuple[array[int], Sequence[str]]:
        return self._heap.found, self._heap.table.names

    @cached_property
    def _buffer_owners(self) -> dict[int, int]:
        """For each buffer, the object to which it belongs. Both are indices of blocks."""
        table, find = self._heap.table, self.blocks.find_all
        pairs = zip(find(table.buffers[0::2])[0], find(table.buffer_owners)[0])
        return {buffer: owner for buffer, owner in pairs if owner < len(self.blocks) and self._is_object(owner)}

    def name_member(self, index: int, offset: int) -> str:
        owner = self._buffer_owners.get(index, index)
        place = self.blocks.address(index) + offset
        variable = self._by_place.get(place)
        if variable is not None:
            return self._name_variable(variable)
        if self._is_object(owner):
            return self._names.name_word(self.blocks.address(owner), place)
        return self._names.name_root(place)

    def references_of(self, index: int, low: int, high: int) -> Iterator[ObjectWord]:
        start, end = self.extent(index)
        mask, word = self._heap.table.exclusions[self._heap.patterns[index]].words, self.target.arch.word
        for address, value in self._search([Range(start, end)], low, high):
            if not mask >> min((address - start) // word, LAST_WORD) & 1:
                yield ObjectWord(address, value, self.name_member(index, address - start))

    def _search(self, ranges: Sequence[Range], low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield the address and value of each word in `ranges` whose value is in [low, high)."""
        for piece in self._pieces(ranges):
            yield from zip(*find_pointers(self.engine, piece, low, high))

    def _pieces(self, ranges: Sequence[Range]) -> Iterator[Piece]:
        for piece in self._session.pieces(ranges, "reading objects"):
            yield from cut_out(piece, self._heap.table.stale)

    # -- roots

    @cached_property
    def _by_place(self) -> dict[int, Variable]:
        return {one.address: one for one in self._runtime.variables()}

    @cached_property
    def _by_value(self) -> dict[int, Variable]:
        """For the index of each object to which a variable refers, this variable."""
        return {self.blocks.find(one.value): one for one in self._runtime.variables()}

    def describe_variable(self, index: int) -> str:
        """Return "; App.cache (Ruby variable)" for an object to which a variable refers, or ""."""
        found = self._by_value.get(index)
        return f"; {self._name_variable(found)}" if found is not None else ""

    def _name_variable(self, one: Variable) -> str:
        return name_variable(one, self._runtime.name)

    @cached_property
    def _owners(self) -> Owners:
        return find_owners(self._session, ContainerReader(self._session))

    def roots_to(self, low: int, high: int) -> Iterator[ObjectWord]:
        for address, value in self._search(self._heap.roots, low, high):
            name = self._names.name_root(address) or label_root(self._owners, address)
            yield ObjectWord(address, value, name)
        registers = (one for one in find_register_references(self._session, low, high) if one.live)
        yield from (ObjectWord(0, one.value, "", one.register, one.tid) for one in registers)

    def path(self, index: int) -> Sequence[int]:
        if index not in self._paths:
            self._paths[index] = self._find_path(index)
        return self._paths[index]

    def _find_path(self, index: int) -> Sequence[int]:
        found = find_links_to(self._session, self.blocks.address(index)) if self._is_object(index) else None
        if found is not None and found[0].runtime is self._runtime:
            _, variable, links = found
            chain: Sequence[int] = [*(self.blocks.find(address) for address, _ in links), index]
            return chain if chain[0] == self.blocks.find(variable.value) and -1 not in chain else super().path(index)
        chain = self._path_from_variable(index) or super().path(index)
        last = next((at for at in range(len(chain) - 1, -1, -1) if chain[at] in self._by_value), 0)
        return chain[last:]

    def _path_from_variable(self, index: int) -> list[int]:
        """Return a shortest chain from the value of a variable to an object; [] if none is found.
        Only the objects and blocks that are nearest to the object are searched."""
        after, waiting = {index: -1}, deque([index])
        for _ in range(max(_FEWEST_VISITED, _MOST_EXAMINED // len(self.blocks))):
            if not waiting:
                break
            if self.target.is_interrupted():
                raise Interrupted
            at = waiting.popleft()
            if at in self._by_value:
                chain = [at]
                while after[chain[-1]] >= 0:
                    chain.append(after[chain[-1]])
                return chain
            for source in self.referrers(at):
                if source not in after and self.is_live(source):
                    after[source] = at
                    waiting.append(source)
        return []

    def root_of(self, index: int) -> Optional[ObjectWord]:
        chain = self.path(index)
        variable = self._by_value.get(chain[0]) if chain else None
        if variable is not None:
            return ObjectWord(variable.address, variable.value, self._name_variable(variable))
        return super().root_of(index)

    @cached_property
    def dominators(self) -> Optional[Dominators]:
        return compute_heap_tree(self._session, self._heap)
