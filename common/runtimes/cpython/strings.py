"""Recognise interned strings and objects without pointers.

Source: Include/cpython/unicodeobject.h (PyASCIIObject) of CPython 3.9 to 3.14. `state` follows
count, type, length and hash, a word each. Its two low bits show whether a string is interned. The
bits `compact` and `ascii`, which follow, show that the characters directly follow the object, so it
has no pointers."""

from __future__ import annotations

from findleaks.runtimes.cpython.types import SUBCLASSES, Types

STATE = 4  # offset of `state` in a str object, in words


COMPACT_ASCII = 1 << 5 | 1 << 6
# Types whose objects have no references.
LEAVES = ("int", "float", "complex", "bytes", "bool", "range_iterator")


def marks(known: Types, word: int) -> bytes:
    """Return, for each type, the offset in its objects of the byte with marks; see
    engine.ObjectTally."""
    return bytes(STATE * word if flags & SUBCLASSES["str"] else 0 for flags in known.flags)


def leaves(known: Types) -> bytes:
    """Return, for each type, which of its objects have no pointers; see engine.ObjectTally. Objects
    of subclasses may have pointers."""
    plain = (known.plain_name(number) for number in range(len(known)))
    return bytes(COMPACT_ASCII if name == "str" else name in LEAVES for name in plain)
