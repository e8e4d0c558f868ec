"""The lists of thread caches: a freed block's first word names the next.

See internal/linked_list.h.
"""

from __future__ import annotations

from collections.abc import Sequence

from findleaks.allocators.base import Problem
from findleaks.allocators.bulk import follow
from findleaks.allocators.tcmalloc_google.caches import Held, ThreadHeap
from findleaks.allocators.tcmalloc_google.locate import Place
from findleaks.engine.contract import Engine
from findleaks.target.base import Range, Target
from findleaks.target.ranges import inside

LONGEST = 1 << 22  # blocks on a list that are followed, at most
MAX_PROBLEMS = 20


class Lists:
    """Follows the lists; `held` is what they hold."""

    def __init__(self, target: Target, engine: Engine, place: Place, heaps: Sequence[Range]) -> None:
        self._target = target
        self._engine = engine
        self._place = place
        self._heaps = heaps
        self.held: list[Held] = []

    def follow(self, threads: Sequence[ThreadHeap], problems: list[Problem]) -> None:
        """Follow the lists of these caches.

        Where a list is longer or shorter than its cache says, the blocks that were found count.
        """
        lists = [(heap, *one) for heap in threads for one in heap.lists]
        longest = min(max((length for *_, length in lists), default=0) + 64, LONGEST)
        heads, expected = [head for _, _, head, _ in lists], sum(length for *_, length in lists)
        followed = follow(self._target, self._engine, self._heaps, heads, longest, expected)
        ended, first, differing = dict(followed.problems), 0, 0
        for index, ((heap, number, head, length), last) in enumerate(zip(lists, followed.ends)):
            nodes = followed.nodes[first:last]
            first = last
            why = ended.get(index, "")
            outside = next((at for at, node in enumerate(nodes) if not inside(self._heaps, node)), -1)
            if outside >= 0:
                why, nodes = f"it goes on to {nodes[outside]:#x}, which is no block", nodes[:outside]
            self.held.append(Held("thread", heap.tid, heap.address, number, nodes))
            if why or len(nodes) != length:
                differing += 1
                if differing <= MAX_PROBLEMS:
                    whose = f"thread {heap.tid}'s cache" if heap.tid else "a thread cache"
                    text = f"{whose}, blocks of {self._place.sizes[number]}: {len(nodes):,} on the list, {length:,} by its count"
                    wrong = bool(why) or abs(len(nodes) - length) > 1
                    problems.append(Problem(nodes[-1] if nodes and why else head, f"{text}; {why}" if why else text, wrong))
        if differing > MAX_PROBLEMS:
            problems.append(Problem(self._place.central, f"and {differing - MAX_PROBLEMS:,} more lists that differ from their counts"))
