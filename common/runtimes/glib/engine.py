"""Recognise structures of GLib that have no type in memory.

engine_native.py (common/native/glib_structures.c) and engine_reference.py implement this."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.loops import import_loops
from findleaks.target.base import Piece, Range

TABLE, TREE, POINTERS, PLAIN_POINTERS, ARRAY, BYTE_ARRAY, SEQUENCE, ERROR, DATE, BYTES, SOURCE, STRING, QUEUE, CLOSURE = range(1, 15)
PLAIN_CLOSURE, PART, CHANNEL = range(15, 18)
"""Kinds of structures. PLAIN_POINTERS is a GPtrArray without a function that frees elements.
PLAIN_CLOSURE is a closure without marshaller, PART a GBytes with a part of another one's data."""


class Structure(NamedTuple):
    """A possible structure of GLib in the block with the index `block`. The caller must examine the
    memory at `first` and `second`.

    - TREE, SEQUENCE: `first` is the address of its root, or of its last node.
    - DATE, SOURCE, CHANNEL: `first` is the address of its time zone, or of the table of its
      functions.
    - STRING: `first` is the address of the NUL after the text.
    - QUEUE: `first` and `second` are the addresses of its first and last node.
    - CLOSURE: `first` is the address of its marshaller; `second` that of its marshaller of variable
      arguments, or else of its meta marshaller.
    - PLAIN_CLOSURE: `first` is the address of its notifiers, `second` that of its data.
    - PART: `first` is the address of the GBytes with all the data, `second` that of its own data.
    - ERROR: `first` is its quark, `second` the address of its message."""

    block: int
    kind: int
    first: int
    second: int


def find_structures(engine: Engine, blocks: Blocks, piece: Piece, code: Sequence[Range], quarks: int) -> Iterator[Structure]:
    """Yield the structures in the blocks that begin in the piece, ascending. `code`: executable
    memory, sorted and disjoint. `quarks`: more than the greatest quark."""
    rows: array[int] = import_loops(engine, __package__).find_structures(engine, blocks, piece, code, quarks)
    return (Structure(key >> 8, key & 0xFF, first, second) for key, first, second in zip(rows[::3], rows[1::3], rows[2::3]))
