"""The block from which most of what is possible is reached, and the pointer into its middle."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple, Optional

from findleaks.audit.references import Reference, references_to
from findleaks.engine.contract import Graph
from findleaks.engine.terms import Kind, Totals
from findleaks.formatting import blocks, counted, number, size
from findleaks.session import Session

MOST_POINTERS = 1000  # pointers into one block that are looked at


class Head(NamedTuple):
    """A possible block that reachable memory has a pointer into."""

    address: int
    size: int
    total: Totals  # itself, and the possible blocks that are counted under it
    heads: int  # of the process
    pointers: tuple[Reference, ...]  # into its middle, from reachable memory; some if many

    def title(self, found: Totals, part: int) -> str:
        """The finding, of `found`, which are `part` percent of what is in use."""
        through = "one pointer" if len(self.pointers) == 1 else f"{number(len(self.pointers))} pointers"
        most = "All of it is" if self.total == found else f"{size(self.total.bytes)} of it is"
        title = f"Possibly leaked: {size(found.bytes)} in {blocks(found.blocks)}, {part} % of what is in use."
        return f"{title} {most} reached through {through} into the middle of one block."

    def cause(self, found: Totals) -> str:
        """Where the pointer is, and how far into which block it points."""
        first = self.pointers[0]
        where = f"The word at {first.address:#x}" if first.address else f"Register {first.register} of thread {first.tid}"
        into = f"{where} points {number(first.value - self.address)} B into the block of {number(self.size)} B at {self.address:#x}"
        others = f"; the rest is reached from {counted(self.heads - 1, 'other block')} alike" if self.total != found else ""
        return f"{into}: a pointer that the program uses, or a stray number{others}."

    def json(self) -> dict[str, object]:
        """Facts of the finding."""
        return {
            "block": hex(self.address),
            "size": self.size,
            "heads": self.heads,
            **self.total._asdict(),
            "pointers": [
                {"address": hex(one.address) if one.address else None, "register": one.register or None, "offset": one.value - self.address}
                for one in self.pointers[:3]
            ],
        }


def largest_head(session: Session, graph: Graph) -> Optional[Head]:
    """The head under which most bytes are counted; None if each possible block is one, or if the
    pointers into it are not found."""
    heads, owned = graph.heads(), session.directory.blocks
    if not heads:
        return None
    index = max(heads, key=lambda one: (owned.size(one) + graph.indirect_totals(one).bytes, -one))
    below = graph.indirect_totals(index)
    address, own = owned.address(index), owned.size(index)
    found = islice(_pointers(session, graph, address, own), MOST_POINTERS)
    pointers = tuple(sorted(found, key=lambda one: not one.address))  # registers last
    if not pointers:
        return None
    return Head(address, own, Totals(1 + below.blocks, own + below.bytes), len(heads), pointers)


def _pointers(session: Session, graph: Graph, start: int, length: int) -> Iterator[Reference]:
    """Live pointers into the middle of a block, from roots and reachable blocks."""
    owned = session.directory.blocks
    for reference in references_to(session, start + 1, start + length):
        source = owned.find(reference.address) if reference.address else -1
        if reference.live and (source < 0 or graph.kind(source) == Kind.REACHABLE):
            yield reference
