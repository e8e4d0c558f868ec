"""Interned strings.

Source: Include/cpython/unicodeobject.h (PyASCIIObject) of CPython 3.9 to 3.14. `state` comes behind
count, type, length and hash, each a word. Its two low bits say whether a string is interned. Of the
next bits, `compact` and `ascii` say that its characters are right behind it, and nowhere else.
"""

from __future__ import annotations

from findleaks.runtimes.cpython.types import SUBCLASSES, Types

STATE = 4
"""Offset of `state` in a str object, in words."""


COMPACT_ASCII = 1 << 5 | 1 << 6
LEAVES = ("int", "float", "complex", "bytes", "bool", "range_iterator")
"""Types whose objects contain no references."""


def marks(known: Types, word: int) -> bytes:
    """For each type, the offset of the byte with marks in its objects; see engine.ObjectTally."""
    return bytes(STATE * word if flags & SUBCLASSES["str"] else 0 for flags in known.flags)


def leaves(known: Types) -> bytes:
    """For each type, which of its objects have no pointers; see engine.ObjectTally. A subclass's
    may have.
    """
    plain = (known.plain_name(number) for number in range(len(known)))
    return bytes(COMPACT_ASCII if name == "str" else name in LEAVES for name in plain)
