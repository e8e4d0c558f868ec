"""A thread is inside malloc, and one of its registers has the address of a chunk's header. The code and the symbols of
the libc are not in the core."""

from __future__ import annotations

import fake
import ptmalloc

from findleaks.engine.terms import Kind
from findleaks.session import Session

HEADER = 16
NO_CALL = (1 << 64) - 1


def find_kinds(inside: bool, offset: int, crashed: bool = False) -> list[Kind]:
    """Return the kinds of the main heap's blocks in use. A register of a thread has the address `offset` bytes before
    the first block. `inside`: the thread is in libc."""
    image = ptmalloc.of_release((2, 31))
    target = image.build()
    used = [block for block in image.blocks["used"] if block < image.places.heap + ptmalloc.SIZE]
    pc = image.places.data + 0x3000 if inside else 0x1234
    registers = {"rax": used[0] - offset, "rip": pc, "orig_rax": NO_CALL}
    target._threads = [fake.thread(7, image.places.tls + 0x100, registers, image.places.pointer)]
    target.crashed = 7 if crashed else 0
    session = Session(target)
    graph, blocks = session.graph(), session.directory.blocks
    return [graph.kind(blocks.find(block)) for block in used]


def test_a_header_keeps_its_block_inside_malloc() -> None:
    assert find_kinds(True, HEADER) == [Kind.REACHABLE, Kind.DEFINITE]


def test_a_header_outside_of_malloc_does_not() -> None:
    assert find_kinds(False, HEADER) == [Kind.DEFINITE, Kind.DEFINITE]
    assert find_kinds(False, 0) == [Kind.REACHABLE, Kind.DEFINITE]


def test_a_header_in_a_crashed_thread_does_not() -> None:
    assert find_kinds(True, HEADER, crashed=True) == [Kind.DEFINITE, Kind.DEFINITE]


def test_another_distance_is_no_header() -> None:
    assert find_kinds(True, 2 * HEADER) == [Kind.DEFINITE, Kind.DEFINITE]
