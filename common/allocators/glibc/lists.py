"""glibc's free lists: fastbins and bins, and whether links are mangled.

Safe-linking (2.32, malloc.c: PROTECT_PTR) stores a link XORed with the link's own address shifted
right by 12. Fastbins link chunks through their fd, thread caches link user pointers through their
first word: the same place. Heads are never mangled.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence

from findleaks.allocators.base import Problem
from findleaks.allocators.glibc.arenas import Arena
from findleaks.allocators.glibc.layout import NBINS
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.target.base import Piece, Range

VOTES = 256
SHORT = 64  # nodes of a list followed in Python; the engine follows longer ones
LONGEST = 1 << 31
ANCHORS = 1 << 16  # chunks followed in one bin at most


def mangled(memory: Memory, nodes: Iterable[int], valid: Callable[[int], bool]) -> bool:
    """Whether links are mangled: the links of these list nodes (user pointers) vote. `valid` says
    whether an address is a user pointer."""
    votes = 0
    for count, node in enumerate(nodes):
        if count == VOTES:
            break
        link = memory.word(node)
        if link is None:
            continue
        plain, clear = link, link ^ node >> 12
        votes += int(clear == 0 or valid(clear)) - int(plain == 0 or valid(plain))
    return votes > 0


class Lists:
    """Follows the free lists of one glibc instance."""

    def __init__(
        self, memory: Memory, engine: Engine, align: int, mangled: bool, valid: Callable[[int], bool], pieces: Callable[[], Sequence[Piece]]
    ) -> None:
        self.memory = memory
        self.mangled = mangled
        self._engine = engine
        self._align = align
        self._valid = valid
        self._pieces = pieces

    def follow(self, head: int, limit: int, shift: int = 0) -> tuple[array[int], str]:
        """The user pointers of a list, and "" or why it ended early. `head` and the links are user
        pointers less `shift`: fastbins link chunk headers, two words before."""
        nodes: array[int] = array("Q")
        seen = set()
        node = head
        while node and len(nodes) < SHORT:
            user = node + shift
            if user % self._align or not self._valid(user):
                return nodes, f"{node:#x} is no chunk"
            if node in seen:
                return nodes, f"it runs into itself at {node:#x}: a block was freed twice, or a link in it written over"
            seen.add(node)
            nodes.append(user)
            link = self.memory.word(user)
            if link is None:
                return nodes, f"{user:#x} cannot be read"
            node = link ^ user >> 12 if self.mangled else link
            if len(nodes) >= limit and node:
                return nodes, f"it has more than {limit} entries"
        if not node:
            return nodes, ""
        rest, problem = self._engine.follow(self._pieces(), node, shift, self.mangled, max(limit - len(nodes), 0))
        nodes += added(rest, shift)
        return nodes, problem


def added(values: array[int], shift: int) -> array[int]:
    """Each value plus `shift`, as one addition of two long numbers: no sum of an address and
    `shift` overflows its item."""
    if not shift or not values:
        return values
    item = values.itemsize
    total = int.from_bytes(values.tobytes(), "little") + int.from_bytes(shift.to_bytes(item, "little") * len(values), "little")
    sums: array[int] = array(values.typecode)
    sums.frombytes((total & ((1 << 8 * item * len(values)) - 1)).to_bytes(item * len(values), "little"))
    return sums


def fastbin_blocks(lists: Lists, arena: Arena, problems: list[Problem]) -> array[int]:
    """User pointers of the chunks in the arena's fastbins."""
    found: array[int] = array("Q")
    header = 2 * lists.memory.size
    for index, head in enumerate(arena.fastbins):
        if head:
            blocks, problem = lists.follow(head, LONGEST, header)
            found += blocks
            if problem:
                what = f"fastbin {index} of {arena.name} is corrupt after {len(blocks)} chunks: {problem}"
                link = blocks[-1] if blocks else arena.address + arena.layout.fastbin + index * lists.memory.size
                problems.append(Problem(head, what, damaged=Range(link, link + lists.memory.size)))
    return found


def bin_chunks(memory: Memory, arena: Arena, astray: bool = False) -> list[int]:
    """Ascending addresses of chunks in the unsorted, small and large bins, up to where links do not
    agree in both directions. With `astray`, a chunk that a bin leads to is included even if it does
    not link back."""
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
