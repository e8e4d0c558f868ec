"""Unused words in the storage of lists, and of the values of attributes, which are no references.

A list keeps more storage than it has items, and the words of items that it gave away
(Objects/listobject.c, list_resize; ob_size, ob_item and allocated follow the type). A block of
values begins with the order of the attributes, of which some bytes are never written; the byte in
front of the values is its length (Include/internal/pycore_dict.h, struct _dictvalues of 3.11 and
3.12). Before 3.11 values have no such beginning, since 3.13 they are in their objects.

The contract of storage_native.py (common/native/cpython_storage.c) and storage_reference.py."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Protocol, cast

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import EVERY_WORD, LAST_WORD
from findleaks.runtimes.cpython.engine import ObjectTally
from findleaks.runtimes.cpython.types import MANAGED_DICT, SUBCLASSES, Types
from findleaks.target.base import Piece, Range

LIST, VALUES, TAGGED = 1, 2, 4
"""Bits of a type's kind: lists, and objects that refer to values four words before them (3.11), or,
one byte less, three words before them (3.12)."""

MOST_PREFIX = 64  # bytes in front of values: at most 16 words


def storage_kinds(known: Types, version: str) -> bytes:
    """What objects of each type own, a byte a type."""
    release = version.split(".")[:2]
    values = VALUES if release == ["3", "11"] else TAGGED if release == ["3", "12"] else 0
    return bytes(LIST * bool(flags & SUBCLASSES["list"]) | values * bool(flags & MANAGED_DICT) for flags in known.flags)


def unused_storage(
    engine: Engine, blocks: Blocks, pieces: Callable[[], Iterable[Piece]], tally: ObjectTally, kinds: bytes, pattern: Callable[[int], int]
) -> list[Range]:
    """Set the tally's patterns of blocks with unused words, and give the unused parts of lists for
    which there are no patterns: those with LAST_WORD items and more. `pieces` gives the memory of
    all blocks; `pattern` the number of the pattern that leaves out a mask of words, 0 if there are
    too many."""
    if not any(kinds):
        return []
    name = "storage_native" if engine.name == "native" else "storage_reference"
    loops = cast(_Loops, import_module(f"findleaks.runtimes.cpython.{name}"))
    claims = array("I", bytes(4 * len(blocks)))
    for piece in pieces():
        loops.claim_storage(engine, blocks, piece, tally, kinds, claims)
    tails = bytes([0, *(pattern(EVERY_WORD & -(1 << first)) for first in range(1, LAST_WORD))])
    heads = bytes([0, *(pattern((1 << words) - 1) for words in range(1, MOST_PREFIX // 4 + 1))])
    found: list[Range] = []
    for piece in pieces():
        bounds = loops.unused_storage(engine, blocks, piece, tally, claims, tails, heads)
        found += (Range(*pair) for pair in zip(bounds[::2], bounds[1::2]))
    return found


class _Loops(Protocol):
    """The interface of storage_native.py and of its reference, storage_reference.py.

    `claims`, a number a block: 0, or what its owners claimed; see cpython_storage.c."""

    def claim_storage(self, engine: Any, blocks: Blocks, piece: Piece, tally: ObjectTally, kinds: bytes, claims: array[int]) -> None: ...
    def unused_storage(
        self, engine: Any, blocks: Blocks, piece: Piece, tally: ObjectTally, claims: array[int], tails: bytes, heads: bytes
    ) -> array[int]: ...
