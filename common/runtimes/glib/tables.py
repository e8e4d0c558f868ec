"""Read hash tables of GLib, in which it keeps signal handlers and types of variants.

Source: glib/ghash.c (struct _GHashTable) of GLib 2.74 and 2.84, 64-bit targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.target.base import Range
from findleaks.value_classes import NamedTuple


class Layout(NamedTuple):
    """The layout of GHashTable: its members, its bytes, and the offset of `keys`.

    The members are size, mod, mask, nnodes, noccupied, bits, keys, hashes, values, hash_func,
    key_equal_func and ref_count."""

    members: str
    size: int
    keys: int


LAYOUTS = (Layout("PIIIIIPPPPPI", 96, 32), Layout("IIIIIIPPPPPI", 88, 24))
"""The layouts since GLib 2.62, and before."""

MOST_SLOTS = 1 << 23  # of a table whose entries are read
STEP = 1 << 14  # slots that are read at a time
MOST_REFERENCES = 1 << 24  # most references that a container counts
LEAST_HASH = 2  # of an entry; 0 is an unused slot, 1 that of a removed entry


class Header(NamedTuple):
    """The members of a hash table: numbers of slots and entries, whether keys and values have 8
    bytes (otherwise 4), and addresses of arrays with a value for each slot, and of functions."""

    slots: int
    entries: int
    big_keys: bool
    big_values: bool
    keys: int
    hashes: int
    values: int
    hash_function: int
    equal_function: int


def read_header(memory: Memory, address: int, layout: Layout, least: int = 1) -> Optional[Header]:
    """Return the header of the hash table at an address; None if there is no table with at least
    this number of entries."""
    found = memory.members(address, layout.members)
    if found is None:
        return None
    slots, _, mask, count, occupied, bits, keys, hashes, values, function, equal, references = found
    if mask + 1 != slots or slots & mask or not least <= count <= occupied <= slots or not 0 < references < MOST_REFERENCES:
        return None
    if not bits & 3 and layout is LAYOUTS[-1]:
        bits = 3  # before 2.60, there are no such bits
    return (
        Header(slots, count, bool(bits & 1), bool(bits & 2), keys, hashes, values, function, equal)
        if function and keys and hashes and values
        else None
    )


def find_tables(memory: Memory, data: Sequence[Range]) -> Iterator[tuple[int, Header]]:
    """Yield the address of each static variable in `data` that refers to a hash table, and the
    table."""
    for start, end in data:
        for address, words in memory.scan(start, end):
            for at, word in enumerate(words):
                if word and word % 8 == 0:
                    found = next(filter(None, (read_header(memory, word, layout) for layout in LAYOUTS)), None)
                    if found is not None:
                        yield address + memory.size * at, found


def read_entries(memory: Memory, table: Header) -> Iterator[tuple[int, int]]:
    """Yield the key and the value of each entry."""
    return ((key, value) for key, value, _ in read_slots(memory, table))


def read_slots(memory: Memory, table: Header) -> Iterator[tuple[int, int, int]]:
    """Yield the key and the value of each entry, and the number of its slot."""

    def column(address: int, is_big: bool, first: int) -> Sequence[int]:
        size = 8 if is_big else 4
        data = memory.read(address + size * first, size * min(STEP, table.slots - first))
        return memory.arch.words(data) if is_big else memory.arch.words32(data)

    for first in range(0, table.slots if table.slots <= MOST_SLOTS else 0, STEP):
        hashes = column(table.hashes, False, first)
        keys, values = column(table.keys, table.big_keys, first), column(table.values, table.big_values, first)
        if not hashes:
            return
        rows = enumerate(zip(hashes, keys, values), first)
        yield from ((key, value, slot) for slot, (hashed, key, value) in rows if hashed >= LEAST_HASH)
