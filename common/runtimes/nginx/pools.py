"""The pools of nginx: which blocks of malloc each has, and who owns it.

The header of a pool is at the start of its first block. The pool allocates memory from its blocks,
one after another. For a large request, it allocates a separate block, and adds it to a list.

Source: src/core/ngx_palloc.h (ngx_pool_t, ngx_pool_data_t, ngx_pool_large_t), ngx_cycle.h,
ngx_connection.h, src/event/ngx_event.h, src/http/ngx_http_request.h, ngx_buf.h of nginx 1.22 and
1.26, 64-bit."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence

from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.target.base import Range
from findleaks.value_classes import NamedTuple

FORM = "QQQQQQ8xQ16x"  # last, end, next, failed, max, current, large
HEADER, NEXT_HEADER = 80, 32  # bytes of ngx_pool_t, and of the header of the pool's other blocks
MOST_SMALL = 4095  # largest request that a pool does not allocate by malloc, with pages of 4 KiB
MOST_FAILED = 1 << 20
MOST_BLOCKS = 1 << 23  # blocks and large requests of all pools

CYCLE_POOL = 8  # offset of `pool` in ngx_cycle_t, the first request of its pool
CYCLE_MODULES = 136  # offset of `modules` and `modules_n` in ngx_cycle_t
MOST_MODULES = 1 << 12
CONNECTION_POOL, READ_EVENT = 88, 8  # offsets of `pool` and `read` in ngx_connection_t
HEADER_IN, BUFFER_START = 96, 32  # offsets in ngx_http_request_t and ngx_buf_t
SIGNATURES = {b"HTTP": "HTTP request", b"MAIL": "mail session", b"STRM": "stream session"}
"""First bytes of the first object in a pool, and what owns such a pool."""
CYCLE, CONNECTION, OTHER = "cycle", "connection", "other owner"
LONGEST = 200  # bytes of a request line


class Pool(NamedTuple):
    """A pool. `used` is the bytes used in its blocks, and of its large requests. `blocks` and
    `large` are indices of blocks of malloc. `unused` are the parts at the ends of its blocks that
    the pool has not allocated yet. `memory` has the part of each block with the pool's header
    and its objects."""

    address: int
    owner: str
    used: int
    blocks: Sequence[int]
    large: Sequence[int]
    unused: Sequence[Range]
    memory: Sequence[Range]


class PoolReader:
    """Reads pools. Each block belongs to one pool, so that the time is limited even if links are
    damaged. `program` is the memory of the file nginx."""

    def __init__(self, memory: Memory, engine: Engine, blocks: Blocks, heaps: Sequence[Range], program: Range) -> None:
        self._memory, self._engine, self._blocks, self._heaps, self._program = memory, engine, blocks, heaps, program
        self._seen = set[int]()

    def read(self) -> list[Pool]:
        """Return all pools, ascending by address."""
        heads = list(self._heads())
        connections = self._find_connection_pools([address for address, _ in heads])
        return [self._read_pool(address, large, connections) for address, large in heads]

    def _heads(self) -> Iterator[tuple[int, int]]:
        """Yield the address of each pool, and its list of large requests."""
        columns = self._blocks.columns()
        rows = zip(columns.address, columns.size, columns.state)
        wanted = [(start, size) for start, size, state in rows if state == State.IN_USE and size >= HEADER]
        form = struct.Struct(self._memory.arch.word_format[0] + FORM)
        records, missing = read_records(self._memory.target, self._engine, array("Q", (start for start, _ in wanted)), form.size)
        for place, ((start, size), record) in enumerate(zip(wanted, form.iter_unpack(records))):
            last, end, _, failed, most, current, large = record
            sound = start + HEADER <= last <= end <= start + size and most == min(end - start - HEADER, MOST_SMALL)
            if sound and place not in missing and failed < MOST_FAILED and self._blocks.find(current) >= 0:
                yield start, large

    def _read_pool(self, address: int, large: int, connections: set[int]) -> Pool:
        used, blocks, unused, objects, at = 0, [], [], [], address
        while at and at not in self._seen and len(self._seen) < MOST_BLOCKS:
            self._seen.add(at)
            words, index = self._memory.words(at, 3), self._blocks.find(at)
            end = self._blocks.address(index) + self._blocks.size(index) if index >= 0 else 0
            if words is None or not at + NEXT_HEADER <= words[0] <= words[1] <= end:
                break
            blocks.append(index)
            objects.append(Range(at if at == address else at + NEXT_HEADER, words[0]))
            used += words[0] - at
            first = -(-words[0] // 8) * 8  # texts are allocated without alignment
            if first < words[1]:
                unused.append(Range(first, words[1]))
            at = words[2]
        found = list(self._large(large))
        used += sum(self._blocks.size(index) for index in found)
        return Pool(address, self._owner(address, connections), used, blocks, found, unused, objects)

    def _large(self, node: int) -> Iterator[int]:
        """Yield the blocks of large requests. A node of the list is {next, alloc}; a freed request
        is null."""
        while node and node not in self._seen and len(self._seen) < MOST_BLOCKS:
            self._seen.add(node)
            words = self._memory.words(node, 2)
            if words is None:
                return
            index = self._blocks.find(words[1]) if words[1] else -1
            if index >= 0 and self._blocks.address(index) == words[1] and words[1] not in self._seen:
                self._seen.add(words[1])
                yield index
            node = words[0]

    def _owner(self, pool: int, connections: set[int]) -> str:
        first = pool + HEADER
        data = self._memory.read(first, 4)
        if data in SIGNATURES:
            return SIGNATURES[data]
        if self._is_cycle(first, pool):
            return CYCLE
        return CONNECTION if pool in connections else OTHER

    def _is_cycle(self, address: int, pool: int) -> bool:
        """Whether there is a cycle with this pool. Structures of modules can also refer to their
        own pool, so the modules of the cycle are examined: the first one is ngx_core_module."""
        if self._memory.word(address + CYCLE_POOL) != pool:
            return False
        modules, count = self._memory.words(address + CYCLE_MODULES, 2) or (0, 0)
        first = self._memory.word(modules) if modules and 0 < count <= MOST_MODULES else None
        return first is not None and self._program.start <= first < self._program.end

    def _find_connection_pools(self, pools: Sequence[int]) -> set[int]:
        """Return the pools to which a connection refers. Its event for reading refers back to
        it."""
        memory, found = self._memory, set[int]()
        for start, end in self._heaps:
            for piece in memory.target.pieces(start, end):
                for place in self._engine.search_any(piece, pools):
                    connection = place - CONNECTION_POOL
                    event, pool = memory.word(connection + READ_EVENT), memory.word(place)
                    if event and pool and memory.word(event) == connection:
                        found.add(pool)
        return found

    def request_line(self, pool: Pool) -> str:
        """Return the first line of the request that owns a pool; "" if unknown."""
        buffer = self._memory.word(pool.address + HEADER + HEADER_IN)
        start = self._memory.word(buffer + BUFFER_START) if buffer else None
        line = self._memory.c_string(start, LONGEST).partition(b"\r\n")[0] if start else b""
        return line.decode("ascii", "replace") if line[:1].isalpha() else ""
