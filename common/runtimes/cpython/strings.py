"""Read the layout of strings: which are interned, which have no pointers, and which words are
numbers or characters.

An object has the following words. Objects of 3.9 to 3.11 have all of them; later ones do not have
those in brackets: count, type, length, hash, `state`, [wstr], utf8_length, utf8, [wstr_length],
data. Only the low bytes of `state` are written. Its two low bits show whether a string is interned.

The characters of an object of `str` itself are in the object. If the bits `compact` and `ascii` are
set, they begin at the word after `state` or wstr. Such an object has no pointers, unless wstr is
set, which then points to a copy in another encoding. Otherwise the characters begin at `data`. In
an object of a subclass that Python code defines, `data` points to the characters, which are in a
block of their own.

Source: Include/cpython/unicodeobject.h (PyASCIIObject, PyCompactUnicodeObject, PyUnicodeObject) of
CPython 3.9 to 3.14."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from findleaks.runtimes.cpython.engine import READY
from findleaks.runtimes.cpython.types import SUBCLASSES, Types, release_of

STATE = 4  # offset of `state` in a str object, in words


class TextLayout(NamedTuple):
    """Words of a string from its start. `numbers` are not references. `pointers` point to
    characters in objects of subclasses. `characters`: the words of a `str` from this one on are
    characters, or do not belong to it."""

    numbers: Sequence[int]
    pointers: tuple[int, int]
    characters: int


# Up to 3.11, `data` of a `str` may also be a pointer.
_OLD, _LATER = TextLayout((2, 3, STATE, 6, 8), (7, 9), 10), TextLayout((2, 3, STATE, 5), (6, 7), 7)


def layout_of_text(version: str) -> TextLayout:
    """Return the layout of strings in a version of CPython, such as "3.11.2"."""
    return _OLD if release_of(version) in ("3.9", "3.10", "3.11") else _LATER


COMPACT_ASCII = 1 << 5 | 1 << 6
# Types whose objects have no references.
LEAVES = ("int", "float", "complex", "bytes", "bool", "range_iterator")


def marks(known: Types, word: int) -> bytes:
    """Return, for each type, the offset in its objects of the byte with marks; see
    engine.ObjectTally."""
    return bytes(STATE * word if flags & SUBCLASSES["str"] else 0 for flags in known.flags)


def leaves(known: Types, version: str) -> bytes:
    """Return, for each type, which of its objects have no pointers; see engine.ObjectTally. Objects
    of subclasses may have pointers. `version`: that of CPython."""
    bits = COMPACT_ASCII | READY * (layout_of_text(version) is _OLD)
    plain = (known.plain_name(number) for number in range(len(known)))
    return bytes(bits if name == "str" else name in LEAVES for name in plain)
