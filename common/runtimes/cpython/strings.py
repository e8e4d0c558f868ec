"""Interned strings.

Source: Include/cpython/unicodeobject.h (PyASCIIObject) of CPython 3.9 to 3.14: behind count, type, length and hash, each a word, the two
low bits of `state` tell whether a string is interned; of the next ones `compact` and `ascii` whether its characters stand right behind
it, and nowhere else.
"""

from __future__ import annotations

from typing import NamedTuple

from findleaks.runtimes.cpython.engine import SUMS, ObjectTally
from findleaks.runtimes.cpython.types import SUBCLASSES, Types

STATE = 4
"""Words into a str object."""


COMPACT_ASCII = 1 << 5 | 1 << 6
LEAVES = ("int", "float", "complex", "bytes", "bool", "range_iterator")
"""Types whose objects refer to nothing."""


class Interned(NamedTuple):
    """Strings in blocks, and the bytes of these; those in the interpreter's own data are not counted."""

    strings: int
    bytes: int


def marks(known: Types, word: int) -> bytes:
    """Where in the objects of each type a mark stands; see graph.objects."""
    return bytes(STATE * word if flags & SUBCLASSES["str"] else 0 for flags in known.flags)


def leaves(known: Types) -> bytes:
    """Which objects of each type have no pointers; see graph.objects. A subclass's may have."""
    plain = (known.plain_name(number) for number in range(len(known)))
    return bytes(COMPACT_ASCII if name == "str" else name in LEAVES for name in plain)


def interned(tally: ObjectTally) -> Interned:
    return Interned(sum(tally.sums[4::SUMS]), sum(tally.sums[5::SUMS]))
