"""Find the structures that interior pointers of a marked graph refer to
(engine/interior_structures.py)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import compress
from typing import TYPE_CHECKING

from findleaks.engine.contract import Graph
from findleaks.engine.interior_structures import ROW, Structure
from findleaks.engine.terms import NO_BLOCK, Kind, Totals
from findleaks.target.base import Piece, Range
from findleaks.target.ranges import merge_ranges, subtract
from findleaks.value_classes import NamedTuple

if TYPE_CHECKING:
    from findleaks.session import Session

FEW = 4096
"""If there are at most this many interior references, memory is read block by block; otherwise all
of it is read."""

_PHP = ("php", "libphp", "mod_php")

AROUND = 3  # words beside a pointer that may belong to the head of a structure
CREDIT = 4
"""Maximum number of bytes of tables that are read, as a multiple of the size of the heaps. Intact
tables need less than 1. A damaged or contrived heap may have many pointers to one table."""


class Recognised(NamedTuple):
    """Blocks of one kind of structure that are reachable through its interior pointers."""

    structure: Structure
    pointers: int
    blocks: int
    bytes: int


class Structures(NamedTuple):
    """The structures that interior pointers of a graph refer to."""

    found: tuple[Recognised, ...] = ()  # the structure with the most bytes first
    rows: array[int] = array("Q")  # see ROW in engine/interior_structures.py
    # Number and bytes of blocks that are reachable only because of these structures.
    held: Totals = Totals(0, 0)

    def of_block(self, index: int) -> tuple[Structure, int, int, int, int] | None:
        """Return the structure that contains the block with this index: its kind, the offset of the
        pointer, the address of the pointer (0: unknown), the number of entries, and the capacity.
        Returns None if the block is in no structure."""
        try:
            at = self.rows[1::ROW].index(index) * ROW
        except ValueError:
            return None
        structure, _, offset, where, used, places = self.rows[at : at + ROW]
        return Structure(structure), offset, where, used, places


def recognise_structures(session: Session, graph: Graph) -> Structures:
    """Find the structures except links, and mark the blocks that are reachable through them.
    `graph`: a graph with Heuristic.AUTO, marked and not classified."""
    return _recognise(session, graph, _has_php(session), False)


def add_links(session: Session, graph: Graph, known: Structures) -> Structures:
    """Find links of lists and trees, and mark the blocks that are reachable through them. Returns
    these and the structures that are already known.

    Call it after conventions were looked for: objects with links may have a header, and a
    convention is only found if most blocks with the header have unexplained pointers."""
    links = _recognise(session, graph, False, True)
    if not links.rows:
        return known
    return Structures(_by_bytes((*known.found, *links.found)), known.rows + links.rows, Totals.sum_of((known.held, links.held)))


def _recognise(session: Session, graph: Graph, php: bool, links: bool) -> Structures:
    if not graph.has_kind(Kind.POSSIBLE, 1):
        return Structures()
    interiors = graph.interiors()
    # PHP's objects have tables of handlers, which are in the data of loaded files.
    places = None if php else interiors.places(FEW)
    heaps = session.heap_ranges()
    code = merge_ranges(Range(region.start, region.end) for region in session.target.regions() if region.executable)
    pieces = list(_all_memory(session, heaps) if places is None else _read(session, merge_ranges(_iterate_named(session, places))))
    credit = CREDIT * sum(end - start for start, end in heaps)
    examination = interiors.examine(pieces, code, credit, php, links)
    while not examination.step(session.budget):
        session.report_progress("looking for structures", 0.0)
    rows = examination.list_accepted()
    if not rows:
        return Structures()
    before = graph.totals(Kind.POSSIBLE)
    while not interiors.promote(session.budget):
        session.report_progress("looking for structures", 0.0)
    after = graph.totals(Kind.POSSIBLE)
    held = before.minus(after)
    return Structures(_by_bytes(_sums(session, graph, rows)), rows, held)


def _by_bytes(found: Iterable[Recognised]) -> tuple[Recognised, ...]:
    return tuple(sorted(found, key=lambda one: -one.bytes))


def _all_memory(session: Session, heaps: Sequence[Range]) -> Iterator[Piece]:
    """Yield the memory of the heaps and of the roots, ascending.

    In the heaps, zeros replace words that are not references, so the memory is copied. Root memory
    has no structures, and may be a large managed heap. It is divided at these words instead."""
    roots = subtract(session.root_memory, heaps)
    parts = (_read(session, heaps), session.pieces(roots, "reading structures"))
    yield from merge(*parts, key=lambda piece: piece.address)


def _read(session: Session, ranges: Sequence[Range]) -> Iterator[Piece]:
    return session.pieces(ranges, "reading structures", whole=True)


def _has_php(session: Session) -> bool:
    """Whether the process runs PHP, by the names of its modules (php8.2, php-fpm8.2, libphp.so). In
    other programs, a match with PHP's structures is too weak as evidence."""
    return any(module.path.rpartition("/")[2].startswith(_PHP) for module in session.target.modules())


def _iterate_named(session: Session, places: array[int]) -> Iterator[Range]:
    """Yield the memory that `Interiors.places` refers to."""
    blocks, around = session.directory.blocks, AROUND * session.target.arch.word
    for source, root in zip(places[0::3], places[1::3]):
        if source == NO_BLOCK:
            yield Range(max(0, root - around), root + around + session.target.arch.word)
    indices = array("I", sorted({*places[0::3], *places[2::3]} - {NO_BLOCK}))
    columns = blocks.columns_of(indices)
    for start, size in zip(columns.address, columns.size):
        yield Range(max(0, start - around), start + size + around)


def _sums(session: Session, graph: Graph, rows: array[int]) -> Iterator[Recognised]:
    """Yield the sums of the rows by kind of structure, for blocks that are now reachable. The block
    that contains a structure may be only possibly lost."""
    blocks, kinds = session.directory.blocks, graph.kinds()
    structures, targets = rows[0::ROW], rows[1::ROW]
    for structure in sorted(set(structures)):
        its = [index for index in compress(targets, [one == structure for one in structures]) if kinds[index] == Kind.REACHABLE]
        if its:
            distinct = array("I", sorted(set(its)))
            yield Recognised(Structure(structure), len(its), len(distinct), sum(blocks.columns_of(distinct).size))
