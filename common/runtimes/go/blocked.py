"""Find goroutines that are blocked for good: they wait for channels that nothing else can reach.

Objects are marked from global variables, and from the goroutines that may continue: all that do not
wait for a channel. A goroutine whose channel is marked may continue, too, so what it reaches is
marked next. The goroutines that are left can never continue. The runtime's own list of goroutines
does not count, nor do the entries of a channel's queues, so the references of g structures are
ignored, except those of goroutines that may continue.

Every other word counts as a reference, also stale ones, so a goroutine may be taken for one that
may continue, but not the other way around.

Sources: Go 1.18 to 1.26, src/runtime: runtime2.go (g.waiting, sudog.c, sudog.waitlink, since 1.26
maybeTraceableChan: a pointer that may be 0, and its address), chan.go and select.go."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Graph
from findleaks.engine.dominators import IGNORED, NO_ROOT
from findleaks.runtimes.base import UserThread
from findleaks.runtimes.go.objects import HeapObjects, live_stacks
from findleaks.runtimes.go.types import Types
from findleaks.runtimes.object_graph import run_in_slices

_CHANNELS = ("chan send", "chan receive", "select")
_NEVER = ("chan send (nil chan)", "chan receive (nil chan)", "select (no cases)")
_LEAST = 10  # goroutines for which the search is worth its time
_MOST_ROUNDS, _MOST_CHANNELS = 16, 1 << 16


def find_blocked(
    memory: Memory, types: Types, objects: HeapObjects, graph: Graph, structures: Mapping[int, int], every: Iterable[int]
) -> Optional[frozenset[int]]:
    """Return the numbers of these goroutines; None if they are unknown. `structures`: the addresses
    of the goroutines' g structures, by number. `every`: those of all g structures, unused ones
    included."""
    waiting = _Waiting(memory, types)
    threads = objects.threads()
    channels = {one.number: waiting.channels(structures[one.number]) for one in threads if _waits(one) and one.number in structures}
    never = frozenset(one.number for one in threads if one.reason in _NEVER)
    if not waiting.is_known or len(channels) + len(never) < _LEAST:
        return never if waiting.is_known else None
    found = {number: objects.blocks.find_all(addresses)[0] for number, addresses in channels.items()}
    count = len(objects.blocks)
    blocked = {number: indices for number, indices in found.items() if len(indices) and all(index < count for index in indices)}
    merged = array("I", [NO_ROOT]) * count
    for index in objects.blocks.find_all(array("Q", every))[0]:
        if index < count:
            merged[index] = IGNORED
    for _ in range(_MOST_ROUNDS):
        live = [one for one in threads if one.number not in blocked and one.number not in never]
        tree = graph.dominators(1)
        tree.merge_into_roots(merged)
        for words in objects.root_words():
            tree.root_words(words, 0)
        for piece in objects.pieces([*live_stacks(live), *objects.finalized]):
            tree.root_words(memory.arch.words(piece.data), 0)
        for one in live:
            tree.root_words(memory.words(structures.get(one.number, 0), waiting.size // 8) or (), 0)
        run_in_slices(tree.compute, memory.target)
        reached = [number for number, indices in blocked.items() if any(tree.idom(index) is not None for index in indices)]
        if not reached:
            return frozenset(blocked) | never
        for number in reached:
            del blocked[number]
    return None


def _waits(one: UserThread) -> bool:
    return one.state == "waiting" and one.reason in _CHANNELS and not one.is_internal


class _Waiting:
    """Reads what a goroutine waits for. `size`: bytes of a g."""

    def __init__(self, memory: Memory, types: Types) -> None:
        self._memory = memory
        goroutine, record = types.find("runtime.g"), types.find("runtime.sudog")
        one = types.at(goroutine) if goroutine is not None else None
        self.size = one.size if one is not None else 0
        self._first = types.offset(goroutine, "waiting") if goroutine is not None else None
        self._channel, self._next = (types.offset(record, name) if record is not None else None for name in ("c", "waitlink"))

    @property
    def is_known(self) -> bool:
        return bool(self.size) and None not in (self._first, self._channel, self._next)

    def channels(self, structure: int) -> Sequence[int]:
        """Return the channels for which a goroutine waits; () if they are unknown."""
        if self._first is None or self._channel is None or self._next is None:
            return ()
        found: list[int] = []
        record = self._memory.word(structure + self._first)
        while record and len(found) < _MOST_CHANNELS:
            pair = self._memory.words(record + self._channel, 2)
            channel = (pair[0] or pair[1]) if pair is not None else 0
            if not channel:
                return ()
            found.append(channel)
            record = self._memory.word(record + self._next)
        return found
