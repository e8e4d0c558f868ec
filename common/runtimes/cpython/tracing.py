"""Read tracemalloc's tables: for each traced block, its size and the traceback of its allocation.

Sources: Include/internal/pycore_hashtable.h, Modules/_tracemalloc.c and Python/tracemalloc.c of
CPython 3.9 to 3.14. A hash table is {number of entries, number of buckets (a power of two),
buckets, three functions, two optional functions, malloc, free}. An entry is {next, hash, key,
value}. In the table of traces, the key is the block, and the value is {size, traceback}. The table
of domains has such a table for each domain of PyTraceMalloc_Track except 0. A traceback is {hash,
number of frames (16 bits), total number of frames (16 bits)}, then packed frames of {filename, line
(32 bits)}, innermost first."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, Optional

from findleaks.allocators import sites as allocated
from findleaks.allocators.bulk import read_records
from findleaks.allocators.directory import Directory
from findleaks.allocators.images import Image
from findleaks.allocators.memory import Memory
from findleaks.allocators.sites import Recording, SourceFrame
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State, Totals
from findleaks.errors import Interrupted
from findleaks.runtimes.base import Site
from findleaks.runtimes.cpython.types import Types
from findleaks.target.base import Piece, Target

TABLE = 10  # words of a hash table
LARGEST_TABLE = 16  # maximum size in words of a block with a hash table

FEWEST_BUCKETS = 16
MAX_ENTRIES = 1 << 28  # maximum number of entries of a plausible table
MAX_DOMAINS = 64
MAX_FRAMES = 64  # maximum number of frames read of a traceback

NO_BLOCK = 0xFFFFFFFF  # Blocks.find_all: no block has the address

TRIED = 32  # entries checked to determine whether a table is the table of traces


KEY_END = 3
"""Words of an entry {next, hash, key, …} up to and including the key. The block's address in the
key is not a reference. In a value {size, traceback, …} this includes the traceback and the word
after it: another table refers to each traceback, and the word may be stale."""


class Traced(NamedTuple):
    """Traced blocks and bytes, as tracemalloc.get_traced_memory() counts them.

    `sites`: one for each whole traceback, those with the most bytes first. `site_of`: the site of
    each key; a key is the address of a block. `entries`: the table's entries and their values."""

    blocks: int
    bytes: int
    sites: list[Site]
    entries: Sequence[int]
    keys: array[int]
    site_of: array[int]

    def recording(self, target: Target, blocks: Blocks) -> Recording:
        """Return the recorded stacks; see Runtime.recordings. Debug hooks (PYTHONMALLOC=debug) put
        a header before a key."""
        indices, _ = blocks.find_all(self.keys)
        found = [(blocks.address(index), site, 1.0) for index, site in zip(indices, self.site_of) if index != NO_BLOCK]
        sites = [allocated.Site(tuple(map(_source, site.frames)), Totals(site.blocks, site.bytes)) for site in self.sites]
        return allocated.make_recording(target, "tracemalloc", sites, found)


def _source(frame: str) -> SourceFrame:
    file, _, line = frame.rpartition(":")
    return SourceFrame(file, int(line))


def read(target: Target, engine: Engine, directory: Directory, image: Image, known: Callable[[], Types]) -> Optional[Traced]:
    """Return the traces of a process in which tracemalloc is on; else None. `known` is called only
    if there may be traces."""
    reader = _Reader(target, engine, directory, image, known)
    tables = list(reader.tables())
    own = next(filter(None, map(reader.traces, tables)), None)
    if own is None:
        return None
    others = filter(None, (reader.traces(table) for other in tables for table in reader.domains(other)))
    return reader.read_traces([own, *others])


class _Table(NamedTuple):
    entries: int
    buckets: Sequence[int]


class _Traces(NamedTuple):
    """The contents of a table of traces: the addresses and values of its entries, and the key, size
    and traceback of each trace."""

    entries: Sequence[int]
    found: Sequence[tuple[int, int, int]]


class _Reader:
    def __init__(self, target: Target, engine: Engine, directory: Directory, image: Image, known: Callable[[], Types]) -> None:
        self._target, self._engine, self._blocks, self._image = target, engine, directory.blocks, image
        self._heaps = directory.ranges()
        self._known = known
        self._memory = Memory(target)
        self._word = target.arch.word

    def tables(self) -> Iterator[_Table]:
        """Yield hash tables that the interpreter's variables refer to."""
        if not self._heaps:
            return
        low, high = self._heaps[0].start, self._heaps[-1].end
        seen: set[int] = set()
        for piece in self._image.pieces(self._target):
            if self._target.is_interrupted():
                raise Interrupted
            places = self._engine.search(piece, low, high)
            values, _ = self._engine.gather((piece,), places, self._word)
            addresses = self._target.arch.unpack(bytes(values))
            for address, size in zip(addresses, self._blocks.find_all(addresses)[1]):
                if TABLE * self._word <= size <= LARGEST_TABLE * self._word and address not in seen:
                    seen.add(address)
                    table = self._table(address)
                    if table is not None:
                        yield table

    def domains(self, table: _Table) -> Iterator[_Table]:
        """Yield the tables that are the values of a table. Yields nothing unless all values are
        tables."""
        heads = [head for head in table.buckets if head]
        if table.entries > MAX_DOMAINS or len(heads) > MAX_DOMAINS:
            return
        for node in self._follow(heads)[:MAX_DOMAINS]:
            entry = self._memory.words(node, 4)
            found = self._table(entry[3]) if entry is not None else None
            if found is None:
                return
            yield found

    @cached_property
    def _code(self) -> Sequence[tuple[int, int]]:
        return [(region.start, region.end) for region in self._target.regions() if region.executable]

    @cached_property
    def _pieces(self) -> Sequence[Piece]:
        return tuple(piece for owned in self._heaps for piece in self._target.pieces(owned.start, owned.end))

    def _follow(self, heads: Sequence[int]) -> list[int]:
        """Return the entries of these buckets, ascending."""
        return sorted(self._engine.follow_all(self._pieces, heads, 0, MAX_ENTRIES).nodes)

    def _table(self, address: int) -> Optional[_Table]:
        if self._size(address) < TABLE * self._word:
            return None
        words = self._memory.words(address, TABLE)
        if words is None:
            return None
        entries, buckets, where = words[:3]
        functions = (*words[3:6], *words[8:10])
        if not 0 < entries < MAX_ENTRIES or buckets < FEWEST_BUCKETS or buckets & (buckets - 1) or buckets > 16 * MAX_ENTRIES:
            return None
        if not all(any(start <= function < end for start, end in self._code) for function in functions):
            return None
        if self._size(where) < buckets * self._word:
            return None
        heads = self._memory.words(where, buckets)
        return _Table(entries, heads) if heads is not None else None

    def _size(self, address: int) -> int:
        """Return the number of bytes from this address to the end of a block in use that begins
        here; 0 if there is none.

        With debug hooks (PYTHONMALLOC=debug), the block begins earlier, with the header of the
        hooks."""
        block = self._blocks.lookup(address)
        if block is None or block[3] != State.IN_USE or address - block[1] not in (0, 2 * self._word):
            return 0
        return block[1] + block[2] - address

    def traces(self, table: _Table) -> Optional[_Traces]:
        """Return the traces of this table, or None if it is not a table of traces."""
        word, unpack = self._word, self._target.arch.unpack
        heads = [head for head in table.buckets if head]
        if not heads or not any(self._is_trace(head) for head in heads[:TRIED]):
            return None
        nodes = self._follow(heads)
        data, _ = read_records(self._target, self._engine, nodes, 4 * word)
        entries = unpack(bytes(data))
        keys, values = entries[2::4], entries[3::4]
        order = sorted(range(len(values)), key=values.__getitem__)
        data, missing = read_records(self._target, self._engine, [values[number] for number in order], 2 * word)
        words = unpack(bytes(data))
        found = [
            (keys[number], size, traceback)
            for place, (number, size, traceback) in enumerate(allocated.poll_items(zip(order, words[::2], words[1::2]), self._target))
            if place not in missing
        ]
        return _Traces([*nodes, *values], found)

    def read_traces(self, tables: Sequence[_Traces]) -> Traced:
        """Return all traces of these tables."""
        found = [one for table in tables for one in table.found]
        names: dict[int, str] = {}
        frames = {traceback: self._frames(traceback, names) for traceback in {traceback for _, _, traceback in found}}
        sums: dict[tuple[str, ...], list[int]] = {}
        for _, size, traceback in allocated.poll_items(found, self._target):
            one = sums.setdefault(frames[traceback], [0, 0])
            one[0] += 1
            one[1] += size
        sites = [Site(stack, count, size) for stack, (count, size) in sums.items()]
        sites.sort(key=lambda site: (-site.bytes, -site.blocks, site.frames))
        numbers = {site.frames: number for number, site in enumerate(sites)}
        site_of = array("I", [numbers[frames[traceback]] for _, _, traceback in allocated.poll_items(found, self._target)])
        held = sum(site.bytes for site in sites)
        entries = [address for table in tables for address in table.entries]
        return Traced(len(found), held, sites, entries, array("Q", [key for key, _, _ in found]), site_of)

    def _is_trace(self, entry: int) -> bool:
        words = self._memory.words(entry, 4)
        value = words[3] if words is not None else 0
        trace = self._memory.words(value, 2) if self._size(value) >= 2 * self._word else None
        if trace is None or trace[0] >> 48:
            return False
        frames = self._frames(trace[1], {})
        return bool(frames) and not frames[0].startswith("?")

    def _frames(self, traceback: int, names: dict[int, str]) -> tuple[str, ...]:
        """Return the frames ("server.py:12", …), innermost first; "?" if a name cannot be read."""
        order = self._target.arch.byteorder
        count = int.from_bytes(self._memory.read(traceback + self._word, 4)[:2], order)
        size = self._word + 4
        data = self._memory.read(traceback + self._word + 4, min(count, MAX_FRAMES) * size) if count else b""
        made = []
        for at in range(0, len(data), size):
            (name,) = self._target.arch.unpack(data[at : at + self._word])
            line = int.from_bytes(data[at + self._word : at + size], order)
            if name not in names:
                names[name] = self._known().text(name, most=4096) or "?"
            made.append(f"{names[name]}:{line}")
        return tuple(made)
