"""Types of GLib's variants.

A GVariant begins with a pointer to the information on its type. That of basic types is a constant
array of libglib, that of others is in a table by type string.

Source: glib/gvarianttypeinfo.c (struct _GVariantTypeInfo, ContainerInfo,
g_variant_type_info_basic_table), gvariant-core.c (struct _GVariant), gvariant.c
(struct heap_builder) of GLib 2.74 and 2.84, 64-bit targets."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence

from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.allocators.names import read_name
from findleaks.allocators.type_nodes import BUILDER_MAGIC, MAGIC_WORD
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import State
from findleaks.runtimes.glib.tables import find_tables, read_entries
from findleaks.target.base import Module, Range

LAYOUTS = ((64, 48), (48, 32))
"""Bytes of a GVariant, and the offset of `state` (a few bits) and `ref_count` (32 bits each), since
GLib 2.74 and before."""
MOST_STATE = 1 << 8
MOST_TYPES, MOST_BUILDERS = 1 << 16, 1 << 20
TYPE_STRING = 16  # offset of the type string in ContainerInfo

BASIC = {"b": (1, 0), "d": (8, 7), "h": (4, 3), "i": (4, 3), "n": (2, 1), "q": (2, 1), "t": (8, 7), "u": (4, 3), "v": (0, 7)}
BASIC |= {"x": (8, 7), "y": (1, 0)}
"""Fixed size and alignment (less 1) of basic types. Those of other letters are 0."""
BUILDER, BUILDER_BYTES = "GVariantBuilder", 144
MOST_ROUNDING = 24  # bytes that an allocator may add to a builder

FIRST, LAST = "b", "y"  # letters of the first and the last entry
TEXTS = "gosv"  # basic types without a fixed size


def read_count(memory: Memory, address: int, size: int) -> int:
    """Return the reference count of the GVariant in a block of `size` usable bytes; 0 if it is
    none."""
    at = next((offset for least, offset in LAYOUTS if size >= least), 0)
    found = memory.members(address + at, "II") if at else None
    return found[1] if found is not None and found[0] < MOST_STATE else 0


def find_builders(memory: Memory, engine: Engine, blocks: Blocks) -> Iterator[int]:
    """Yield the index of each block in use with a builder of g_variant_builder_new."""
    indices = array("I", blocks.of_sizes(BUILDER_BYTES, BUILDER_BYTES + MOST_ROUNDING, MOST_BUILDERS))
    places = [address + 8 * MAGIC_WORD for address in blocks.columns_of(indices).address]
    records, _ = read_records(memory.target, engine, places, 16)
    words = memory.arch.words(records)
    for index, magic, count in zip(indices, words[::2], words[1::2]):
        if magic == BUILDER_MAGIC and 0 < count & 0xFFFFFFFF < MOST_BUILDERS and blocks.state(index) == State.IN_USE:
            yield index


def read_types(memory: Memory, module: Module, data: Sequence[Range]) -> dict[int, str]:
    """Return the type strings by address of their information. `data` is the writable memory of
    the libglib that is `module`."""
    found = _find_basic(memory, module)
    for _, table in find_tables(memory, data):
        for key, value in read_entries(memory, table):
            if len(found) >= MOST_TYPES or key == value or memory.word(value + TYPE_STRING) != key:
                break  # it is another table
            found[value] = read_name(memory, key)
    return {address: name for address, name in found.items() if name}


def _find_basic(memory: Memory, module: Module) -> dict[int, str]:
    letters = [chr(code) for code in range(ord(FIRST), ord(LAST) + 1)]
    entry = struct.Struct(memory.arch.word_format[0] + "QBB6x")
    pattern = b"".join(entry.pack(*BASIC.get(letter, (0, 0)), 0) for letter in letters)
    for region in memory.target.regions():
        if region.readable and not region.writable and module.start <= region.start < module.end:
            for piece in memory.target.pieces(region.start, region.end):
                at = bytes(piece.data).find(pattern)
                if at >= 0:
                    start = piece.address + at
                    return {start + entry.size * n: letter for n, letter in enumerate(letters) if letter in BASIC or letter in TEXTS}
    return {}
