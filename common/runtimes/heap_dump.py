"""The interface of runtimes whose objects can be written as a heap dump."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple, Optional

from findleaks.engine.contract import Blocks, Graph
from findleaks.engine.terms import Exclusion
from findleaks.runtimes.base import Runtime
from findleaks.runtimes.object_graph import ObjectGraph
from findleaks.target.base import Piece, Range


class DumpableRuntime(Runtime):
    """A runtime whose objects can be written as a heap dump."""

    dump_format = "hprof"
    """The format of its heap dumps: "hprof" (HPROF 1.0.2) or "heapsnapshot" (Chrome DevTools)."""

    def write_heap_dump(self, out: BinaryIO, report: Callable[[float], None]) -> Optional[list[str]]:
        """Write all objects in this format. Returns sentences about the content. If the objects
        cannot be read, nothing is written, and None is returned. `report` is called with the
        fraction that is written, from 0 to 1. Raises OSError if `out` cannot be written."""
        raise NotImplementedError


class DumpableGraph(ObjectGraph):
    """A graph of a runtime's own heap that can be written as a heap snapshot, or as lines of
    JSON."""

    def reference_words(self) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Yield the addresses and the values of all references in objects, in parts. The addresses
        are ascending, the next part continues after the previous one."""
        raise NotImplementedError


class BlockReferences(NamedTuple):
    """References of the blocks of a process, for a dump of objects that are blocks.

    By block: `retained` is the number of bytes that it retains, 0 if no root reaches it. `owners`
    is the nearest block with an object that dominates it, itself included, or NO_ROOT. `roots` has
    phrases for the roots that refer to an object. `graph` is classified."""

    graph: Graph
    retained: array[int]  # "Q"
    owners: array[int]  # "I"
    roots: Mapping[int, Sequence[str]]


class DumpableBlocks(Runtime):
    """A runtime whose objects are blocks, and can be written as lines of JSON."""

    def write_object_lines(self, references: BlockReferences, out: BinaryIO, report: Callable[[float], None]) -> list[str]:
        """Write one line for each object. Returns sentences about the content. `report` is called
        with the fraction that is written, from 0 to 1. Raises OSError if `out` cannot be
        written."""
        raise NotImplementedError


class ObjectTable(NamedTuple):
    """The objects of a runtime's own heap, for a graph of these objects and of native blocks.

    `addresses`, `sizes`, `types` and `patterns` have one element for each object, ascending by
    address. `sizes` are in bytes. `types` are indices of `names`. `patterns` are indices of
    `exclusions` (Graph.exclude_words). `buffers`, `ranges`: see base.Objects. `buffer_owners`: the
    address of the object to which each buffer belongs. `opaque` has one address in each block that
    contains no references. `stale`: sorted ranges outside of objects that contain no references."""

    addresses: array[int]  # "Q"
    sizes: array[int]  # "I"
    types: array[int]  # "I"
    names: Sequence[str]
    patterns: bytearray
    exclusions: Sequence[Exclusion]
    buffers: array[int]  # "Q"
    buffer_owners: array[int]  # "Q"
    opaque: Sequence[int]
    stale: Sequence[Range]
    ranges: Sequence[Range]


class HeapReferences(NamedTuple):
    """References of the objects of a table and of native blocks, for a dump.

    `blocks` has the objects and the native blocks. `places` ("I") has the index of each object in
    `blocks`. `found` ("I") has for each block the number of the type of its object, or NO_OBJECT.
    `retained`, `owners` and `graph`: see BlockReferences. `buffers` maps the block of each buffer
    to the block of its object. `roots` maps the name of each root to the indices of the blocks of
    objects that the root refers to. `pieces` returns the memory of all blocks, ascending."""

    blocks: Blocks
    graph: Graph
    places: array[int]
    found: array[int]
    retained: array[int]
    owners: array[int]
    buffers: Mapping[int, int]
    roots: Mapping[str, Sequence[int]]
    pieces: Callable[[], Iterable[Piece]]


class ObjectNames:
    """Names objects of a DumpableHeap and the references to them. Each name is "" if unknown."""

    def name_object(self, address: int) -> str:
        """Return the name of a class or module at an address ("module Registry"); "" for other
        objects, which are identified by their type."""
        return ""

    def name_word(self, address: int, place: int) -> str:
        """Return the name of the word at `place` in the memory of the object at `address`
        (".@peer", "[3]")."""
        return ""

    def name_root(self, place: int) -> str:
        """Return a phrase for the word of root memory at `place`."""
        return ""


class DumpableHeap(Runtime):
    """A runtime with a separate heap. Its objects refer to one another through native memory, and
    can be written as lines of JSON."""

    def object_table(self) -> Optional[ObjectTable]:
        """Return the objects; None if they cannot be read."""
        raise NotImplementedError

    def contains(self, address: int) -> bool:
        """Return whether an object of the table contains the address."""
        raise NotImplementedError

    @property
    def object_names(self) -> ObjectNames:
        """Names for commands that describe single objects."""
        return ObjectNames()

    def write_object_lines(self, references: HeapReferences, out: BinaryIO, report: Callable[[float], None]) -> list[str]:
        """Write one line for each object; see DumpableBlocks."""
        raise NotImplementedError
