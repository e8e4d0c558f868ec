"""The interface of runtimes whose objects can be written as a heap dump."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO, NamedTuple, Optional

from findleaks.engine.contract import Graph
from findleaks.runtimes.base import Runtime


class DumpableRuntime(Runtime):
    """A runtime whose objects can be written as a heap dump."""

    dump_format = "hprof"
    """The format of its heap dumps: "hprof" (HPROF 1.0.2) or "heapsnapshot" (Chrome DevTools)."""

    def write_heap_dump(self, out: BinaryIO, report: Callable[[float], None]) -> Optional[list[str]]:
        """Write all objects in this format. Returns sentences about the content. If the objects
        cannot be read, nothing is written, and None is returned. `report` is called with the
        fraction that is written, from 0 to 1. Raises OSError if `out` cannot be written."""
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
