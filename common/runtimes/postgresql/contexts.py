"""Read the tree of memory contexts of a PostgreSQL process.

Sources: src/include/nodes/memnodes.h (MemoryContextData), src/backend/utils/mmgr/aset.c
(AllocSetContext, AllocBlockData, AllocSetStats) of PostgreSQL 13 to 18, for 64-bit programs. Nearly
all contexts are AllocSets. For the others, see block_lists.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.errors import Interrupted
from findleaks.runtimes.pool_tree import PoolNode, add_up
from findleaks.runtimes.postgresql.block_lists import BlockLists, Usage
from findleaks.value_classes import dataclass, field

HEAD = 10  # words of MemoryContextData
ALLOCATED, PARENT, FIRST, NEXT, NAME, IDENT = 1, 3, 4, 6, 7, 8  # places of its members, in words
FREE_LISTS, LEAST_CHUNK = 11, 8  # ALLOCSET_NUM_FREELISTS; bytes of a chunk in the first list
SET_BYTES = (224, 200)
"""Bytes of an AllocSetContext: 224 up to PostgreSQL 16, 200 since 17. Its first block follows."""
BLOCK_WORDS = 5  # words of AllocBlockData that are read: aset, prev, next, freeptr, endptr
CHUNK_HEADERS = (16, 8)
"""Bytes of a chunk's header up to PostgreSQL 15, where it begins with the size, and since 16."""
MOST_CONTEXTS, MOST = 1 << 20, 1 << 23  # contexts; blocks and free chunks of all contexts
HASH_TABLE = "dynahash"
LONGEST = 256  # bytes of a name


@dataclass
class Context(PoolNode):
    """A memory context. `bytes` is the total of its usage."""

    ident: str = ""
    usage: Usage = field(default_factory=lambda: Usage(0, 0, 0, []))


class ContextReader:
    """Reads contexts. `problems` lists damage as (address, message).

    A block belongs to one context, and a chunk to one list. A walk that meets one again ends, so
    that the time is proportional to their number, even if links are damaged."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.problems: list[tuple[int, str]] = []
        self._lists = BlockLists(memory)
        self._seen = set[int]()  # blocks and chunks that were met
        self._unknown: list[int] = []  # contexts of unknown type

    def read(self, root: int) -> list[Context]:
        """Return the context at `root` and all contexts below it, each before its children. Raises
        Interrupted."""
        found: list[Context] = []
        seen: set[int] = set()
        todo: list[tuple[int, Optional[Context]]] = [(root, None)]
        while todo and len(found) < MOST_CONTEXTS:
            if self._memory.target.is_interrupted():
                raise Interrupted
            address, parent = todo.pop()
            words = self._memory.words(address, HEAD)
            if address in seen or words is None or words[PARENT] != (parent.address if parent is not None else 0):
                self.problems.append((address, f"PostgreSQL's tree of memory contexts leads to {address:#x}, which is not a context"))
                continue
            seen.add(address)
            (name, ident), usage = self._names(words[NAME], words[IDENT]), self._read_usage(address, words)
            one = Context(address, name, parent, usage.total, ident=ident, usage=usage)
            found.append(one)
            if parent is not None and words[NEXT]:
                todo.append((words[NEXT], parent))
            if words[FIRST]:
                todo.append((words[FIRST], one))
        if self._unknown:
            first, count = self._unknown[0], len(self._unknown)
            what = f"{count:,} memory contexts have an unknown type, the first at {first:#x}: their free memory is unknown"
            if count == 1:
                what = f"the memory context at {first:#x} has an unknown type: its free memory is unknown"
            self.problems.append((first, what))
        add_up(found)
        return found

    def _names(self, name: int, ident: int) -> tuple[str, str]:
        """Return name and ident. All hash tables have the name "dynahash", so their ident is used
        as the name, as in PostgreSQL's log."""
        names = self._text(name), self._text(ident)
        return (names[1], "") if names[0] == HASH_TABLE and names[1] else names

    def _text(self, address: int) -> str:
        """Return the string at an address; "" if it is unreadable."""
        return self._memory.c_string(address, LONGEST).decode("utf-8", "replace")

    def _read_usage(self, address: int, words: Sequence[int]) -> Usage:
        for size in SET_BYTES:
            if self._memory.word(address + size) == address:
                return self._read_set(address, size, words[ALLOCATED])
        found = self._lists.read(address, words[ALLOCATED])
        if found is None:
            self._unknown.append(address)
            return Usage(words[ALLOCATED], None, None, [address])
        return found

    def _read_set(self, address: int, size: int, allocated: int) -> Usage:
        """Return the memory of the AllocSet at an address. `size` is the bytes of its
        AllocSetContext, `allocated` the bytes that PostgreSQL counts for it."""
        memory = self._memory
        heads = memory.words(address + HEAD * memory.size, 1 + FREE_LISTS) or (0,) * (1 + FREE_LISTS)
        total, free, chunks = size, 0, 0
        blocks: list[int] = []
        for at, unused, end in self._blocks(address, heads[0]):
            blocks.append(at)
            total += end - at
            free += end - unused
        for number, head in enumerate(heads[1:]):
            usable = LEAST_CHUNK << number
            for chunk in self._chunks(head):
                free += usable + CHUNK_HEADERS[memory.word(chunk) != usable]
                chunks += 1
        if total != allocated:
            self.problems.append((address, f"the memory context at {address:#x} counts {allocated:,} bytes; {total:,} were found"))
        return Usage(total, free, chunks, blocks)

    def _blocks(self, owner: int, at: int) -> Iterator[tuple[int, int, int]]:
        """Yield (address, freeptr, endptr) of the blocks of a context."""
        while at:
            words = self._memory.words(at, BLOCK_WORDS)
            sound = words is not None and words[0] == owner and at < words[3] <= words[4]
            if words is None or not sound or at in self._seen or len(self._seen) >= MOST:
                self.problems.append(
                    (at, f"the blocks of the memory context at {owner:#x} lead to {at:#x}, which is not a block of this context")
                )
                return
            self._seen.add(at)
            yield at, words[3], words[4]
            at = words[2]

    def _chunks(self, chunk: int) -> Iterator[int]:
        """Yield the chunks of a list of free chunks, which are linked by their second words."""
        while chunk and chunk not in self._seen and len(self._seen) < MOST:
            self._seen.add(chunk)
            yield chunk
            chunk = self._memory.word(chunk + 8) or 0
