"""Walk links, in pure Python."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from findleaks.engine.links import RUN
from findleaks.engine.reference.trees import Read


class PureLinkWalk:
    """A walk; see links.LinkWalk. `read` returns the words of nodes; `mask` is the highest address;
    `tags` are bits of a link that are not part of the address."""

    def __init__(self, read: Read, heads: Sequence[int], offsets: Sequence[int], most: int, deepest: int, mask: int, tags: int = 0) -> None:
        self._tags = tags
        self._read, self._offsets, self._most, self._deepest, self._mask = read, offsets, most, deepest, mask
        self._nodes: array[int] = array("Q")
        self._met: set[int] = set()
        self._sound = all(self._meet(head) for head in heads)
        self._steps = self._walk()

    def step(self, budget: int) -> bool:
        if self._sound:
            for _ in range(max(1, budget)):
                if not next(self._steps, False):
                    return True
        return not self._sound

    def result(self) -> tuple[array[int], bool]:
        return self._nodes, self._sound

    def _walk(self) -> Iterator[bool]:
        """Follow the links. Yield after each one, so that the caller can stop within its budget."""
        nodes = self._nodes
        start, depth = 0, 0
        while start < len(nodes):
            end, depth = len(nodes), depth + 1
            if self._deepest and depth > self._deepest:
                self._sound = False
                return
            for first in range(start, end, RUN):
                for offset in self._offsets:
                    for at in range(first, min(first + RUN, end)):
                        words = self._read((nodes[at] + offset) & self._mask, 1)
                        self._sound = words is not None and self._meet(words[0] & ~self._tags)
                        if not self._sound:
                            return
                        yield True
            start = end

    def _meet(self, node: int) -> bool:
        """Add a node, unless it is 0. Return False if it was visited before, or if there are too
        many nodes."""
        if node and (node in self._met or len(self._nodes) >= self._most):
            return False
        if node:
            self._met.add(node)
            self._nodes.append(node)
        return True
