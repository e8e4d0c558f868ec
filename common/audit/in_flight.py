"""Describe threads that were stopped inside an allocator: the blocks that they were allocating or
freeing (in flight), and the metadata that they were changing."""

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


def find_in_flight(session: Session, changed: Sequence[tuple[Problem, ThreadInside]] = ()) -> InFlight:
    """Return the blocks that threads inside an allocator hold, which count as reachable. `changed`:
    further places that these threads were changing."""
    blocks, places = session.directory.blocks, [*session.directory.half_changed, *changed]
    sizes = [blocks.size(blocks.find(address)) for address in session.in_flight]
    return InFlight(
        len(sizes),
        sum(sizes),
        threads=[_to_stopped_thread(one) for one in session.inside],
        half_changed=[_to_half_changed(problem, one) for problem, one in places],
        reads=session.reads,
    )


def _to_stopped_thread(one: ThreadInside) -> StoppedThread:
    # Few processes have a thread inside an allocator, so this is imported here.
    from findleaks.results.note_parts import StoppedThread

    return StoppedThread(one.thread, one.where, one.unwound)


def _to_half_changed(problem: Problem, one: ThreadInside) -> HalfChanged:
    from findleaks.results.note_parts import HalfChanged

    return HalfChanged(one.thread, problem.what)


def format_in_flight(found: InFlight) -> str:
    """Return "2 threads were stopped inside malloc or free: 3 blocks in flight count as
    reachable"."""
    threads, blocks, changed = len(found.threads), found.blocks, len(found.half_changed)
    if not threads:
        return ""
    whose = f"{number(threads)} threads were" if threads > 1 else "1 thread was"
    seems = "" if all(one.unwound for one in found.threads) else " (probably: not all frames are known)"
    held = f"{number(blocks)} block{'' if blocks == 1 else 's'} in flight count{'s' if blocks == 1 else ''} as reachable"
    places = f"{changed} places of the heap that were" if changed > 1 else "1 place of the heap that was"
    rest = f"; {places} being changed {'are' if changed > 1 else 'is'} assumed to be intact" if changed else ""
    rest += f"; read {found.reads} times" if found.reads > 1 else ""
    return f"{whose} stopped inside malloc or free{seems}: {held}{rest}"


def describe_in_flight(session: Session, address: int) -> str:
    """Return "in flight: thread 17 is in libc.so.6 (malloc)"; "" if no such thread holds the block
    at this address."""
    one = session.in_flight.get(address)
    return f"in flight: thread {one.thread} is in {one.where}" if one is not None else ""
