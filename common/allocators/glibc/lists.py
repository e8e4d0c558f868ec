"""Follow glibc's free lists (fastbins and bins), and find out whether links are mangled.

Safe-linking (2.32, malloc.c: PROTECT_PTR) XORs a link with (the link's address >> 12). List heads
are never mangled. Fastbins link chunks by fd, thread caches link blocks by word 0. Both are the
same word of a chunk."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from findleaks.allocators.glibc.arenas import GlibcArena
from findleaks.allocators.glibc.layout import NBINS
from findleaks.allocators.memory import Memory

if TYPE_CHECKING:
    from findleaks.allocators.glibc.heap_view import HeapView

VOTES, LINKS = 256, 8  # lists, and links of each list, that vote on whether links are mangled
SHORT = 64  # blocks of a list that are followed in Python; the engine follows the rest
LONGEST = 1 << 31
ANCHORS = 1 << 16  # chunks of one bin that are followed


def are_links_mangled(glibc: HeapView, lists: Iterable[tuple[int, int, int]]) -> bool:
    """Decide by a vote of these lists whether links are mangled. A list is (head, shift, length);
    see `follow_list`. A length of -1 means unknown.

    Each link that leads to a chunk, or ends the list where it should, is a vote for one of the two
    readings. In a small 32-bit heap, a few links may be valid in both readings."""
    votes = 0
    for one in islice(lists, VOTES):
        votes += _count_sound_links(glibc, *one, True) - _count_sound_links(glibc, *one, False)
    return votes > 0


def _count_sound_links(glibc: HeapView, head: int, shift: int, length: int, is_mangled: bool) -> int:
    """Count the links up to the first one that does not lead to a chunk, or ends the list early; at
    most LINKS."""
    user = head + shift
    for count in range(LINKS):
        link = glibc.memory.word(user)
        node = 0 if link is None else link ^ user >> 12 if is_mangled else link
        user = node + shift
        if link is None or (not node and length not in (-1, count + 1)):
            return count
        if not node:
            return count + 1
        if user % glibc.granule or not glibc.owns(user) or count + 1 == length:
            return count
    return LINKS


def follow_list(glibc: HeapView, head: int, limit: int, shift: int = 0) -> tuple[array[int], str]:
    """Return the addresses of the blocks of a list ("Q"), and "" or the reason why it ends early.

    `head` and the links are block addresses minus `shift`. Fastbins link chunk headers, which are
    two words before the block."""
    nodes: array[int] = array("Q")
    seen = set()
    node = head
    while node and len(nodes) < SHORT:
        user = node + shift
        if user % glibc.granule or not glibc.owns(user):
            return nodes, f"{node:#x} is not a chunk"
        if node in seen:
            return nodes, f"it has a cycle at {node:#x}: a block was freed twice, or a link of the list was overwritten"
        seen.add(node)
        nodes.append(user)
        link = glibc.memory.word(user)
        if link is None:
            return nodes, f"{user:#x} cannot be read"
        node = link ^ user >> 12 if glibc.mangled else link
        if len(nodes) >= limit and node:
            return nodes, f"it has more than {limit} entries"
    if not node:
        return nodes, ""
    rest, problem = glibc.engine.follow(glibc.pieces, node, shift, bool(glibc.mangled), max(limit - len(nodes), 0))
    nodes += add_to_each(rest, shift)
    return nodes, problem


def add_to_each(values: array[int], shift: int) -> array[int]:
    """Add `shift` to each value by one addition of two long numbers. No sum overflows its item."""
    if not shift or not values:
        return values
    item = values.itemsize
    total = int.from_bytes(values.tobytes(), "little") + int.from_bytes(shift.to_bytes(item, "little") * len(values), "little")
    sums: array[int] = array(values.typecode)
    sums.frombytes((total & ((1 << 8 * item * len(values)) - 1)).to_bytes(item * len(values), "little"))
    return sums


def follow_fastbins(glibc: HeapView, arena: GlibcArena) -> Iterator[tuple[int, array[int], str]]:
    """Yield (number, addresses of its blocks ("Q"), reason) of each fastbin that is not empty. The
    reason explains why the list ended early, or is ""."""
    for number, head in enumerate(arena.fastbins):
        if head:
            yield number, *follow_list(glibc, head, LONGEST, 2 * glibc.memory.size)


def find_bin_chunks(memory: Memory, arena: GlibcArena, astray: bool = False) -> list[int]:
    """Return the chunks in the unsorted, small and large bins, ascending. A bin is followed up to
    the first link that disagrees. With `astray`, also include the chunk to which this link refers,
    and which does not link back."""
    word, found = memory.size, set()
    for index in range(NBINS):
        head = arena.bin_head(index)
        for first, forward, back in ((2 * index, 2, 3), (2 * index + 1, 3, 2)):
            before, chunk = head, arena.bins[first]
            for _ in range(ANCHORS):
                if chunk in (0, head) or chunk in found:
                    break
                agrees = memory.word(chunk + back * word) == before
                if agrees or astray:
                    found.add(chunk)
                if not agrees:
                    break
                before, chunk = chunk, memory.word(chunk + forward * word) or 0
    return sorted(found)
