"""Read the nodes of containers in bulk, from a process in which any byte may be wrong."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import islice
from typing import Optional

from findleaks.allocators.images import find_modules
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
from findleaks.value_classes import NamedTuple

SLICE = 100_000  # nodes between two checks for Ctrl-C
# Up to this many nodes of a live process are read one by one; for more, its heaps are copied.
FEW = 20_000
# SMALL: blocks up to this many bytes are tried as a container only if they contain a pointer
SMALL = 4096
# Maximum number of bytes of live heaps that are copied; for larger ones, nodes are read one by one.
MAX_LIVE = 4 << 30
GLIB = ("libglib-2.0",)  # beginning of the name of GLib's file


class BlockPlace(NamedTuple):
    """The address that a word contains: byte `offset` of the block with index `block`."""

    block: int
    start: int  # address of the block
    size: int  # usable bytes of the block
    offset: int


class PointerBuckets(NamedTuple):
    """The words of the array of pointers [start, end) that are not zero."""

    start: int
    end: int
    heads: array[int]
    sample: list[Optional[BlockPlace]]  # targets of some of the heads, evenly spread
    mixed: bool  # some words are neither 0 nor point to blocks


class ContainerReader(Memory):
    """Reads memory and blocks of one session.
    Methods raise only Interrupted. For memory that cannot be read, they return None."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.target)
        self.session = session
        self.engine = session.engine
        self.blocks = session.directory.blocks
        self.most = len(self.blocks)
        remainders = (allocator.remainder_words for allocator in session.directory.allocators)
        # Bytes by which the sizes of blocks for equal requests may differ.
        self.slack = max(remainders, default=2) * self.size
        heaps = session.heap_ranges()
        self.heaps = merge_ranges(heaps)
        # No block is below `low` or above `high`.
        self.low = min((heap.start for heap in heaps), default=0)
        self.high = max((heap.end for heap in heaps), default=0)
        self._code = "Q" if self.size == 8 else "I"
        self._swap = session.target.arch.byteorder != sys.byteorder
        # Recognised containers. The key is the kind of trial ("head", "word", "block") and the
        # address.
        self.recognised: dict[tuple[str, int], Optional[Container]] = {}
        self.last_buckets: Optional[PointerBuckets] = None  # see hashes.read_buckets

    @cached_property
    def has_glib(self) -> bool:
        """Whether the process has loaded GLib, and its containers may exist."""
        return self.size == 8 and bool(find_modules(self.target, GLIB))

    def block(self, index: int) -> BlockPlace:
        """Return the place of the first byte of the block with this index."""
        return BlockPlace(index, self.blocks.address(index), self.blocks.size(index), 0)

    def has_pointers(self, place: BlockPlace) -> bool:
        """Whether a word of the block may point to a block. A large block is not read; the result
        is then True."""
        if place.size > SMALL:
            return True
        words = self.words(place.start, place.size // self.size)
        return words is None or any(self.low <= word < self.high for word in words)

    def is_zero(self, start: int, end: int) -> bool:
        """Whether [start, end) contains only zeros and is not longer than 64 KiB."""
        if start >= end:
            return start == end
        words = self.words(start, (end - start) // self.size) if end - start <= 1 << 16 else None
        return words is not None and not any(words)

    def place(self, value: int) -> Optional[BlockPlace]:
        """Return the block in use that `value` points into, and the offset; None if `value` points
        into no such block."""
        found = self.blocks.lookup(value)
        return BlockPlace(found[0], found[1], found[2], value - found[1]) if found is not None and found[3] == State.IN_USE else None

    def places(self, values: Iterable[int]) -> list[BlockPlace]:
        """Return the blocks in use that these values point into."""
        return [place for place in map(self.place, values) if place is not None]

    def first_place(self, values: Iterable[int]) -> list[BlockPlace]:
        """Return a list with the first place of `places`, or an empty list."""
        return list(islice(filter(None, map(self.place, values)), 1))

    def is_alike(self, one: BlockPlace, other: Optional[BlockPlace]) -> bool:
        """Whether `other` can be a node like `one`: it has the same offset in another block of the
        same size.
        Sizes may differ by the number of bytes that the allocator adds when it rounds up."""
        return other is not None and other.offset == one.offset and other.block != one.block and abs(other.size - one.size) <= self.slack

    def is_alike_or_same(self, one: BlockPlace, other: Optional[BlockPlace]) -> bool:
        return other is not None and ((other.block, other.offset) == (one.block, one.offset) or self.is_alike(one, other))

    def columns(self, places: Sequence[int], offset: int, count: int) -> tuple[list[array[int]], list[int]]:
        """Read `count` words at `offset` from each place.
        Returns one column for each word, and the indices of the places that cannot be read. The
        words of these places are 0."""
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
            return self._read_one_by_one(addresses, size)
        return self.engine.gather(self._pieces, addresses, size)

    def _read_one_by_one(self, addresses: Sequence[int], size: int) -> tuple[bytearray, list[int]]:
        data, missing = bytearray(), []
        for number, address in enumerate(addresses):
            if number % SLICE == SLICE - 1:
                self.report_progress()
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

    def follow_list(self, head: int, offset: int, most: int) -> tuple[array[int], str]:
        """Follow the list from `head`, whose links are at `offset`, to a null link.
        Returns the addresses of the links in the nodes, and "" or the reason why the list ended
        earlier. `most` must be finite, because it ends a list that forms a cycle."""
        nodes: array[int] = array("Q")
        if self.target.live:
            nodes, head, problem = self._follow_stepwise(head, offset, min(most, FEW))
            if problem or not head or not self._fits or len(nodes) >= most:
                return nodes, problem or (list_problem(TOO_LONG, head, len(nodes)) if head else "")
        while head:
            self.report_progress()
            limit = min(SLICE, most - len(nodes))
            part, problem = self.engine.follow(self._pieces, head, offset, False, limit)
            nodes.extend(part)
            if len(part) < SLICE or len(nodes) >= most:
                return nodes, problem
            head = self.word(part[-1] + offset) or 0
        return nodes, ""

    def _follow_stepwise(self, node: int, offset: int, most: int) -> tuple[array[int], int, str]:
        """Read at most `most` nodes one by one. Returns their places, the next place, and "" or the
        reason why no next place exists."""
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

    def walk_tree(self, root: int, header: int, layout: TreeLayout, about: int) -> tuple[array[int], str]:
        """Return the nodes of a search tree (engine/trees.py), and a description of the damage or
        "".
        `about`: the expected number of nodes."""
        most = self.most + 1
        if self.target.live and (about <= FEW or not self._fits):
            walk: TreeWalk = PureTreeWalk(self.words, root, header, layout, most, self.arch)
        else:
            walk = self.engine.walk_tree(self._pieces, root, header, layout, most)
        while not walk.step(SLICE):
            self.report_progress()
        return walk.result()

    def walk_links(self, heads: Sequence[int], offsets: Sequence[int], most: int, deepest: int = 0, tags: int = 0) -> Optional[array[int]]:
        """Return all nodes that are reachable from `heads` along the links at `offsets`, by level.
        Returns None if a node cannot be read or is reached twice, or if there are more than `most`
        nodes or `deepest` levels (0: any number). `tags`: bits of a link that are not part of the
        address."""
        if self.target.live:
            few = most if not self._fits else min(most, FEW)
            walk: LinkWalk = PureLinkWalk(self.words, heads, offsets, few, deepest, self.target.arch.mask, tags)
            nodes, sound = self._run_walk(walk)
            if sound or len(nodes) < few or few == most:
                return nodes if sound else None
        nodes, sound = self._run_walk(self.engine.walk_links(self._pieces, heads, offsets, most, deepest, tags))
        return nodes if sound else None

    def _run_walk(self, walk: LinkWalk) -> tuple[array[int], bool]:
        while not walk.step(SLICE if not self.target.live else SLICE // 50):
            self.report_progress()
        return walk.result()

    def select_nodes(self, nodes: array[int], values: set[int]) -> set[int]:
        """Return the `values` that are nodes of a container."""
        found: set[int] = set()
        for first in range(0, len(nodes) if values else 0, SLICE):
            self.report_progress()
            found |= values.intersection(nodes[first : first + SLICE])
        return found

    def report_progress(self) -> None:
        self.session.report_progress("walking containers", 0.0)
