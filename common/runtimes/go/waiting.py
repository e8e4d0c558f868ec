"""Find the groups of goroutines that wait, which `verdict` reports."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
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

# A program sees a timeTimer as a time.Timer or time.Ticker, so its type may be one of these.
_TIMERS = ("runtime.timeTimer", "time.Timer", "time.Ticker")


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
        return TIMED if _is_any_timed(heap, indices) else ""
    if len(indices) != 1:
        return ""
    if one.reason == "chan send":
        return _describe_buffer(heap, heap.objects.blocks.address(indices[0]))
    title = heap.objects.title_at(indices[0])
    return title if title != TIMES or _is_any_timed(heap, indices) else ""


def _is_any_timed(heap: GoHeap, indices: Sequence[int]) -> bool:
    """Return whether one of these channels is that of a ticker or timer. Before Go 1.23, it can be
    recognised only by its buffer, which has room for one time. Since then, the channel refers to
    the timer. With GODEBUG=asynctimerchan=1 (the default for modules of older versions), only the
    timer refers to the channel (time/sleep.go: syncTimer; runtime/time.go: timeTimer.c)."""
    structure = heap.types.find("runtime.hchan")
    of_times = [index for index in indices if heap.objects.title_at(index) == TIMES] if structure is not None else []
    if structure is None or not of_times:
        return False
    offset, buffered = heap.types.offset(structure, "timer"), set[int]()
    for channel in map(heap.objects.blocks.address, of_times):
        words = heap.memory.words(channel, (offset or 8) // 8 + 1)
        if words is not None and offset is not None and words[offset // 8]:
            return True
        if words is not None and words[1] == 1:
            buffered.add(channel)
    return bool(buffered) and (offset is None or not buffered.isdisjoint(_list_timer_channels(heap)))


def _list_timer_channels(heap: GoHeap) -> Iterable[int]:
    """Return the channels of timers and tickers, to which their first words refer."""
    structures = filter(None, map(heap.types.find, _TIMERS))
    values = {heap.objects.names.value(one) for one in structures} - {NONE}
    timers = array("Q", heads(heap.objects.blocks, heap.objects.types, values) if values else ())
    return read_words(heap.memory.target, heap.engine, timers)


def _describe_buffer(heap: GoHeap, channel: int) -> str:
    """Return the kind of the wait of a goroutine that sends to a channel."""
    structure = heap.types.find("runtime.hchan")
    offsets = [heap.types.offset(structure, name) for name in ("qcount", "dataqsiz", "elemsize")] if structure is not None else []
    data = heap.memory.words(channel, 4)
    if data is None or offsets != [0, 8, 24] or not data[1] or data[0] != data[1]:
        return ""
    return SEMAPHORE if not data[3] & 0xFFFF else FULL
