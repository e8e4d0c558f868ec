"""List all objects of Ruby's heap for a graph of objects and native blocks: see
heap_dump.ObjectTable.

All words of an object and of its native memory count as references, with these exceptions: flags,
numbers and text, remains of former objects, and the memory that weak_references.py finds. In
particular, all words of the memory of methods, threads and extensions count, because no layout of
this memory is known."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from findleaks.engine.terms import EVERY_WORD, LAST_WORD, Exclusion
from findleaks.runtimes.base import Objects
from findleaks.runtimes.exclusion_table import ExclusionTable
from findleaks.runtimes.heap_dump import ObjectTable
from findleaks.runtimes.ruby import census as c
from findleaks.runtimes.ruby.objects import HEAD, Slots
from findleaks.runtimes.ruby.tables import EMBEDDED
from findleaks.runtimes.ruby.values import NOEMBED
from findleaks.target.base import Range

T_BIGNUM = 0xA
FIELDS = 5  # words of the structures whose data is elsewhere: RString, RArray, RObject, RStruct
_NUMBERS = (c.T_FLOAT, T_BIGNUM)
_NOTHING = (c.T_ZOMBIE, c.T_MOVED)


def build_object_table(
    taken: c.Census, names: Sequence[str], slots: Slots, objects: Objects, opaque: Iterator[int], ranges: Sequence[Range]
) -> ObjectTable:
    """Return the table of objects. `names`: the name of each group of slots ("" for free slots),
    followed by the name for slots in no group."""
    distinct = sorted({*names} - {""})
    numbers = {name: number for number, name in enumerate(distinct)}
    kinds = array("I", (numbers.get(name, 0) for name in names))
    addresses, sizes, types = taken.addresses(bytearray(map(bool, names)), kinds)
    masks = [_mask(sort, slots) for sort in taken.sorts]
    table = ExclusionTable((Exclusion(0), Exclusion(EVERY_WORD)))
    by_sort = array("I", (table.add(Exclusion(mask)) or 0 for mask in [*masks, 0]))
    _, _, chosen = taken.addresses(bytearray(map(bool, names)), by_sort)
    buffers, owners, texts = objects.buffers, slots.buffer_owners, [*slots.texts, *opaque]
    patterns = bytearray(iter(chosen))
    return ObjectTable(addresses, sizes, types, distinct, patterns, table.exclusions, buffers, owners, texts, sorted(slots.deleted), ranges)


def _mask(sort: c.Sort, slots: Slots) -> int:
    """Return the mask of the words of a slot that are not references."""
    if sort.tag in _NOTHING:
        return EVERY_WORD
    words = _count_words(sort, slots)
    return 1 | (EVERY_WORD >> words << words if words <= LAST_WORD else 0)


def _count_words(sort: c.Sort, slots: Slots) -> int:
    """Return the number of words of a slot that may be references, counted from its start."""
    tag, flags = sort.tag, sort.flags
    if tag in _NUMBERS:
        return HEAD // 8
    is_elsewhere = tag == c.T_STRING and flags & NOEMBED
    is_elsewhere = is_elsewhere or (tag in (c.T_ARRAY, c.T_OBJECT) and not flags & EMBEDDED)
    used = slots.in_use(sort) // 8
    if is_elsewhere or (tag == c.T_STRUCT and used == sort.size // 8):
        # The fifth word of an Object may refer to a table of variables. This table belongs to the
        # class, so the word does not count.
        return min(FIELDS - (tag == c.T_OBJECT), sort.size // 8)
    return used
