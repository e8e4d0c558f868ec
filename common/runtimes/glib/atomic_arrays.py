"""Find the arrays that GObject's type system refers to only by interior pointers.

A GAtomicArray begins with its size. The TypeNode of a type refers to the second word of such an
array, which has the interfaces of the type, or the places of an interface in other arrays. When an
array grows, GObject keeps the smaller one in a list for later use.

Source: gobject/gatomicarray.c, gtype.c (struct _TypeNode: _prot) of GLib 2.50 to 2.84, 64-bit
targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from findleaks.allocators.memory import Memory
from findleaks.allocators.type_nodes import TypeNodes
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.target.base import Range

_BEFORE_SUPERS = 16  # bytes between `_prot` and `supers` in a TypeNode
_MOST_FREE = 1 << 12  # arrays in the list of GObject


def find_arrays(memory: Memory, blocks: Blocks, types: TypeNodes, data: Sequence[Range]) -> Iterator[tuple[int, int]]:
    """Yield the address of what refers to an array, and the address of the block of this array.
    `data`: the writable memory of libgobject."""
    for node in types.nodes:
        start = _find_block(blocks, memory.word(node + types.layout.supers - _BEFORE_SUPERS) or 0)
        if start:
            yield node, start
    seen = set[int]()
    for low, high in data:
        for address, words in memory.scan(low, high):
            for at, word in enumerate(words):
                start = _find_block(blocks, word)
                while start and start not in seen and len(seen) < _MOST_FREE:
                    seen.add(start)
                    yield address + 8 * at, start
                    start = _find_block(blocks, memory.word(start + 8) or 0)


def _find_block(blocks: Blocks, word: int) -> int:
    """Return the address of the block in use to whose second word a word refers, or 0. Blocks are
    aligned to 16 bytes."""
    found = blocks.lookup(word) if word % 16 == 8 else None
    return found[1] if found is not None and found[1] == word - 8 and found[3] == State.IN_USE else 0
