"""References to an address: searched for in all memory, so that the graph need not store them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from findleaks.audit.disguises import disguised_references
from findleaks.engine.terms import State
from findleaks.errors import Interrupted
from findleaks.graph.roots import root_regions
from findleaks.session import Session
from findleaks.target.base import Range
from findleaks.target.ranges import inside

CHUNK = 4096  # references between two checks for Ctrl-C


@dataclass(frozen=True)
class Reference:
    """A word that holds `value`."""

    address: int  # 0: in `register` of thread `tid`
    value: int
    live: bool  # in root memory, a register or a used block, not in a managed heap's dead part
    register: str = ""
    tid: int = 0
    why: str = ""  # why it is not live, for words that a thread will not read again
    disguise: str = ""  # what it is, if it is no plain pointer (audit/disguises.py)


def references_to(session: Session, low: int, high: int) -> Iterator[Reference]:
    """Registers, then aligned words of writable memory, with a value in [low, high), ascending;
    then disguised pointers that count as references."""
    yield from register_references(session, low, high)
    target = session.target
    ranges = [Range(r.start, r.end) for r in root_regions(target.regions())]
    word = target.arch.word
    for piece in session.pieces(ranges, "searching memory", dead=True):
        for count, address in enumerate(session.engine.search(piece, low, high)):
            if count % CHUNK == CHUNK - 1 and target.interrupted():
                raise Interrupted
            at = address - piece.address
            value = int.from_bytes(piece.data[at : at + word], target.arch.byteorder)
            live = is_live(session, address, value)
            yield Reference(address, value, live, why="" if live else session.unread.what(address))
    index = session.directory.blocks.find(low)
    for one in disguised_references(session, index) if index >= 0 else ():
        if low <= one.value < high:
            yield Reference(one.address, one.value, True, disguise=one.name)


def register_references(session: Session, low: int, high: int) -> Iterator[Reference]:
    """Registers with a value in [low, high), each once: live ones first, then by name. "vector" is
    a register of which no more is known."""
    for thread in session.target.threads():
        found = {(not read, name or "vector", value) for name, value, read in session.unread.words(thread) if low <= value < high}
        for unread, name, value in sorted(found):
            yield Reference(0, value, not unread, name, thread.tid, "not read again" if unread else "")


def root_references(session: Session, low: int, high: int) -> Iterator[Reference]:
    """As `references_to`, but only live registers and roots: what holds [low, high) directly."""
    yield from (reference for reference in register_references(session, low, high) if reference.live)
    word = session.target.arch.word
    order = session.target.arch.byteorder
    for piece in session.pieces(session.roots, "searching the roots"):
        for address in session.engine.search(piece, low, high):
            at = address - piece.address
            yield Reference(address, int.from_bytes(piece.data[at : at + word], order), True)


def is_live(session: Session, address: int, value: int) -> bool:
    """Whether the word at `address` is a reference: in a root or a block in use, not in a dead part
    of a managed heap, and not kept by a runtime for its own use."""
    if inside(session.no_references, address) is not None:
        return False
    blocks = session.directory.blocks
    index = blocks.find(address)
    if index < 0:
        return inside(session.roots, address) is not None
    return blocks.state(index) == State.IN_USE and not session.graphs.is_excluded(index, address, value)
