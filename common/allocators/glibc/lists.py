"""glibc's free lists: fastbins and bins, and whether links are mangled.

Safe-linking (2.32, malloc.c: PROTECT_PTR) XORs a link with its own address >> 12; heads are never
mangled. Fastbins link chunks by fd, thread caches user pointers by word 0: the same place."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from findleaks.allocators.glibc.arenas import Arena
from findleaks.allocators.glibc.heap_view import HeapView
from findleaks.allocators.glibc.layout import NBINS
from findleaks.allocators.memory import Memory

VOTES = 256
SHORT = 64  # nodes of a list followed in Python; the engine follows longer ones
LONGEST = 1 << 31
ANCHORS = 1 << 16  # chunks followed in one bin at most


def mangled(memory: Memory, nodes: Iterable[int], valid: Callable[[int], bool]) -> bool:
    """Whether these nodes' links are mangled, by vote; `valid`: whether an address lies among
    chunks. So may a mangled link in a small heap, but few of these are aligned as chunks are."""
    votes, grain = 0, 2 * memory.size

    def fits(link: int) -> bool:
        return link == 0 or (link % grain == 0 and valid(link))

    for node in islice(nodes, VOTES):
        link = memory.word(node)
        if link is not None:
            votes += int(fits(link ^ node >> 12)) - int(fits(link))
    return votes > 0


def follow(glibc: HeapView, head: int, limit: int, shift: int = 0) -> tuple[array[int], str]:
    """The user pointers of a list, and "" or why it ended early. `head` and the links are user
    pointers less `shift`: fastbins link chunk headers, two words before."""
    nodes: array[int] = array("Q")
    seen = set()
    node = head
    while node and len(nodes) < SHORT:
        user = node + shift
        if user % glibc.granule or not glibc.owns(user):
            return nodes, f"{node:#x} is no chunk"
        if node in seen:
            return nodes, f"it runs into itself at {node:#x}: a block was freed twice, or a link in it was overwritten"
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
    nodes += added(rest, shift)
    return nodes, problem


def added(values: array[int], shift: int) -> array[int]:
    """Each value plus `shift`, by adding two long numbers: no sum overflows its item."""
    if not shift or not values:
        return values
    item = values.itemsize
    total = int.from_bytes(values.tobytes(), "little") + int.from_bytes(shift.to_bytes(item, "little") * len(values), "little")
    sums: array[int] = array(values.typecode)
    sums.frombytes((total & ((1 << 8 * item * len(values)) - 1)).to_bytes(item * len(values), "little"))
    return sums


def fastbins(glibc: HeapView, arena: Arena) -> Iterator[tuple[int, array[int], str]]:
    """(number, user pointers, "" or why the list ended early) of each fastbin that is not empty."""
    for number, head in enumerate(arena.fastbins):
        if head:
            yield number, *follow(glibc, head, LONGEST, 2 * glibc.memory.size)


def bin_chunks(memory: Memory, arena: Arena, astray: bool = False) -> list[int]:
    """Ascending chunks in the unsorted, small and large bins, up to where links disagree. With
    `astray`, also a chunk that a bin leads to, but that does not link back."""
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
