"""Recognise blocks of malloc that contain a Symbol: the name of a class, a field or a method.

A Symbol contains text and no references. But malloc rounds the size of its block up, and the JVM
does not write to the bytes after the text. They may still contain the address of an object, from an
earlier use of the block.

A Symbol consists of the length of its text (16 bits), the text, and other fields of 16 or 32 bits.
In the block, up to three words may precede it: the entry of the table of Symbols.

Sources: OpenJDK 8, src/share/vm/oops/symbol.hpp; 11, 17, 21 and 25,
src/hotspot/share/oops/symbol.hpp and utilities/concurrentHashTable.hpp (Node)."""

from __future__ import annotations

from findleaks.runtimes.jvm.tables import Tables

_OFFSETS = range(0, 33, 8)  # possible offsets of a Symbol in its block, with NMT's header
_ALIGNED, _MOST_SLACK = 8, 16  # the requested size is a multiple of 8; at most 16 bytes follow
_LEAST, _MOST = 2, 1 << 12  # bytes of the text of Symbols that are recognised


def find_end_of_text(tables: Tables, start: int, size: int) -> int:
    """If a block of malloc with `size` usable bytes contains a Symbol and nothing else, return the
    address after its text, otherwise 0. In such a block, the length of the text explains the size
    of the block, and all bytes of the text are printable UTF-8.
    A short text may be a number and a part of a pointer instead. So only words after the text can
    be recognised as stale."""
    length_field, body = tables.fields.get(("Symbol", "_length")), tables.fields.get(("Symbol", "_body[0]"))
    body = body or tables.fields.get(("Symbol", "_body"))
    if length_field is None or body is None or size >= _MOST:
        return 0
    data = tables.memory.read(start, size)
    if len(data) < size:
        return 0
    for base in _OFFSETS:
        at, first = base + length_field.offset, base + body.offset
        length = int.from_bytes(data[at : at + 2], tables.memory.arch.byteorder)
        requested = -(-(first + length) // _ALIGNED) * _ALIGNED
        if length >= _LEAST and 0 <= size - requested <= _MOST_SLACK and _is_text(data[first : first + length]):
            return start + first + length
    return 0


def _is_text(data: bytes) -> bool:
    text = data.decode("utf-8", "replace")
    return "\ufffd" not in text and text.isprintable()
