"""A synthetic heap in which tests build containers word by word, and damage them."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

from fake import FakeTarget, thread
from heaps import ListAllocator, Listed, session

from findleaks.audit.containers import Container
from findleaks.audit.containers.reader import ContainerReader
from findleaks.audit.containers.recognise import find_containers
from findleaks.engine.contract import Engine
from findleaks.session import Session
from findleaks.target.base import Module, Symbol

HEAP, DATA = 0x5000_0000, 0x40_0000
ROOM = 1 << 20


class Building:
    """Allocates blocks one behind the other. `data` has the variables of a module, which own the containers."""

    def __init__(self) -> None:
        self.heap, self.data = bytearray(ROOM), bytearray(1 << 14)
        self.blocks: list[Listed] = []
        self.symbols: list[Symbol] = []
        self._next = HEAP

    def block(self, size: int, *words: int) -> int:
        """Allocate a block of `size` usable bytes that begins with these words."""
        address = self._next
        self._next += -(-max(size, 1) // 16) * 16 + 16
        self.blocks.append(Listed(address, size))
        self.put(address, *words)
        return address

    def put(self, address: int, *words: int) -> None:
        where, start = (self.heap, HEAP) if address >= HEAP else (self.data, DATA)
        struct.pack_into(f"<{len(words)}Q", where, address - start, *(word & (1 << 64) - 1 for word in words))

    def get(self, address: int) -> int:
        where, start = (self.heap, HEAP) if address >= HEAP else (self.data, DATA)
        return int(struct.unpack_from("<Q", where, address - start)[0])

    def variable(self, name: str, offset: int, size: int) -> int:
        """Add a variable with this name to the data."""
        self.symbols.append(Symbol(name, DATA + offset, size, "prog"))
        return DATA + offset

    def session(self, engine: Engine | None = None) -> Session:
        target = FakeTarget(
            {HEAP: bytes(self.heap), DATA: bytes(self.data)},
            names={DATA: "/bin/prog"},
            threads=[thread(77)],
            modules=[Module("/bin/prog", DATA, DATA, DATA + len(self.data))],
            symbols=self.symbols,
        )
        return session(target, [ListAllocator(HEAP, HEAP + ROOM, self.blocks)], engine)

    def found(self, start: int, count: int, engine: Engine | None = None) -> list[Container]:
        """Return the containers that findleaks finds in the owner of `count` words at `start`."""
        reader = ContainerReader(self.session(engine))
        words = {start + 8 * n: self.get(start + 8 * n) for n in range(count)}
        return find_containers(reader, {address: value for address, value in words.items() if reader.place(value) is not None})

    def map(self, head: int, count: int, size: int = 56, seed: int = 1) -> list[int]:
        """Build libstdc++'s std::map with `count` nodes, as a balanced red-black tree whose object is at `head`. Return its nodes in
        order."""
        header = head + 8
        nodes = [self.block(size) for _ in range(count)]
        random.Random(seed).shuffle(nodes)
        deepest = max(count, 1).bit_length()

        def grow(low: int, high: int, parent: int, depth: int) -> int:
            if low >= high:
                return 0
            middle = (low + high) // 2
            node = nodes[middle]
            black = depth < deepest or depth == 1  # only nodes of the last level are red
            left, right = grow(low, middle, node, depth + 1), grow(middle + 1, high, node, depth + 1)
            self.put(node, int(black) | 0xDEAD << 32, parent, left, right, middle)
            return node

        root = grow(0, count, header, 1)
        self.put(header, 0, root, nodes[0] if nodes else header, nodes[-1] if nodes else header, count)
        return nodes

    def unordered(self, head: int, count: int, buckets: int = 13, size: int = 24) -> list[int]:
        """Build libstdc++'s std::unordered_map with its object at `head`."""
        table = self.block(8 * buckets)
        nodes = [self.block(size) for _ in range(count)]
        for n, (node, after) in enumerate(zip(nodes, [*nodes[1:], 0])):
            self.put(node, after, n)
        if nodes:
            self.put(table + 8 * 5, head + 16)
        self.put(head, table, buckets, nodes[0] if nodes else 0, count, 0x3F800000, buckets)
        return nodes

    def chain(self, count: int, size: int, link: int) -> list[int]:
        """Build a list whose nodes have their link at offset `link`."""
        nodes = [self.block(size) for _ in range(count)]
        for node, after in zip(nodes, [*nodes[1:], 0]):
            self.put(node + link, after)
        return nodes

    def ring(self, head: int, count: int, size: int, link: int) -> list[int]:
        """Build a circular list whose nodes have links {next, previous} at offset `link`, with the list head at `head`."""
        nodes = [self.block(size) + link for _ in range(count)]
        around: Sequence[int] = [head, *nodes, head]
        for at in range(1, len(around) - 1):
            self.put(around[at], around[at + 1], around[at - 1])
        self.put(head, nodes[0] if nodes else head, nodes[-1] if nodes else head)
        return nodes

    def btree(self, head: int, rust: bool = True, fan: int = 4, levels: int = 3, before: int = 0) -> tuple[list[int], int]:
        """Build a B-tree whose inner nodes have `fan` children and whose leaves have `fan` - 1 entries. Return its nodes, root first, and
        the number of entries. In Rust's tree, the head contains the height, and `before` words precede the parent in each node. In Abseil's
        tree, the head contains the rightmost leaf, and the parent of the root is the leftmost leaf."""
        at = 8 * before
        root = self.block(at + 8 * (1 + 2 * fan))
        nodes = level = [root]
        for depth in range(1, levels):
            size = at + 8 * (1 + (2 * fan if depth < levels - 1 else fan))
            below = [(parent, [self.block(size) for _ in range(fan)]) for parent in level]
            for parent, children in below:
                self.put(parent + at + 8, *children[1:3])  # two stale slots
                self.put(parent + at + 8 * (1 + fan), *children)
                for child in children:
                    self.put(child + at, parent)
            level = [child for _, children in below for child in children]
            nodes = [*nodes, *level]
        entries = len(nodes) * (fan - 1)
        self.put(root + at, 0 if rust else level[0])
        self.put(head, root, levels - 1 if rust else level[-1], entries)
        return nodes, entries
