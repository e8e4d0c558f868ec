"""Find the words with hash codes in the entries of the JVM's own hash tables.

Such an entry begins with a hash code of 32 bits. The other half of this word is padding, which the
JVM does not write. It often has the upper half of an address, from an earlier use of the memory.
Then the word looks like a pointer into a block. Two kinds of tables are read:

- JDK 8 to 17: BasicHashtable {table size, buckets, …}. An entry is {hash code, next entry, …}.
- JDK 11 to 25: ResourceHashtable with a fixed number of buckets: {buckets, number of entries}. An
  entry is {hash code, key, value, next entry}. Variables of libjvm refer to the table.

A table is recognised by its entries: the remainder of the hash code, divided by the number of
buckets, is the number of the bucket. This must be true of all entries of a table.

Sources: OpenJDK 8, src/share/vm/utilities/hashtable.hpp; 11 and 17,
src/hotspot/share/utilities/hashtable.hpp (BasicHashtable, HashtableBucket: the lowest bit of a link
is a flag); 11, 17, 21 and 25, resourceHash.hpp (ResourceHashtable)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

from findleaks.allocators.bulk import MOST_RANGES, find_pointers_into, read_records, read_scattered
from findleaks.allocators.directory import Directory
from findleaks.engine.contract import Engine
from findleaks.engine.terms import NO_BLOCK
from findleaks.runtimes.jvm.tables import Tables
from findleaks.target.base import Range
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import merge_to_most, nonzero_pieces

_KIND = "BasicHashtable<mtInternal>"
_MOST_TABLE = 256  # bytes of a table with the fields of its derived class
_SLACK = 24  # unused bytes at the end of a block
_MOST_BUCKETS, _FEWEST_BUCKETS = 1 << 20, 16
_MOST_BLOCKS = 1 << 18  # blocks that are examined
_SOME = 1 << 14  # blocks that are read together
_MOST_ENTRIES, _LONGEST = 1 << 20, 1 << 10  # entries of a table; entries of a chain
_MOST_WORDS = 1 << 24  # buckets and entries of all tables; damaged tables may share entries
_FEWEST_ENTRIES = 4  # a table with fewer entries may be a coincidence
_NMT = 16  # bytes of NMT's header
_FLAG = 1


class HashTables:
    """Reads the hash tables of the JVM of a process."""

    def __init__(self, tables: Tables, engine: Engine, directory: Directory) -> None:
        self._tables, self._engine, self._blocks = tables, engine, directory.blocks
        self._word = tables.memory.size
        self._heaps = merge_to_most(directory.ranges(), MOST_RANGES)
        self._left = _MOST_WORDS

    def list_hash_words(self, data: Iterable[Range]) -> list[int]:
        """Return the addresses of the words with hash codes. `data`: the variables of libjvm.
        Raises Interrupted."""
        if self._word != 8 or self._tables.memory.arch.byteorder != "little":
            return []
        found = list(self._read_basic_tables())
        for start, end in data:
            for piece in nonzero_pieces(self._tables.target, start, end):
                for address in sorted({*find_pointers_into(self._engine, piece, self._heaps)[1]}):
                    found += self._read_resource_table(address)
        return found

    def _read_basic_tables(self) -> Iterator[int]:
        """Yield the addresses of the entries of JDK 8 to 17."""
        size, buckets = self._tables.fields.get((_KIND, "_table_size")), self._tables.fields.get((_KIND, "_buckets"))
        smallest = self._tables.sizes.get(_KIND, 0)
        if size is None or buckets is None or not max(size.offset, buckets.offset) < smallest <= _MOST_TABLE or smallest % self._word:
            return
        indices = array("I", self._blocks.of_sizes(smallest, _MOST_TABLE, _MOST_BLOCKS))
        for first in interruptible(self._tables.target, range(0, len(indices), _SOME)):
            starts = self._blocks.columns_of(indices[first : first + _SOME]).address
            for header in (0, _NMT):
                data, _ = read_records(self._tables.target, self._engine, [start + header for start in starts], smallest)
                words, halves = memoryview(data).cast("Q"), memoryview(data).cast("I")
                counts = halves[size.offset // 4 :: smallest // 4].tolist()
                for count, at in zip(counts, words[buckets.offset // 8 :: smallest // 8].tolist()):
                    if 0 < count <= _MOST_BUCKETS and at % self._word == 0 and self._has_array(at, count):
                        yield from self._read_entries(at, count, 1)

    def _has_array(self, address: int, count: int) -> bool:
        """Return whether a block consists of an array of `count` words."""
        found = self._blocks.lookup(address)
        return found is not None and address - found[1] in (0, _NMT) and 0 <= found[1] + found[2] - address - count * self._word <= _SLACK

    def _read_resource_table(self, address: int) -> Sequence[int]:
        """Return the addresses of the entries of the table at an address; none if there is no
        table."""
        found = self._blocks.lookup(address)
        if found is None or address - found[1] not in (0, _NMT):
            return ()
        most = (found[1] + found[2] - address) // self._word - 1
        if not _FEWEST_BUCKETS <= most <= _MOST_BUCKETS:
            return ()
        return next(filter(None, (self._read_entries(address, most - slack, 3) for slack in range(3))), ())

    def _read_entries(self, buckets: int, count: int, link: int) -> Sequence[int]:
        """Return the addresses of the entries of a table; none if one of them is in the wrong
        bucket. `link`: the number of the word that refers to the next entry."""
        self._left -= count
        words = self._tables.memory.words(buckets, count) if self._left > 0 else None
        if words is None:
            return ()
        places = [number for number, word in enumerate(words) if word]
        entries = [words[number] & ~_FLAG for number in places]
        found: list[int] = []
        for _ in range(_LONGEST):
            if not entries:
                return found if len(found) >= _FEWEST_ENTRIES else ()
            self._left -= len(entries)
            if min(self._left, _MOST_ENTRIES - len(found)) < 0 or NO_BLOCK in self._blocks.find_all(entries[:1])[0]:
                return ()
            data, missing = read_scattered(self._tables.target, self._engine, entries, (link + 1) * self._word)
            hashes = memoryview(data).cast("I")[:: 2 * (link + 1)].tolist()
            if missing or any(hashed % count != place for hashed, place in zip(hashes, places)):
                return ()
            found += entries
            following = [word & ~_FLAG for word in memoryview(data).cast("Q")[link :: link + 1].tolist()]
            places = [place for place, word in zip(places, following) if word]
            entries = [word for word in following if word]
        return ()
