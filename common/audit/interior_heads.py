"""Find the possibly leaked block under which the most memory is counted, and the interior pointer
to it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Optional

from findleaks.audit.address_info import Describer
from findleaks.audit.references import Reference, find_references
from findleaks.engine.contract import Graph
from findleaks.engine.terms import Kind, Totals
from findleaks.formatting import blocks, format_count, number, shorten, size, with_article
from findleaks.session import Session
from findleaks.value_classes import NamedTuple

MOST_POINTERS = 1000  # pointers into one block that are examined at most


class InteriorHead(NamedTuple):
    """A possibly leaked block. Reachable memory has a pointer into its middle, but none to its
    start."""

    address: int
    size: int
    total: Totals  # the block and the possibly leaked blocks that are counted under it
    heads: int  # number of such heads in the process
    # Pointers from reachable memory into the middle of the block; if there are many, some of them
    pointers: tuple[Reference, ...]
    place: str  # where the first pointer is: "in free_list (worker, data)"; "" if unknown

    def title(self, found: Totals, part: int) -> str:
        """Return the first sentence of the finding. `found`: number and bytes of all possible
        leaks. `part`: their percentage of the memory in use."""
        through = "one pointer" if len(self.pointers) == 1 else f"{number(len(self.pointers))} pointers"
        most = "All of it is" if self.total == found else f"{size(self.total.bytes)} of it is"
        title = f"Possibly leaked: {size(found.bytes)} in {blocks(found.blocks)}, {part} % of the memory in use."
        return f"{title} {most} reached through {through} into the middle of one block."

    def cause(self, found: Totals) -> str:
        """Return the sentence about the place of the pointer, and its distance from the block's
        start."""
        first = self.pointers[0]
        where = f"The word at {first.address:#x}" if first.address else f"Register {first.register} of thread {first.tid}"
        into = f"{where} points {number(first.value - self.address)} B into the block of {number(self.size)} B at {self.address:#x}"
        others = f"; the rest is reached from {format_count(self.heads - 1, 'other block')} in the same way" if self.total != found else ""
        place = f" The word is {self.place}." if self.place else ""
        return f"{into}: a pointer that the program uses, or a number that looks like an address{others}.{place}"

    def json(self) -> dict[str, object]:
        """Return the facts of the finding, for JSON."""
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


def find_largest_head(session: Session, graph: Graph) -> Optional[InteriorHead]:
    """Return the head under which the most bytes are counted.
    Returns None if every possibly leaked block is a head, or if no pointer into the block is
    found."""
    heads, owned = graph.heads(), session.directory.blocks
    if not heads:
        return None
    index = max(heads, key=lambda one: (owned.size(one) + graph.indirect_totals(one).bytes, -one))
    below = graph.indirect_totals(index)
    address, own = owned.address(index), owned.size(index)
    found = islice(_pointers(session, graph, address, own), MOST_POINTERS)
    # Pointers in registers have address 0 and come last
    pointers = tuple(sorted(found, key=lambda one: not one.address))
    if not pointers:
        return None
    total = Totals(1 + below.blocks, own + below.bytes)
    return InteriorHead(address, own, total, len(heads), pointers, _describe_place(session, pointers[0].address))


def _describe_place(session: Session, address: int) -> str:
    """Return where the word at an address is: "in" a variable, or "at offset 8 of" a block; "" for
    other memory, and for a register, whose address is 0."""
    if not address:
        return ""
    found = Describer(session).answer(address)
    if found.sort == "module" and (found.symbol or found.member):
        return f"in {shorten(found.phrase, 200)}"
    block = found.block
    if block is None:
        return ""
    phrase = with_article(shorten(block.phrase(), 200))
    return f"at offset {number(address - block.address)} of {phrase} at {block.address:#x}"


def _pointers(session: Session, graph: Graph, start: int, length: int) -> Iterator[Reference]:
    """Yield live pointers from roots and reachable blocks into the middle of a block."""
    owned = session.directory.blocks
    for reference in find_references(session, start + 1, start + length):
        source = owned.find(reference.address) if reference.address else -1
        if reference.live and (source < 0 or graph.kind(source) == Kind.REACHABLE):
            yield reference
