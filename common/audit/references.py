"""References to an address. All memory is searched for them, so that the graph need not store
them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from findleaks.audit.disguises import disguised_references
from findleaks.engine.terms import State
from findleaks.errors import Interrupted
from findleaks.graph.roots import writable_ranges
from findleaks.session import Session
from findleaks.target.ranges import range_at

SIGNAL_STACK = "alternate signal stack"  # name of such a block, and of the kernel's pointer to it
CHUNK = 4096  # references between two checks for Ctrl-C


@dataclass(frozen=True)
class Reference:
    """A word that contains `value`."""

    address: int  # 0 if the word is in `register` of thread `tid`, or stored by the kernel
    value: int
    # In root memory, a register or a block in use, and not in a dead part of a managed heap.
    live: bool
    register: str = ""
    tid: int = 0
    why: str = ""  # why it is not live, for words that a thread will not read again
    kernel: str = ""  # the kernel object that stores the word: "epoll descriptor 5, target 7"
    disguise: str = ""  # the kind of disguise, if it is not a plain pointer (audit/disguises.py)


def find_references(session: Session, low: int, high: int) -> Iterator[Reference]:
    """Yield references with a value in [low, high).
    First registers, then words that the kernel stores, then aligned words of writable memory,
    ascending, then disguised pointers that count as references."""
    yield from find_register_references(session, low, high)
    yield from find_kernel_references(session, low, high)
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
            yield Reference(address, value, live, why="" if live else _explain_dead(session, address))
    index = session.directory.blocks.find(low)
    for one in disguised_references(session, index) if index >= 0 else ():
        if low <= one.value < high:
            yield Reference(one.address, one.value, True, disguise=one.name)


def find_register_references(session: Session, low: int, high: int) -> Iterator[Reference]:
    """Yield registers with a value in [low, high), each once: live ones first, then by name.
    "vector" is a register of which only the value is known."""
    for thread in session.target.threads():
        found = {(not read, name or "vector", value) for name, value, read in session.unread.words(thread) if low <= value < high}
        for unread, name, value in sorted(found):
            yield Reference(0, value, not unread, name, thread.tid, "not read again" if unread else "")


def find_kernel_references(session: Session, low: int, high: int) -> Iterator[Reference]:
    """Yield words with a value in [low, high) that the kernel stores for the process."""
    for word, one in session.kernel_references:
        if low <= word < high:
            yield Reference(0, word, True, kernel=one.name)
    for start in session.signal_stacks:
        if low <= start < high:
            yield Reference(0, start, True, kernel=SIGNAL_STACK)


def find_root_references(session: Session, low: int, high: int) -> Iterator[Reference]:
    """Yield live registers, root words and the kernel's words with a value in [low, high).
    These are the references that keep a block reachable directly; otherwise as
    `find_references`."""
    yield from (reference for reference in find_register_references(session, low, high) if reference.live)
    yield from find_kernel_references(session, low, high)
    word = session.target.arch.word
    order = session.target.arch.byteorder
    for piece in session.pieces(session.roots, "searching the roots"):
        for address in session.engine.search(piece, low, high):
            at = address - piece.address
            yield Reference(address, int.from_bytes(piece.data[at : at + word], order), True)


def _explain_dead(session: Session, address: int) -> str:
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
