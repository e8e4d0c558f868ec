"""Find the earlier tables of quarks, which GLib never frees.

When the table of texts of all quarks is full, GLib allocates a larger one and copies the texts.
Other threads may still read the earlier table, so GLib keeps it, but does not refer to it.

Source: glib/gquark.c (quark_new) of GLib 2.50 to 2.84, 64-bit targets."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.target.interruptible import interruptible

_STEP = 8 * 2048  # bytes of the first table, and by which a table grows
_BEGIN = 16  # bytes that are compared first
_MOST_BLOCKS = 1 << 14  # large blocks that are examined


def find_earlier_tables(memory: Memory, blocks: Blocks, table: int) -> Iterator[int]:
    """Yield the addresses of the earlier tables. `table`: the address of the table in use.

    Each earlier table begins with the same texts as the table in use. Its block may be larger than
    GLib requested, for example because glibc uses whole pages for large blocks."""
    index = blocks.find(table) if table else -1
    content = memory.read(table, _STEP) if index >= 0 and blocks.size(index) >= 2 * _STEP else b""
    if len(content) == _STEP:
        for other in interruptible(memory.target, blocks.of_sizes(_STEP, blocks.size(index), _MOST_BLOCKS)):
            address = blocks.address(other)
            if other != index and memory.read(address, _BEGIN) == content[:_BEGIN] and memory.read(address, _STEP) == content:
                yield address
