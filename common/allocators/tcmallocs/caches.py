"""Thread caches of both tcmallocs (thread_cache.h), and the lists of blocks in caches.

The first word of a block is its link (linked_list.h)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from findleaks.allocators.base import Problem
from findleaks.allocators.bulk import follow_lists as follow_in_bulk
from findleaks.allocators.memory import Memory
from findleaks.allocators.tcmallocs.page_map import WORD
from findleaks.engine.contract import Engine
from findleaks.errors import UnreadableMemory
from findleaks.target.base import Range, Target
from findleaks.target.ranges import range_at

MAX_CACHES = 1 << 20
# Maximum number of blocks on a thread cache's list. By default, all lists of gperftools together
# have at most 32 MB (common.h, kDefaultOverallThreadCacheSize).
LONGEST = 1 << 22


class FreeList(NamedTuple):
    """A list of freed blocks of size class `number`. `slot` is its slot in a transfer cache, or -1
    in a thread cache."""

    number: int
    head: int
    length: int
    slot: int
    cache: int  # address of the thread cache, or of the slot


@dataclass
class ThreadHeap:
    """A ThreadCache. `size` is its own count of bytes. `tid` is 0 if the thread is unknown."""

    address: int
    tid: int = 0
    size: int = 0
    lists: list[FreeList] = field(default_factory=list)

    @property
    def owner(self) -> str:
        return f"thread {self.tid}'s cache" if self.tid else "a thread cache"


class Held(NamedTuple):
    """The blocks of a size class in a cache. `kind` is "cpu", "transfer", "shard" or "thread".
    `owner` is the CPU, the slot, the shard or the tid."""

    kind: str
    owner: int
    address: int
    number: int
    blocks: array[int]


def thread_lists(words: Sequence[int], sizes: Sequence[int], stride: int, cache: int) -> list[FreeList]:
    """Return the lists of the ThreadCache at `cache` that are not empty. `words` is its memory.
    `stride` is the number of words of a list. A list begins with its head and its length (32
    bits)."""
    found = []
    for number, size in enumerate(sizes):
        head, length = words[number * stride], words[number * stride + 1] & 0xFFFFFFFF
        if size and (head or length):
            found.append(FreeList(number, head, length, -1, cache))
    return found


def linked_caches(memory: Memory, head: int, links: int, is_cache: Callable[[int], bool]) -> tuple[list[int], Optional[int]]:
    """Return two values: the thread caches from `head` up to where links disagree, and the last
    link, which is 0 at the regular end and None if it is unreadable. [] if `head` is not the head
    of a list.

    `links` is the offset of next_ in a cache, which prev_ follows."""
    if memory.word(head + links + WORD) != 0:
        return [], 0
    chain = [head]
    while True:
        following = memory.word(chain[-1] + links)
        if not following or len(chain) == MAX_CACHES:
            return chain, following
        if memory.word(following + links + WORD) != chain[-1] or not is_cache(following):
            return chain, following
        chain.append(following)


class Followed(NamedTuple):
    """A list with the blocks found on it.

    `why` is the reason why the list ended early, or "". `damaged` is the wrong memory, if it is
    known: the link of the last block, or an empty range at the block that occurs twice."""

    list: FreeList
    blocks: array[int]
    why: str
    damaged: Optional[Range]

    def problem(self, size: int, owner: str) -> Optional[Problem]:
        """Return the problem of the list, whose blocks have `size` bytes; None if there is none."""
        one, found, why = self.list, len(self.blocks), self.why
        if found == one.length and not why:
            return None
        text = f"{owner}, blocks of {size}: {found:,} on the list, {one.length:,} by its count"
        at = self.damaged.start if self.damaged is not None else one.head or one.cache
        if self.damaged is not None and self.damaged.start == self.damaged.end:
            why += ": it was freed twice, or a link was overwritten"
        return Problem(at, f"{text}; {why}" if why else text, bool(why) or abs(found - one.length) > 1, self.damaged)


def follow_lists(target: Target, engine: Engine, heaps: Sequence[Range], lists: Sequence[FreeList]) -> Iterator[Followed]:
    """Yield the blocks on each list, which may be more or fewer than the list counts. A list ends
    at the first node outside the heaps, because the contents of other memory may look like
    links."""
    longest = min(max((one.length for one in lists), default=0) + 64, LONGEST)
    heads, expected = [one.head for one in lists], sum(one.length for one in lists)
    followed = follow_in_bulk(target, engine, heaps, heads, longest, expected)
    ended, first = dict(followed.problems), 0
    for number, (one, last) in enumerate(zip(lists, followed.ends)):
        nodes, why = followed.nodes[first:last], ended.get(number, "")
        first = last
        if why or target.live:
            outside = next((at for at, node in enumerate(nodes) if not range_at(heaps, node)), -1)
            if outside >= 0:
                why, nodes = f"it continues at {nodes[outside]:#x}, which is not a block", nodes[:outside]
        yield Followed(one, nodes, why, damaged_link(target, nodes) if why and nodes else None)


def damaged_link(target: Target, nodes: Sequence[int]) -> Range:
    """Return the range where a list that ended early is wrong; see Followed."""
    try:
        link = target.word(nodes[-1])
    except UnreadableMemory:
        link = 0
    return Range(link, link) if link in nodes else Range(nodes[-1], nodes[-1] + WORD)
