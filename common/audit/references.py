"""References to an address: searched for in all memory, so that the graph need not store them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from findleaks.audit.disguises import disguised_references
from findleaks.engine.terms import State
from findleaks.errors import Interrupted
from findleaks.graph.roots import writable_ranges
from findleaks.session import Session
from findleaks.target.ranges import range_at

SIGNAL_STACK = "alternate signal stack"  # what such a block is, and what the kernel keeps it for
CHUNK = 4096  # references between two checks for Ctrl-C


@dataclass(frozen=True)
class Reference:
    """A word that holds `value`."""

    address: int  # 0: in `register` of thread `tid`, or kept by the kernel
    value: int
    live: bool  # in root memory, a register or a used block, not in a managed heap's dead part
    register: str = ""
    tid: int = 0
    why: str = ""  # why it is not live, for words that a thread will not read again
    kernel: str = ""  # "epoll descriptor 5, target 7": the kernel keeps the word
    disguise: str = ""  # what it is, if it is no plain pointer (audit/disguises.py)


def references_to(session: Session, low: int, high: int) -> Iterator[Reference]:
    """Registers, words that the kernel keeps, then aligned words of writable memory, ascending,
    with a value in [low, high); then disguised pointers that count as references."""
    yield from register_references(session, low, high)
    yield from kernel_references(session, low, high)
    target = session.target
    ranges = writable_ranges(target)
    word = target.arch.word
    for piece in session.pieces(ranges, "searching memory", dead=True):
        for count, address in enumerate(session.engine.search(piece, low, high)):
            if count % CHUNK == CHUNK - 1 and target.interrupted():
                raise Interrupted
            at = address - piece.address
            value = int.from_bytes(piece.data[at : at + word], target.arch.byteorder)
            live = is_live(session, address, value)
            yield Reference(address, value, live, why="" if live else _why_dead(session, address))
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


def kernel_references(session: Session, low: int, high: int) -> Iterator[Reference]:
    """Words with a value in [low, high) that the kernel keeps for the process."""
    for word, one in session.kernel_references:
        if low <= word < high:
            yield Reference(0, word, True, kernel=one.name)
    for start in session.signal_stacks:
        if low <= start < high:
            yield Reference(0, start, True, kernel=SIGNAL_STACK)


def root_references(session: Session, low: int, high: int) -> Iterator[Reference]:
    """As `references_to`, but only live registers, roots and the kernel's words: what holds
    [low, high) directly."""
    yield from (reference for reference in register_references(session, low, high) if reference.live)
    yield from kernel_references(session, low, high)
    word = session.target.arch.word
    order = session.target.arch.byteorder
    for piece in session.pieces(session.roots, "searching the roots"):
        for address in session.engine.search(piece, low, high):
            at = address - piece.address
            yield Reference(address, int.from_bytes(piece.data[at : at + word], order), True)


def _why_dead(session: Session, address: int) -> str:
    """Why a word keeps nothing alive; "" if its place says it."""
    return "a slot beyond its container's length" if range_at(session.stale_slots, address) is not None else session.unread.what(address)


def is_live(session: Session, address: int, value: int) -> bool:
    """Whether the word at `address` is a reference: in a root or a block in use, not in a dead part
    of a managed heap or a slot beyond its container's length, and not kept by a runtime for its own
    use."""
    if range_at(session.no_references, address) is not None or range_at(session.stale_slots, address) is not None:
        return False
    blocks = session.directory.blocks
    index = blocks.find(address)
    if index < 0:
        return range_at(session.roots, address) is not None
    return blocks.state(index) == State.IN_USE and not session.graphs.is_excluded(index, address, value)
