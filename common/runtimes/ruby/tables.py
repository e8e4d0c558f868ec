"""Read Ruby's own tables and arrays within limits: id tables, st tables, the elements of an Array.

Sources: id_table.c (struct rb_id_table, rb_id_item), include/ruby/st.h (struct st_table) and st.c
(struct st_table_entry), include/ruby/internal/core/rarray.h (struct RArray; ruby.h before 3.0),
internal/hash.h (struct RHash; internal.h before 2.8) of 2.7.4, 3.1.2 and 3.3.8."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from findleaks.allocators.memory import Memory
from findleaks.runtimes.ruby.census import MASK, T_ARRAY, T_HASH

EMBEDDED = 1 << 13  # flag of an Array or Object: its elements or variables are in the slot
# Flag of a Hash: it has a struct st_table; without the flag it has at most 8 pairs.
ST_TABLE = 1 << 15
# Flag of an Array or String whose data belongs to another Array or String. SHARED: up to 3.3.
# NEWEST_SHARED: since 3.4.
SHARED, NEWEST_SHARED = 1 << 14, 1 << 12
LENGTH_SHIFT, SHORT, LONG = 15, 0x3, 0x7F  # length of an embedded Array: 2 bits, 7 bits since 3.2
STRUCT_SHIFT = 13  # length of an embedded Struct, with the same number of bits
PAIRS_SHIFT, PAIRS = 16, 0xF  # Hash without st_table: number of pairs

BOUND_SHIFT, BOUND = 20, 0xF  # Hash without st_table: number of pairs ever used
HASH_LONG, HINTS = 24, 8  # Hash since Ruby 3.2: bytes before its table or hints; bytes of the hints
MOST_PAIRS = 1 << 16  # maximum number of pairs that are read from a Hash of thread variables

MOST_ITEMS = 1 << 20  # maximum capacity of an id table
ALL_ITEMS = 1 << 23  # maximum number of entries read from all tables of a process
DELETED = (1 << 64) - 1  # hash of a deleted entry
LONGEST = 1 << 40  # maximum length of an Array or a Hash; a larger one is corrupt


class Item(NamedTuple):
    """An entry of an id table: the ID's serial number, the value, and the address of the value."""

    key: int
    value: int
    address: int


class IdTable(NamedTuple):
    """A struct rb_id_table: the address of its items, its capacity, and the number of items in
    use."""

    items: int
    capacity: int
    number: int


def id_head(memory: Memory, address: int) -> Optional[IdTable]:
    """Return the struct rb_id_table at this address: {int capa, num, used; items}. None if there is
    none, or it is empty. Capacities are multiples of 4."""
    words = memory.words(address, 3) if address and address % 8 == 0 else None
    if words is None or words[1] >> 32 > MOST_ITEMS:
        return None
    capacity, number, used, items = words[0] & 0xFFFFFFFF, words[0] >> 32, words[1] & 0xFFFFFFFF, words[2]
    if not 0 < number <= used <= capacity <= MOST_ITEMS or capacity % 4 or not items or items % 8:
        return None
    return IdTable(items, capacity, number)


def id_table(memory: Memory, address: int) -> Sequence[Item]:
    """Return the entries of a struct rb_id_table; () if there is none, or it is empty."""
    head = id_head(memory, address)
    return id_items(memory, head) if head is not None else ()


def id_items(memory: Memory, head: IdTable) -> Sequence[Item]:
    """Return the items {key, collision, value} in use; () if they cannot be read, or their number
    differs from the head's."""
    read = memory.words(head.items, 2 * head.capacity)
    if read is None:
        return ()
    pairs = zip(range(head.items + 8, head.items + 16 * head.capacity, 16), read[0::2], read[1::2])
    found = [Item(key & 0xFFFFFFFF, value, at) for at, key, value in pairs if key & 0xFFFFFFFF]
    return found if len(found) == head.number else ()


class Span(NamedTuple):
    """Entries of a struct st_table: the address of the first, and their number, including deleted
    ones."""

    start: int
    number: int


def st_span(memory: Memory, table: int, most: int) -> Optional[Span]:
    """Return the location of the entries of a struct st_table: {sizes, type, num_entries, bins,
    entries_start, entries_bound, entries}. None if it has no entries or more than `most`, or if it
    is not such a table."""
    words = memory.words(table, 7) if table and table % 8 == 0 else None
    if words is None or not words[2] or not words[4] < words[5] <= words[4] + most or words[5] - words[4] < words[2] or words[6] % 8:
        return None
    return Span(words[6] + 24 * words[4], words[5] - words[4])


def st_entries(memory: Memory, table: int, most: int) -> Sequence[Item]:
    """Return the entries of a struct st_table that are not deleted; () if `st_span` returns
    None."""
    span = st_span(memory, table, most)
    return entries_in(memory, span) if span is not None else ()


def entries_in(memory: Memory, span: Span) -> Sequence[Item]:
    """Return the entries {hash, key, value} in a span. If an entry was deleted, all bits of its
    hash are set. () if they cannot be read."""
    found = memory.words(span.start, 3 * span.number)
    if found is None:
        return ()
    places = range(span.start + 16, span.start + 24 * span.number, 24)
    return [Item(*rest) for hashed, *rest in zip(found[0::3], found[1::3], found[2::3], places) if hashed != DELETED]


class Tables:
    """Reads the tables of one process, up to a limit.

    In a corrupt core, many classes may refer to the same large table. After ALL_ITEMS entries, all
    further tables are read as empty."""

    def __init__(self, memory: Memory) -> None:
        self._memory, self._left = memory, ALL_ITEMS

    def ids(self, address: int) -> Sequence[Item]:
        """Return the entries of an id table; see `id_table`."""
        head = id_head(self._memory, address)
        return id_items(self._memory, head) if head is not None and self._take(head.capacity) else ()

    def entries(self, address: int, most: int) -> Sequence[Item]:
        """Return the entries of an st table; see `st_entries`."""
        span = st_span(self._memory, address, most)
        return entries_in(self._memory, span) if span is not None and self._take(span.number) else ()

    def pairs(self, value: int, long: bool) -> Iterator[Item]:
        """Yield the pairs of the Hash at this address: key, value, and the address of the value.
        Yields nothing if there are more than MOST_PAIRS. `long`: see `hash_length`."""
        words = self._memory.words(value, 3) if value and value % 8 == 0 else None
        if words is None or words[0] & MASK != T_HASH:
            return
        if words[0] & ST_TABLE:
            yield from self.entries(value + HASH_LONG if long else words[2], MOST_PAIRS)
            return
        start = value + HASH_LONG + HINTS if long else words[2]
        found = self._memory.words(start, 2 * (words[0] >> BOUND_SHIFT & BOUND)) or ()
        for at in range(0, len(found), 2):
            yield Item(found[at], found[at + 1], start + 8 * at + 8)

    def _take(self, number: int) -> bool:
        if number > self._left:
            return False
        self._left -= number
        return True


class Elements(NamedTuple):
    """The elements of an Array: the address of the first, and their number."""

    start: int
    length: int


def elements(memory: Memory, value: int, long: bool) -> Optional[Elements]:
    """Return the elements of the Array at this address; None if there is none. `long`: the version
    is 3.2 or later, where a slot can contain more than 3 elements."""
    words = memory.words(value, 5) if value and value % 8 == 0 else None
    if words is None or words[0] & MASK != T_ARRAY:
        return None
    if words[0] & EMBEDDED:
        return Elements(value + 16, words[0] >> LENGTH_SHIFT & (LONG if long else SHORT))
    found = Elements(words[4], words[2])
    if found.length and (found.length > LONGEST or memory.word(found.start + 8 * (found.length - 1)) is None):
        return None
    return found


def struct_length(flags: int, long: bool) -> int:
    """Return the number of members of a Struct that are in its slot; 0 if they are elsewhere.
    `long`: see `elements`."""
    return flags >> STRUCT_SHIFT & (LONG if long else SHORT)


def hash_length(memory: Memory, value: int, long: bool) -> Optional[int]:
    """Return the number of pairs of the Hash at this address; None if there is none.

    `long`: the version is 3.2 or later, where the st_table is in the slot, after the default value.
    In earlier versions, the first word points to it."""
    words = memory.words(value, 3) if value and value % 8 == 0 else None
    if words is None or words[0] & MASK != T_HASH:
        return None
    if not words[0] & ST_TABLE:
        return words[0] >> PAIRS_SHIFT & PAIRS
    table = memory.words(value + 24 if long else words[2], 7)
    if table is None or not table[2] <= table[5] - table[4] <= LONGEST:
        return None
    # Require that the last entry is readable, because a corrupt table may claim any number of
    # entries.
    return table[2] if not table[5] or memory.word(table[6] + 24 * (table[5] - 1)) is not None else None
