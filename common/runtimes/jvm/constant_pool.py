"""Read texts of the JVM: symbols, and the entries of constant pools that refer to them.

Sources: OpenJDK 8 to 25, src/hotspot/share/oops/symbol.hpp and constantPool.hpp. The entries follow
a ConstantPool in memory; its array of tags has the kind of each entry."""

from __future__ import annotations

from findleaks.runtimes.jvm.tables import Tables

UTF8 = 1  # JVM_CONSTANT_Utf8: the tag of an entry that is a text
_MOST_TEXT = 1 << 12  # bytes of a plausible name or signature
_MOST_ENTRIES = 1 << 16


def read_symbol(tables: Tables, address: int) -> str:
    """Return the text of the Symbol at this address; "" if there is none."""
    place, body = tables.place("Symbol", "_length", address), tables.place("Symbol", "_body", address)
    length = int.from_bytes(tables.memory.read(place, 2), tables.memory.arch.byteorder) if place and body else 0
    text = tables.memory.read(body, length).decode("utf-8", "replace") if 0 < length <= _MOST_TEXT else ""
    return text if text.isprintable() else ""


def read_text(tables: Tables, pool: int, index: int) -> str:
    """Return the entry of a constant pool with this index; "" if it is not a text."""
    address = tables.memory.word(pool + tables.sizes.get("ConstantPool", 0) + index * tables.memory.size) if pool else None
    return read_symbol(tables, address or 0)


def is_text(tables: Tables, pool: int, index: int) -> bool:
    """Return whether a constant pool has this entry, and its tag is that of a text."""
    tags, length = tables.word("ConstantPool", "_tags", pool) or 0, tables.int32("ConstantPool", "_length", pool) or 0
    data = tables.place("Array<u1>", "_data", tags)
    if not 0 < index < length <= _MOST_ENTRIES or not data or tables.int32("Array<int>", "_length", tags) != length:
        return False
    return tables.memory.read(data + index, 1) == bytes([UTF8])
