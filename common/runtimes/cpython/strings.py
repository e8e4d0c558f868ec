"""Interned strings.

Source: Include/cpython/unicodeobject.h (PyASCIIObject) of CPython 3.9 to 3.14. `state` is behind
count, type, length and hash, a word each. Its two low bits say whether a string is interned; of the
next, `compact` and `ascii` say that its characters are right behind it, and nowhere else."""

from __future__ import annotations

from findleaks.runtimes.cpython.types import SUBCLASSES, Types

STATE = 4  # offset of `state` in a str object, in words


COMPACT_ASCII = 1 << 5 | 1 << 6
LEAVES = ("int", "float", "complex", "bytes", "bool", "range_iterator")  # hold no references


def marks(known: Types, word: int) -> bytes:
    """For each type, the offset of the byte with marks in its objects; see engine.ObjectTally."""
    return bytes(STATE * word if flags & SUBCLASSES["str"] else 0 for flags in known.flags)


def leaves(known: Types) -> bytes:
    """By type, which objects have no pointers (engine.ObjectTally). Subclasses' may have."""
    plain = (known.plain_name(number) for number in range(len(known)))
    return bytes(COMPACT_ASCII if name == "str" else name in LEAVES for name in plain)
