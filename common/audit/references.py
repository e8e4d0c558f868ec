"""Find references to an address. All memory is searched for each request, so the graph need not
store references."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.audit.disguises import disguised_references
from findleaks.engine.terms import State
from findleaks.errors import Interrupted
from findleaks.graph.roots import writable_ranges
from findleaks.session import Session
from findleaks.target.ranges import range_at
from findleaks.value_classes import dataclass

# Name of a block that contains such a stack, and of the kernel's pointer to it
SIGNAL_STACK = "alternate signal stack"
CHUNK = 4096  # references between two checks for Ctrl-C


@dataclass(frozen=True)
class Reference:
    """A word that contains `value`."""

    address: int  # 0 if the word is in `register` of thread `tid`, or if the kernel stores it
    value: int
    # True if the word is in root memory, in a register, or in a block in use, unless it is in a
    # dead part of a managed heap.
    live: bool
    register: str = ""
    tid: int = 0
    why: str = ""  # for words that a thread will not read again: why the reference is not live
    kernel: str = ""  # the kernel object that stores the word: "epoll descriptor 5, target 7"
    disguise: str = ""  # the kind of disguise; "" for a plain pointer (audit/disguises.py)


def find_references(session: Session, low: int, high: int) -> Iterator[Reference]:
    """Yield references with a value in [low, high).
    The order is: registers, words that the kernel stores, aligned words of writable memory
    (ascending by address), and disguised pointers that count as references."""
    yield from find_register_references(session, low, high)
    yield from find_kernel_references(session, low, high)
    target = session.target
    ranges = writable_ranges(target)
    word = target.arch.word
    for piece in session.pieces(ranges, "searching memory", dead=True):
        for count, address in enumerate(session.engine.search(piece, low, high)):
            if count % CHUNK == CHUNK - 1 and target.is_interrupted():
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
    The name "vector" means a vector register, of which only the value is known."""
    for thread in session.target.threads():
        found = {(not read, name or "vector", value) for name, value, read in session.unread.words(thread) if low <= value < high}
        for unread, name, value in sorted(found):
            yield Reference(0, value, not unread, name, thread.tid, "not read again" if unread else "")


def find_kernel_references(session: Session, low: int, high: int) -> Iterator[Reference]:
    """Yield words that the kernel stores for the process, with a value in [low, high)."""
    for word, one in session.kernel_references:
        if low <= word < high:
            yield Reference(0, word, True, kernel=one.name)
    for start in session.signal_stacks:
        if low <= start < high:
            yield Reference(0, start, True, kernel=SIGNAL_STACK)


def find_root_references(session: Session, low: int, high: int) -> Iterator[Reference]:
    """Yield live registers, words of roots, and words that the kernel stores, with a value in [low,
    high).
    A block that such a word refers to is directly reachable. See also `find_references`."""
    yield from (reference for reference in find_register_references(session, low, high) if reference.live)
    yield from find_kernel_references(session, low, high)
    word = session.target.arch.word
    order = session.target.arch.byteorder
    for piece in session.pieces(session.roots, "searching the roots"):
        for address in session.engine.search(piece, low, high):
            at = address - piece.address
            yield Reference(address, int.from_bytes(piece.data[at : at + word], order), True)


def _explain_dead(session: Session, address: int) -> str:
    """Return why the word at this address keeps nothing alive; "" if the kind of memory shows the
    reason."""
    return "a slot beyond its container's length" if range_at(session.stale_slots, address) is not None else session.unread.what(address)


def is_live(session: Session, address: int, value: int) -> bool:
    """Whether the word at `address` is a live reference. It must be in a root or in a block in use.
    It must not be in a dead part of a managed heap or in a slot beyond its container's length. It
    must not be a reference that a runtime stores only for its own use."""
    if range_at(session.no_references, address) is not None or range_at(session.stale_slots, address) is not None:
        return False
    blocks = session.directory.blocks
    index = blocks.find(address)
    if index < 0:
        return _is_root(session, address)
    return blocks.state(index) == State.IN_USE and not session.graphs.is_excluded(index, address, value)


def _is_root(session: Session, address: int) -> bool:
    """Return whether the word at `address` is root memory. The code of the threads is read only if
    the word may be stale."""
    if range_at(session.root_memory, address) is None:
        return False
    all_dead = session.doubtful.all_dead
    return (all_dead is not None and not all_dead.what(address)) or range_at(session.roots, address) is not None
