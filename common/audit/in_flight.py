"""Threads stopped inside an allocator: blocks in flight, and data that may look wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from findleaks.formatting import number
from findleaks.results.notes import InFlight

if TYPE_CHECKING:
    from findleaks.allocators.base import Problem
    from findleaks.allocators.in_flight import ThreadInside
    from findleaks.results.note_parts import HalfChanged, StoppedThread
    from findleaks.session import Session


def in_flight(session: Session, changed: Sequence[tuple[Problem, ThreadInside]] = ()) -> InFlight:
    """Blocks held by threads inside an allocator, which count as reachable. `changed`: further
    places that these threads were changing."""
    blocks, places = session.directory.blocks, [*session.directory.half_changed, *changed]
    sizes = [blocks.size(blocks.find(address)) for address in session.in_flight]
    return InFlight(
        len(sizes),
        sum(sizes),
        threads=[_stopped(one) for one in session.inside],
        half_changed=[_half_changed(problem, one) for problem, one in places],
        reads=session.reads,
    )


def _stopped(one: ThreadInside) -> StoppedThread:
    from findleaks.results.note_parts import StoppedThread  # few processes have such threads

    return StoppedThread(one.thread, one.where, one.unwound)


def _half_changed(problem: Problem, one: ThreadInside) -> HalfChanged:
    from findleaks.results.note_parts import HalfChanged

    return HalfChanged(one.thread, problem.what)


def in_flight_line(found: InFlight) -> str:
    """ "2 threads were stopped inside malloc or free: 3 blocks in flight count as reachable" """
    threads, blocks, changed = len(found.threads), found.blocks, len(found.half_changed)
    if not threads:
        return ""
    whose = f"{number(threads)} threads were" if threads > 1 else "1 thread was"
    seems = "" if all(one.unwound for one in found.threads) else " (or so it seems: not all frames are known)"
    held = f"{number(blocks)} block{'' if blocks == 1 else 's'} in flight count{'s' if blocks == 1 else ''} as reachable"
    places = f"{changed} places of the heap that were" if changed > 1 else "1 place of the heap that was"
    rest = f"; {places} just being changed {'are' if changed > 1 else 'is'} taken for sound" if changed else ""
    rest += f"; read {found.reads} times" if found.reads > 1 else ""
    return f"{whose} stopped inside malloc or free{seems}: {held}{rest}"


def holder(session: Session, address: int) -> str:
    """ "in flight: thread 17 is in libc.so.6 (malloc)"; "" if no such thread holds the block."""
    one = session.in_flight.get(address)
    return f"in flight: thread {one.thread} is in {one.where}" if one is not None else ""
