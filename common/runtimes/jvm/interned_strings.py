"""Find the words with which the table of interned strings of JDK 8 refers to Strings.

The table keeps no String alive: a collection of the whole heap removes the entries of Strings to
which nothing else refers. Later versions refer to these Strings by weak handles.

The table is {table size, buckets, …}. A bucket has the first entry, and an entry is {hash code,
next entry, String}. The lowest bit of a link is a flag.

Source: OpenJDK 8, src/share/vm/classfile/symbolTable.hpp (StringTable::unlink_or_oops_do) and
utilities/hashtable.hpp."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from findleaks.allocators.bulk import read_records
from findleaks.engine.contract import Engine
from findleaks.runtimes.jvm.tables import Tables
from findleaks.target.interruptible import interruptible

_KIND = "BasicHashtable<mtInternal>"
_MOST_BUCKETS, _MOST_ENTRIES = 1 << 24, 1 << 24
_LONGEST = 1 << 12  # entries of a bucket
_FLAG = 1
_ENTRY = 3  # words of an entry; the last one refers to the String


def list_string_words(tables: Tables, engine: Engine) -> array[int]:
    """Return the addresses of the words that refer to Strings, ascending. Raises Interrupted."""
    memory = tables.memory
    table = tables.word("StringTable", "_the_table") if tables.is_jdk8 and memory.size == 8 else None
    if not table:
        return array("Q")
    count, buckets = tables.int32(_KIND, "_table_size", table) or 0, tables.word(_KIND, "_buckets", table) or 0
    is_known = buckets and 0 < count <= _MOST_BUCKETS
    links: Sequence[int] = (memory.words(buckets, count) if is_known else None) or ()
    last = memory.arch.top - _ENTRY * memory.size  # address that an entry can have
    found: set[int] = set()
    for _ in interruptible(tables.target, range(_LONGEST)):
        # If the table is damaged, a link may be any number, or refer to an entry that was read.
        entries = sorted({word & ~_FLAG for word in links if word % memory.size <= _FLAG < word <= last} - found)
        if not entries or len(found) + len(entries) > _MOST_ENTRIES:
            break
        found.update(entries)
        data, _ = read_records(tables.target, engine, entries, _ENTRY * memory.size)
        links = memory.arch.words(data)[1::_ENTRY]
    return array("Q", (entry + (_ENTRY - 1) * memory.size for entry in sorted(found)))
