"""Find the earlier tables of quarks, which GLib never frees.

When the table of texts of all quarks is full, GLib allocates a larger one and copies the texts.
Other threads may still read the earlier table, so GLib keeps it, but does not refer to it.

Source: glib/gquark.c (quark_new) of GLib 2.50 to 2.84, 64-bit targets."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State

_STEP = 8 * 2048  # bytes by which a table grows
_SLACK = 64  # bytes by which a block may exceed the requested size
_MOST_STEPS = 32
_MOST_BLOCKS = 1 << 10  # of one size that are examined


def find_earlier_tables(memory: Memory, blocks: Blocks, table: int) -> Iterator[int]:
    """Yield the addresses of the earlier tables. `table`: the address of the table in use."""
    index = blocks.find(table) if table else -1
    steps = min(blocks.size(index) // _STEP, _MOST_STEPS) if index >= 0 else 0
    content = memory.read(table, _STEP * steps) if steps > 1 else b""
    for size in range(_STEP, len(content), _STEP):
        for other in blocks.of_sizes(size, size + _SLACK, _MOST_BLOCKS):
            if blocks.state(other) == State.IN_USE and memory.read(blocks.address(other), size) == content[:size]:
                yield blocks.address(other)
