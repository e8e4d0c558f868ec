"""Find the groups of goroutines that wait, which `verdict` reports."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from typing import Optional

from findleaks.allocators.bulk import read_words
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine, Graph
from findleaks.runtimes.base import UserThread
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.go.deadlocks import LockHolder, describe_holders, find_lock_holders, waits_for_lock
from findleaks.runtimes.go.engine import NONE
from findleaks.runtimes.go.goroutine_findings import FULL, SEMAPHORE, TIMED, TIMES, describe_goroutines, large_groups, with_companions
from findleaks.runtimes.go.goroutines import Goroutines
from findleaks.runtimes.go.maps import heads
from findleaks.runtimes.go.object_graph import GoGraph
from findleaks.runtimes.go.object_totals import Retained
from findleaks.runtimes.go.objects import HeapObjects
from findleaks.runtimes.go.types import Types
from findleaks.runtimes.go.waits import WaitReader, object_indices
from findleaks.runtimes.user_threads import group_user_threads
from findleaks.value_classes import NamedTuple


class GoHeap(NamedTuple):
    """What is known about the objects of Go's heap."""

    memory: Memory
    engine: Engine
    types: Types
    objects: HeapObjects
    graph: Graph
    object_graph: GoGraph
    goroutines: Goroutines


def find_waiting_goroutines(
    heap: Optional[GoHeap], threads: Sequence[UserThread], blocked: Optional[frozenset[int]], used: int
) -> list[Finding]:
    """Return findings about groups of goroutines. `heap`: None if it cannot be read. `blocked`:
    goroutines that are blocked for good; None if unknown. `used`: bytes of Go's heap in use."""
    every = group_user_threads(one for one in threads if not one.is_internal)
    holders = _find_lock_holders(heap, threads) if heap is not None else {}
    groups = large_groups(every, used, blocked or frozenset(), frozenset(number for number, one in holders.items() if one.cycle))
    members = [with_companions(group, every) for group in groups]
    retained: Sequence[Optional[Retained]] = [None] * len(groups)
    if groups and heap is not None:
        retained = heap.objects.retained_by(heap.graph, members, heap.object_graph.absent)
    channels = [_channel_of(heap, group.first) for group in groups]
    numbered = {one.number: one for one in threads}
    machine = heap.memory.arch.name if heap is not None else ""
    locks = [describe_holders(group.threads, holders, numbered, machine) for group in groups]
    columns = zip(groups, members, retained, channels, locks)
    return [describe_goroutines(group, of, one, blocked, to, lock) for group, of, one, to, lock in columns]


def _find_lock_holders(heap: GoHeap, threads: Sequence[UserThread]) -> dict[int, LockHolder]:
    waiting = [one for one in threads if waits_for_lock(one)]
    if not waiting:
        return {}
    waits = WaitReader(heap.memory, heap.engine, heap.types, heap.objects).read(waiting, heap.goroutines.structures)
    return find_lock_holders(heap.memory.target, heap.engine, waits, threads, heap.objects, heap.goroutines, heap.object_graph)


def _channel_of(heap: Optional[GoHeap], one: UserThread) -> str:
    """Return the type of the channel from which a goroutine receives, or the kind of its wait for
    channels (TIMED, SEMAPHORE, FULL); "" if nothing is known."""
    if one.reason not in ("chan receive", "chan send", "select") or heap is None:
        return ""
    waits = WaitReader(heap.memory, heap.engine, heap.types, heap.objects).read([one], heap.goroutines.structures)
    indices = [index for wait in waits.values() for index in object_indices(heap.objects, wait) or ()]
    if one.reason == "select":
        return TIMED if any(_is_timed(heap, index) for index in indices) else ""
    if len(indices) != 1:
        return ""
    if one.reason == "chan send":
        return _describe_buffer(heap, heap.objects.blocks.address(indices[0]))
    title = heap.objects.title_at(indices[0])
    return title if title != TIMES or _is_timed(heap, indices[0]) else ""


def _is_timed(heap: GoHeap, index: int) -> bool:
    """Return whether a channel is that of a ticker or timer. Before Go 1.23, it can be recognised
    only by its buffer, which has room for one time. Since then, the channel refers to the timer.
    With GODEBUG=asynctimerchan=1 (the default for modules of older versions), only the timer refers
    to the channel (time/sleep.go: syncTimer; runtime/time.go: timeTimer.c)."""
    structure = heap.types.find("runtime.hchan") if heap.objects.title_at(index) == TIMES else None
    channel = heap.objects.blocks.address(index)
    words = heap.memory.words(channel, heap.objects.blocks.size(index) // 8)
    if structure is None or words is None:
        return False
    timer = heap.types.offset(structure, "timer")
    if timer is None or words[timer // 8]:
        return timer is not None or words[1] == 1
    return words[1] == 1 and channel in _list_timer_channels(heap)


def _list_timer_channels(heap: GoHeap) -> Collection[int]:
    """Return the channels to which timers of the package time refer."""
    structure = heap.types.find("runtime.timeTimer")
    value = heap.objects.names.value(structure) if structure is not None else NONE
    timers = array("Q", heads(heap.objects.blocks, heap.objects.types, (value,)) if value != NONE else ())
    return frozenset(read_words(heap.memory.target, heap.engine, timers))


def _describe_buffer(heap: GoHeap, channel: int) -> str:
    """Return the kind of the wait of a goroutine that sends to a channel."""
    structure = heap.types.find("runtime.hchan")
    offsets = [heap.types.offset(structure, name) for name in ("qcount", "dataqsiz", "elemsize")] if structure is not None else []
    data = heap.memory.words(channel, 4)
    if data is None or offsets != [0, 8, 24] or not data[1] or data[0] != data[1]:
        return ""
    return SEMAPHORE if not data[3] & 0xFFFF else FULL
