"""Recognise blocks of malloc that contain a Symbol: the name of a class, a field or a method.
Find stale words in these blocks.

A Symbol contains text and no references. But malloc rounds the size of its block up, and the JVM
does not write to the bytes after the text. They may still contain the address of an object, from an
earlier use of the block.

A Symbol consists of the length of its text (16 bits), the text, and other fields of 16 or 32 bits.
In the block, up to three words may precede it: the entry of the table of Symbols.

Sources: OpenJDK 8, src/share/vm/oops/symbol.hpp; 11, 17, 21 and 25,
src/hotspot/share/oops/symbol.hpp and utilities/concurrentHashTable.hpp (Node)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Optional

from findleaks.allocators.bulk import MOST_RANGES, find_pointers_into, read_scattered
from findleaks.allocators.directory import Directory
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import NO_BLOCK
from findleaks.runtimes.jvm.tables import Tables
from findleaks.runtimes.jvm.virtual_spaces import metaspace_nodes
from findleaks.target.base import Range
from findleaks.target.interruptible import interruptible
from findleaks.target.ranges import intersection, merge_ranges, merge_to_most

_OFFSETS = range(0, 33, 8)  # possible offsets of a Symbol in its block, with NMT's header
_ALIGNED, _MOST_SLACK = 8, 16  # the requested size is a multiple of 8; at most 16 bytes follow
_LEAST, _MOST = 2, 1 << 12  # bytes of the text of Symbols that are recognised
_LAST = 3  # words at the end of a block that may contain stale bytes


def find_end_of_text(tables: Tables, start: int, size: int) -> int:
    """If a block of malloc with `size` usable bytes contains a Symbol and nothing else, return the
    address after its text, otherwise 0. See `_find_text`.
    A short text may be a number and a part of a pointer instead. So only words after the text can
    be recognised as stale."""
    text = _find_text(tables, start, size)
    return text.end if text is not None else 0


def _find_text(tables: Tables, start: int, size: int) -> Optional[Range]:
    """Return where the text is in a block of malloc with `size` usable bytes that contains a Symbol
    and nothing else; None for other blocks. The length of the text explains the size of the block,
    and all bytes of the text are printable UTF-8."""
    length_field, body = tables.fields.get(("Symbol", "_length")), tables.fields.get(("Symbol", "_body[0]"))
    body = body or tables.fields.get(("Symbol", "_body"))
    if length_field is None or body is None or size >= _MOST:
        return None
    data = tables.memory.read(start, size)
    if len(data) < size:
        return None
    for base in _OFFSETS:
        at, first = base + length_field.offset, base + body.offset
        length = int.from_bytes(data[at : at + 2], tables.memory.arch.byteorder)
        requested = -(-(first + length) // _ALIGNED) * _ALIGNED
        if length >= _LEAST and 0 <= size - requested <= _MOST_SLACK and _is_text(data[first : first + length]):
            return Range(start + first, start + first + length)
    return None


def list_stale_ends(tables: Tables, engine: Engine, directory: Directory) -> Iterator[Range]:
    """Yield the last words of Symbols that look like pointers to blocks. If a text ends within a
    word, stale bytes follow it in this word: "File" and the upper half of an address look like an
    address, too. Only Symbols to which the metaspace refers are examined, because constant pools
    refer to all names of classes. The text must begin before such a word, because a number and a
    pointer may look like a short text. Raises Interrupted."""
    if tables.memory.size != 8:
        return
    heaps = merge_to_most(directory.ranges(), MOST_RANGES)
    for size, ascending in _list_named_blocks(tables, engine, directory.blocks, heaps).items():
        count = min(_LAST, size // tables.memory.size)
        first = size - count * tables.memory.size
        data, _ = read_scattered(tables.target, engine, [start + first for start in ascending], count * tables.memory.size)
        for at, word in enumerate(tables.memory.arch.words(data)):
            if word and any(low <= word < high for low, high in heaps):
                start = ascending[at // count]
                place, text = start + first + at % count * tables.memory.size, _find_text(tables, start, size)
                if text is not None and text.start < place and text.end < place + tables.memory.size:
                    yield Range(place, place + tables.memory.size)


def _list_named_blocks(tables: Tables, engine: Engine, blocks: Blocks, heaps: Sequence[Range]) -> dict[int, list[int]]:
    """Return the starts of small blocks in `heaps` to which the metaspace refers, by size."""
    writable = merge_ranges(Range(region.start, region.end) for region in tables.target.regions() if region.writable)
    found: dict[int, set[int]] = {}
    for part in interruptible(tables.target, intersection(writable, merge_ranges(metaspace_nodes(tables))), 1):
        for piece in tables.target.pieces(*part):
            words = array("Q", sorted(set(find_pointers_into(engine, piece, heaps)[1])))
            indices = blocks.find_all(words)[0]
            known = blocks.columns_of(indices)
            for word, index, start, size in zip(words, indices, known.address, known.size):
                if index != NO_BLOCK and size < _MOST and word - start in _OFFSETS:
                    found.setdefault(size, set()).add(start)
    return {size: sorted(starts) for size, starts in found.items()}


def _is_text(data: bytes) -> bool:
    text = data.decode("utf-8", "replace")
    return "\ufffd" not in text and text.isprintable()
