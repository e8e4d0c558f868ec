"""Bulk reads of container nodes, from a process in which any byte may be wrong."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import islice
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.audit.containers import Container
from findleaks.engine.links import LinkWalk
from findleaks.engine.reference.links import PureLinkWalk
from findleaks.engine.reference.trees import PureTreeWalk
from findleaks.engine.shared import CYCLE, MISALIGNED, TOO_LONG, UNREADABLE, list_problem
from findleaks.engine.terms import State
from findleaks.engine.trees import TreeLayout, TreeWalk
from findleaks.errors import UnreadableMemory
from findleaks.session import Session
from findleaks.target.base import Piece
from findleaks.target.ranges import merge_ranges

SLICE = 100_000  # nodes between two checks for Ctrl-C
FEW = 20_000  # a live process's nodes are read one by one up to this number, else with its heaps
SMALL = 4096  # bytes of a block whose words are all looked at before it is tried as a container
MAX_LIVE = 4 << 30  # most bytes of live heaps copied; in larger ones, nodes are read one by one


class Place(NamedTuple):
    """What a word points to: byte `offset` of block number `block`."""

    block: int
    start: int  # of the block
    size: int  # of the block, usable
    offset: int


class Buckets(NamedTuple):
    """The non-zero words of the array of pointers [start, end)."""

    start: int
    end: int
    heads: array[int]
    sample: list[Optional[Place]]  # what some of the heads point to, evenly spread
    mixed: bool  # some words are neither 0 nor point to blocks


class Reader(Memory):
    """Memory and blocks of one session. Raises only Interrupted; what is missing is None."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.target)
        self.session = session
        self.engine = session.engine
        self.blocks = session.directory.blocks
        self.most = len(self.blocks)
        remainders = (allocator.remainder_words for allocator in session.directory.allocators)
        # Bytes by which the sizes of blocks for the same request may differ.
        self.slack = max(remainders, default=2) * self.size
        heaps = session.heap_ranges()
        self.heaps = merge_ranges(heaps)
        # No block is below `low` or above `high`.
        self.low = min((heap.start for heap in heaps), default=0)
        self.high = max((heap.end for heap in heaps), default=0)
        self._code = "Q" if self.size == 8 else "I"
        self._swap = session.target.arch.byteorder != sys.byteorder
        # What was recognised, by what it was taken for ("head", "word", "block") and the address.
        self.recognised: dict[tuple[str, int], Optional[Container]] = {}
        self.last_buckets: Optional[Buckets] = None  # see hashes.buckets_in

    def block(self, index: int) -> Place:
        """The start of the block with this index."""
        return Place(index, self.blocks.address(index), self.blocks.size(index), 0)

    def points_out(self, place: Place) -> bool:
        """Whether any word of the block may point to a block; True for a large one, unread."""
        if place.size > SMALL:
            return True
        words = self.words(place.start, place.size // self.size)
        return words is None or any(self.low <= word < self.high for word in words)

    def zeros(self, start: int, end: int) -> bool:
        """Whether [start, end) is all zeros and at most 64 KiB."""
        if start >= end:
            return start == end
        words = self.words(start, (end - start) // self.size) if end - start <= 1 << 16 else None
        return words is not None and not any(words)

    def place(self, value: int) -> Optional[Place]:
        """The block in use that `value` points into."""
        found = self.blocks.lookup(value)
        return Place(found[0], found[1], found[2], value - found[1]) if found is not None and found[3] == State.IN_USE else None

    def places(self, values: Iterable[int]) -> list[Place]:
        """The blocks in use that these values point into."""
        return [place for place in map(self.place, values) if place is not None]

    def first_place(self, values: Iterable[int]) -> list[Place]:
        """The first of `places`, if there is one."""
        return list(islice(filter(None, map(self.place, values)), 1))

    def alike(self, one: Place, other: Optional[Place]) -> bool:
        """Whether `other` could be a node like `one`: at the same offset of another block of its
        size, but for what the allocator rounded up."""
        return other is not None and other.offset == one.offset and other.block != one.block and abs(other.size - one.size) <= self.slack

    def alike_or_same(self, one: Place, other: Optional[Place]) -> bool:
        return other is not None and ((other.block, other.offset) == (one.block, one.offset) or self.alike(one, other))

    def columns(self, places: Sequence[int], offset: int, count: int) -> tuple[list[array[int]], list[int]]:
        """Columns of the `count` words at `offset` from each place, and the numbers of the places
        that cannot be read: their words are 0."""
        mask = self.target.arch.mask
        wanted = array("Q", [(place + offset) & mask for place in places]) if offset else places
        data, missing = self._gather(wanted, count * self.size)
        words: array[int] = array(self._code)
        words.frombytes(bytes(data))
        if self._swap:
            words.byteswap()
        return [words[column::count] for column in range(count)], missing

    def _gather(self, addresses: Sequence[int], size: int) -> tuple[bytearray, list[int]]:
        if self.target.live and (len(addresses) <= FEW or not self._fits):
            return self._one_by_one(addresses, size)
        return self.engine.gather(self._pieces, addresses, size)

    def _one_by_one(self, addresses: Sequence[int], size: int) -> tuple[bytearray, list[int]]:
        data, missing = bytearray(), []
        for number, address in enumerate(addresses):
            if number % SLICE == SLICE - 1:
                self.progress()
            try:
                data += self.target.read(address, size)
            except UnreadableMemory:
                data += bytes(size)
                missing.append(number)
        return data, missing

    @cached_property
    def _fits(self) -> bool:
        return sum(end - start for start, end in self.session.heap_ranges()) <= MAX_LIVE

    @cached_property
    def _pieces(self) -> tuple[Piece, ...]:
        """All heaps. In a core these are parts of the mapped file and need no copy."""
        return tuple(self.session.pieces(self.session.heap_ranges(), "reading containers", whole=True))

    def follow(self, head: int, offset: int, most: int) -> tuple[array[int], str]:
        """Places on the list from `head`, linked at `offset`, up to a null link; and "" or why it
        ended before. `most`, which must be finite, ends a list that runs into itself."""
        nodes: array[int] = array("Q")
        if self.target.live:
            nodes, head, problem = self._stepwise(head, offset, min(most, FEW))
            if problem or not head or not self._fits or len(nodes) >= most:
                return nodes, problem or (list_problem(TOO_LONG, head, len(nodes)) if head else "")
        while head:
            self.progress()
            limit = min(SLICE, most - len(nodes))
            part, problem = self.engine.follow(self._pieces, head, offset, False, limit)
            nodes.extend(part)
            if len(part) < SLICE or len(nodes) >= most:
                return nodes, problem
            head = self.word(part[-1] + offset) or 0
        return nodes, ""

    def _stepwise(self, node: int, offset: int, most: int) -> tuple[array[int], int, str]:
        """The first `most` places, the one after them, and "" or why there is none."""
        nodes: array[int] = array("Q")
        seen: set[int] = set()
        while node and len(nodes) < most:
            after = self.word(node + offset)
            if node in seen:
                return nodes, 0, list_problem(CYCLE, node, len(nodes))
            if node % self.size or after is None:
                return nodes, 0, list_problem(MISALIGNED if node % self.size else UNREADABLE, node, len(nodes))
            seen.add(node)
            nodes.append(node)
            node = after
        return nodes, node, ""

    def tree(self, root: int, header: int, layout: TreeLayout, about: int) -> tuple[array[int], str]:
        """Nodes of a search tree (engine/trees.py). `about`: the expected number."""
        most = self.most + 1
        if self.target.live and (about <= FEW or not self._fits):
            walk: TreeWalk = PureTreeWalk(self.words, root, header, layout, most, self.arch)
        else:
            walk = self.engine.walk_tree(self._pieces, root, header, layout, most)
        while not walk.step(SLICE):
            self.progress()
        return walk.result()

    def linked(self, heads: Sequence[int], offsets: Sequence[int], most: int, deepest: int = 0) -> Optional[array[int]]:
        """All nodes from `heads` along the links at `offsets`, by level. None unless each is met
        once and readable, with at most `most` nodes and `deepest` levels (0: any number)."""
        if self.target.live:
            few = most if not self._fits else min(most, FEW)
            walk: LinkWalk = PureLinkWalk(self.words, heads, offsets, few, deepest, self.target.arch.mask)
            nodes, sound = self._walked(walk)
            if sound or len(nodes) < few or few == most:
                return nodes if sound else None
        nodes, sound = self._walked(self.engine.walk_links(self._pieces, heads, offsets, most, deepest))
        return nodes if sound else None

    def _walked(self, walk: LinkWalk) -> tuple[array[int], bool]:
        while not walk.step(SLICE if not self.target.live else SLICE // 50):
            self.progress()
        return walk.result()

    def among(self, nodes: array[int], values: set[int]) -> set[int]:
        """Those of the values that are nodes of a container."""
        found: set[int] = set()
        for first in range(0, len(nodes) if values else 0, SLICE):
            self.progress()
            found |= values.intersection(nodes[first : first + SLICE])
        return found

    def progress(self) -> None:
        self.session.report_progress("walking containers", 0.0)
