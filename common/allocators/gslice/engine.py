"""The engine's functions for GSlice: slabs with their free chunks, magazines, and where the chunks
of a slab begin.

slabs.py has the structures. Both engines give the same results, with one call for all slabs."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from findleaks.engine.contract import Engine
from findleaks.engine.loops import import_loops
from findleaks.target.base import Piece
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.allocators.type_nodes import InstanceType

LEAST_PAGE = 128  # bytes of the smallest slab; the value of `min_page` if GLib uses posix_memalign
OVERLAPS = 0xFFFFFFFF  # in place of a class: a slab overlaps another one


class SlabRead(NamedTuple):
    """Slabs, ascending by address.

    `runs` has a run of equal blocks (terms.RUN) for each slab, `ranges` its start and the end of
    its SlabInfo, and `choices` the number of places at which its first chunk may begin. The run
    begins at the lowest of them. `free`: the free chunks of all slabs. `broken`: pairs of the
    number of a chunk size and the address of the SlabInfo at which its ring is broken; or OVERLAPS
    and the start of a slab that is left out."""

    runs: array[int]  # "Q", as are the others
    ranges: array[int]
    choices: array[int]
    free: array[int]
    broken: array[int]


class ChunkStarts(Protocol):
    """Counts evidence for the place of the first chunk, for slabs with several choices."""

    def count_chunks(self, chunks: array[int]) -> None:
        """Count addresses ("Q") of chunks."""

    def count_pointers(self, piece: Piece) -> None:
        """Count the words of a piece that are addresses in slabs."""

    def count_instances(self, piece: Piece, types: Iterable[InstanceType]) -> None:
        """Count the instances of these types in a piece of the slabs. An instance begins with the
        address of its class."""

    def elect(self) -> int:
        """Let the runs of slabs with evidence begin at the place with most of it, or the lowest of
        these places. Return the number of slabs that have several choices left."""


def read_slabs(engine: Engine, pieces: Sequence[Piece], heads: Sequence[int]) -> SlabRead:
    """Read the rings of slabs. `heads` has the SlabInfo of a slab of each chunk size, or 0."""
    read: SlabRead = _loops(engine).read_slabs(engine, pieces, heads)
    return read


def list_magazines(engine: Engine, pieces: Sequence[Piece], heads: Sequence[int], most: int) -> array[int]:
    """Return the magazines ("Q") of the rings in which these heads are, at most `most`."""
    magazines: array[int] = _loops(engine).list_magazines(engine, pieces, heads, most)
    return magazines


def chunk_starts(engine: Engine, slabs: SlabRead) -> ChunkStarts:
    """Return a counter of evidence for these slabs, whose `runs` and `choices` it changes."""
    made: ChunkStarts = _loops(engine).Starts(engine, slabs)
    return made


def _loops(engine: Engine) -> Any:
    return import_loops(engine, "findleaks.allocators.gslice")
