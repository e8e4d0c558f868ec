"""The stack depot of the sanitizers' runtime, which assigns a number to each call stack of an
allocation or a free.

There are three forms. Each is found by the data that the runtime's variables point to.

- LLVM 14 and later, GCC 13 and later: nodes of 16 bytes, whose last 4 are the offset of the stack
  in the store, plus 1. The store consists of blocks of 8 MiB
  (sanitizer_common/sanitizer_stackdepot.cpp, StackDepotNode; sanitizer_stack_store.h, StackStore).
- GCC 12: for each number a pointer to its stack (sanitizer_stackdepot.cpp, tracePtrs).
- LLVM 12 and 13, GCC 11: a hash table of lists of nodes {link 8, id 4, hash_and_use_count 4, size
  4, tag 4, stack}.

Nodes and pointers are in a TwoLevelMap (sanitizer_flat_map.h): 2^15 pointers to arrays of 2^16."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Optional, Protocol

from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.allocators.search import find_words_between
from findleaks.engine.contract import Engine
from findleaks.errors import Interrupted
from findleaks.target.base import Module, Range

PAGE = 4096
SECOND = 1 << 16  # entries of an array of the second level (kNodesSize2)
FIRST = 1 << 15  # arrays (kNodesSize1)
NODE = 16  # bytes: {stack_hash 8, link 4, store_id 4}

BLOCK = 1 << 20  # words of a block of the store (kBlockSizeFrames)
BLOCKS = 1 << 12  # kBlockCount
BLOCK_INFO = 16  # bytes: {data_ 8, stored_ 4, mtx_ 1, state 1}
PACKED = 1  # state of a block that was compressed (compress_stack_depot=1)

MOST_FRAMES = 255  # kStackTraceMax is 255
MOST_TAGS = 64  # maximum number of kinds of stacks; there are fewer
TRIED = 8  # numbers that are tried first; their stacks identify a depot

MOST_NODES = 1 << 24
POLL = 1 << 10  # nodes read between two checks for Ctrl-C


class Depot(Protocol):
    """A stack depot of any form."""

    memory: Memory

    def ranges(self) -> Sequence[Range]:
        """Return the mappings of the depot."""
        ...

    def stack(self, number: int) -> tuple[int, ...]:
        """Return the return addresses of the stack with this number, innermost first; () if there
        is none, or it is unreadable."""
        ...


def _frames(memory: Memory, address: int, size_bits: int) -> tuple[int, ...]:
    """Read the stack at `address`. Its first word has size and tag; `size` addresses follow."""
    head = memory.word(address) or 0
    size, tag = head & (1 << size_bits) - 1, head >> size_bits
    if not 0 < size <= MOST_FRAMES or tag > MOST_TAGS:
        return ()
    return memory.words(address + 8, size) or ()


class StoreDepot:
    """A depot of nodes and blocks of stacks. `nodes` and `blocks` are the addresses of the two
    tables."""

    def __init__(self, memory: Memory, nodes: int, blocks: int) -> None:
        self.memory = memory
        self.nodes = nodes
        self.blocks = blocks

    def ranges(self) -> list[Range]:
        return [*_arrays(self.memory, self.nodes, NODE), *_store(self.memory, self.blocks)]

    def stack(self, number: int) -> tuple[int, ...]:
        node = _entry(self.memory, self.nodes, number, NODE)
        last = self.memory.word(node + 8) if node else None
        return _read_stack(self.memory, self.blocks, last >> 32) if last else ()


class PointerDepot:
    """A depot of pointers to stacks. `pointers` is the address of the table."""

    def __init__(self, memory: Memory, pointers: int) -> None:
        self.memory = memory
        self.pointers = pointers

    def ranges(self) -> list[Range]:
        return list(_arrays(self.memory, self.pointers, 8))

    def stack(self, number: int) -> tuple[int, ...]:
        entry = _entry(self.memory, self.pointers, number, 8)
        address = self.memory.word(entry) if entry else None
        return _frames(self.memory, address, 16) if address else ()


class LinkedDepot:
    """A depot of lists of nodes. `nodes` has their addresses by number."""

    def __init__(self, memory: Memory, nodes: Mapping[int, int]) -> None:
        self.memory = memory
        self.nodes = nodes

    def ranges(self) -> list[Range]:
        return []

    def stack(self, number: int) -> tuple[int, ...]:
        return _read_node(self.memory, self.nodes[number]).frames if number in self.nodes else ()


class _Linked(NamedTuple):
    """A node of a list: the address of the next one, its number, and its stack."""

    link: int
    number: int
    frames: tuple[int, ...]


_NO_NODE = _Linked(0, 0, ())


def _read_node(memory: Memory, address: int) -> _Linked:
    """Read the node at `address`. The lowest bit of its link locks the list."""
    words = memory.words(address, 3)
    if words is None or not 0 < words[2] & 0xFFFFFFFF <= MOST_FRAMES or words[2] >> 32 > MOST_TAGS:
        return _NO_NODE
    frames = memory.words(address + 24, words[2] & 0xFFFFFFFF) or ()
    return _Linked(words[0] & -2, words[1] & 0xFFFFFFFF, frames)  # the lowest bit locks the list


def _entry(memory: Memory, table: int, number: int, size: int) -> int:
    """Return the address of an entry in a TwoLevelMap, or 0."""
    array = memory.word(table + 8 * (number // SECOND)) if 0 < number < FIRST * SECOND else None
    return array + number % SECOND * size if array else 0


def _read_stack(memory: Memory, blocks: int, place: int) -> tuple[int, ...]:
    """Read the stack at a position in the store: its offset in words, plus 1."""
    number, offset = divmod(place - 1, BLOCK)
    info = memory.words(blocks + number * BLOCK_INFO, 2) if 0 <= number < BLOCKS else None
    if info is None or not info[0] or info[1] >> 40 & 0xFF == PACKED:
        return ()
    return _frames(memory, info[0] + 8 * offset, 8)


def _arrays(memory: Memory, table: int, size: int) -> Iterator[Range]:
    """Yield the arrays of a TwoLevelMap."""
    for array in memory.words(table, FIRST) or ():
        if not array:
            break
        yield Range(array, array + SECOND * size)


def _store(memory: Memory, blocks: int) -> Iterator[Range]:
    """Yield the blocks of the store."""
    for data in (memory.words(blocks, BLOCKS * BLOCK_INFO // 8) or ())[::2]:
        if not data:
            break
        yield Range(data, data + 8 * BLOCK)


def find(memory: Memory, engine: Engine, image: Image) -> Optional[Depot]:
    """Find the depot by the variables in this file. None if it has none of the known forms."""
    code = image.module
    found = list(find_words_between(memory.target, engine, image.data, PAGE, memory.target.arch.top))
    pages = [(address, value) for address, value in found if value % PAGE == 0]
    for blocks, value in pages:
        if _ours(code, _frames(memory, value, 8)):
            for nodes, _ in pages:
                used = min((memory.word(nodes - 16) or 0) & 0xFFFFFFFF, TRIED)  # n_uniq_ids
                if _holds(code, StoreDepot(memory, nodes, blocks), used):
                    return StoreDepot(memory, nodes, blocks)
    for pointers, value in pages:
        if memory.word(value) == 0 and _holds(code, PointerDepot(memory, pointers), _count_nonzero(memory, value)):
            return PointerDepot(memory, pointers)
    linked = _linked_nodes(memory, code, (value for _, value in found if value % 8 == 0))
    return LinkedDepot(memory, linked) if linked else None


def _linked_nodes(memory: Memory, code: Module, heads: Iterable[int]) -> dict[int, int]:
    """Return the addresses of the nodes of the lists that begin at `heads`, by number. Pointers to
    other memory are ignored."""
    nodes: dict[int, int] = {}
    for head in heads:
        while head and len(nodes) < MOST_NODES:
            if len(nodes) % POLL == 0 and memory.target.is_interrupted():
                raise Interrupted
            node = _read_node(memory, head)
            if not _ours(code, node.frames) or node.number in nodes:
                break
            nodes[node.number] = head
            head = node.link
    return nodes


def _count_nonzero(memory: Memory, array: int) -> int:
    """Count the pointers at the start of an array, up to the first 0; the array begins with number
    0, which has no stack."""
    words = memory.words(array + 8, TRIED) or ()
    return (*words, 0).index(0)


def _holds(code: Module, depot: Depot, count: int) -> bool:
    """Return whether the first `count` numbers all have stacks that begin in the runtime."""
    return count > 0 and all(_ours(code, depot.stack(number)) for number in range(1, count + 1))


def _ours(code: Module, frames: Sequence[int]) -> bool:
    """Return whether the innermost frame is in the runtime's own file, like the frame of an
    interceptor. Other frames are not checked: they may be wrong, because the runtime unwinds by
    frame pointers."""
    return bool(frames) and code.start <= frames[0] < code.end
