"""The engine's functions for GSlice. They read slabs, their free chunks and magazines, and
find where the chunks of a slab begin. slabs.py describes the structures.

Both engines give the same results. One call processes all slabs."""

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
OTHER = 4
"""Number of chunks at the start of a magazine of a ring. Their second words are not lists."""
OVERLAPS = 0xFFFFFFFF  # in place of a class: a slab overlaps another one


class SlabRead(NamedTuple):
    """Slabs, ascending by address.

    For each slab, `runs` has a run of equal blocks (terms.RUN), and `ranges` has the start of the
    slab and the end of its SlabInfo. `choices` has the number of places at which the first chunk of
    the slab may begin; the run begins at the lowest of these places. `free`: the free chunks of all
    slabs. `broken` has pairs. If a ring is broken, the pair is the number of its chunk size and the
    address of the SlabInfo at which it is broken. If a slab is left out, the pair is OVERLAPS and
    the start of the slab."""

    runs: array[int]  # "Q", as are the others
    ranges: array[int]
    choices: array[int]
    free: array[int]
    broken: array[int]


class ChunkStarts(Protocol):
    """Counts evidence of where the first chunk of a slab begins. Slabs with only one possible place
    are ignored."""

    def count_chunks(self, chunks: array[int]) -> None:
        """Count addresses ("Q") of chunks."""

    def count_pointers(self, piece: Piece) -> None:
        """Count the words of a piece that are addresses in slabs."""

    def count_instances(self, piece: Piece, types: Iterable[InstanceType]) -> None:
        """Count the instances of these types in a piece of the slabs. An instance begins with the
        address of its class."""

    def count_edges(self, piece: Piece) -> None:
        """Examine the slabs in a piece that still have several possible places. The bytes before
        the first chunk and after the last one are never written, so they are zero if the memory was
        new. A place counts if these bytes are zero: once, and once for each chunk whose first word
        is not zero."""

    def elect(self) -> int:
        """Move the run of each slab with evidence to the place with the most evidence. If several
        places have the same amount, the lowest one is used. Return the number of slabs that still
        have several possible places."""


def read_slabs(engine: Engine, pieces: Sequence[Piece], heads: Sequence[int]) -> SlabRead:
    """Read the rings of slabs. For each chunk size, `heads` has the address of a SlabInfo in the
    ring, or 0 if there is no ring."""
    read: SlabRead = _loops(engine).read_slabs(engine, pieces, heads)
    return read


def read_magazines(
    engine: Engine, pieces: Sequence[Piece], own: Sequence[int], rings: Sequence[int], most: int
) -> tuple[array[int], list[tuple[int, str]]]:
    """Return the addresses ("Q") of the chunks in magazines, and for each damaged list its head and
    the reason.

    `own`: the first chunk of each magazine of a thread. `rings`: for each ring, the first chunk of
    one of its magazines, or 0 if there is no ring. At most `most` magazines of rings are read, and
    at most `most` chunks of each list.

    A magazine is a list linked by the first words of its chunks. The second word of a chunk is the
    head of a further list. In the first OTHER chunks of a magazine of a ring, the second word has
    another use, such as the link to the next magazine."""
    read: tuple[array[int], list[tuple[int, str]]] = _loops(engine).read_magazines(engine, pieces, own, rings, most)
    return read


def chunk_starts(engine: Engine, slabs: SlabRead) -> ChunkStarts:
    """Return a counter of evidence for these slabs. The counter changes `slabs.runs` and
    `slabs.choices`."""
    made: ChunkStarts = _loops(engine).Starts(engine, slabs)
    return made


def _loops(engine: Engine) -> Any:
    return import_loops(engine, "findleaks.allocators.gslice")
