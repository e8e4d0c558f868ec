"""Find unused words and hashes in the storage of lists, deques, dictionaries, sets and attribute
values. They are not references.

A list has more storage than items, and the unused part still contains removed items
(Objects/listobject.c, list_resize; ob_size, ob_item and allocated follow the type). The same
applies to the first and the last block of a deque, and since 3.11 to the blocks that it keeps for
reuse (Modules/_collectionsmodule.c, dequeobject of 3.9 to 3.14: ob_size, leftblock, rightblock,
leftindex, rightindex, state and maxlen follow the type, then numfreeblocks and freeblocks). In 3.11
and 3.12, the block of an object's attribute values begins with a prefix, which contains the order
of the attributes. Some of its bytes are never written. The last byte is the length of the prefix.
The byte before is the number of attributes (Include/internal/pycore_dict.h, struct _dictvalues).
Before 3.11 the values belong to a dictionary, and there is no prefix. Because allocators round
sizes up, an unused word may follow the values in their block. Unused words may also follow the keys
of a dictionary (struct _dictkeysobject).

Since 3.13, most values are in their objects (see remains.py). Instances whose size varies (an Enum
whose members are numbers), and copies of an instance's dictionary, have a dictionary with a
separate block of values. The block begins with a word of which only four bytes are written. The
order of the attributes follows the values. In all releases from 3.11, the dictionary of an object
(vars(OBJECT)) takes over the object's block of values.

Dictionaries and sets store the hashes of their keys (setentry in Include/cpython/setobject.h or
Include/setobject.h). The hash of an int is its value. Programs often use id(OBJECT), which is the
object's address, as a key. The interpreter uses such keys for the subclasses of a type.

This module states the contract of storage_native.py (common/native/cpython_storage.c) and
storage_reference.py."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple, Protocol, cast

from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.loops import import_loops
from findleaks.engine.terms import EVERY_WORD, LAST_WORD
from findleaks.runtimes.cpython.buffers import find_buffers
from findleaks.runtimes.cpython.engine import ObjectTally
from findleaks.runtimes.cpython.types import MANAGED_DICT, SUBCLASSES, TYPE_SUBCLASS, Types, release_of
from findleaks.runtimes.cpython.wanted_patterns import NOT_MADE, ROW, make_wanted
from findleaks.target.base import Piece, Range

LIST, VALUES, TAGGED, DEQUE, SPARE, KEYS, SHARED, SET = 1, 2, 4, 8, 16, 32, 64, 128
"""Bits of a type's kind.

LIST: lists. VALUES: objects with a pointer to their values four words before the object (3.11).
TAGGED: the pointer is three words before the object, and is the address minus 1 (3.12). DEQUE:
deques. SPARE: deques that keep blocks for reuse (3.11). KEYS: dictionaries. SHARED: types, whose
objects share keys. SET: sets.

In dictionaries, VALUES or TAGGED means that the dictionary may have a block of values with a
prefix, and both together mean that it may have one with the layout of 3.13. If neither is set, it
may have one with the layout of 3.10."""

OLD_RELEASES = ("3.9", "3.10")
"""Releases in which all deques share one list of spare blocks."""

MOST_RANGES = 1 << 21
"""Maximum number of ranges of unused words. Each takes about 150 bytes. An intact process has more
only if dictionaries or sets contain millions of ids."""
MOST_PREFIX = 64  # maximum size in bytes of the part before values: 16 words


class Storage(NamedTuple):
    """What objects of each type own. `kinds`: a byte for each type. `buffers`: numbers for each
    type; see buffers.py."""

    kinds: bytes
    buffers: array[int]  # "I"


def find_storage(known: Types, version: str, word: int) -> Storage:
    """Return what objects of each type own. `word`: bytes of a word."""
    return Storage(_find_kinds(known, version, word), find_buffers(known, version, word))


def _find_kinds(known: Types, version: str, word: int) -> bytes:
    """Return the kind of storage that objects of each type own, one byte per type."""
    release = release_of(version)
    values = VALUES if release == "3.11" else TAGGED if release == "3.12" else 0
    of_dict = values or (VALUES | TAGGED) * (release not in OLD_RELEASES)
    keys = KEYS if word == 8 and not known.shift else 0
    kinds = bytearray(
        LIST * bool(flags & SUBCLASSES["list"])
        | values * bool(flags & MANAGED_DICT)
        | (keys and keys | of_dict) * bool(flags & SUBCLASSES["dict"])
        | SHARED * bool(keys and flags & TYPE_SUBCLASS)
        for flags in known.flags
    )
    deque = DEQUE | SPARE * (release not in OLD_RELEASES)
    for names, kind in ((("collections.deque",), deque), (("set", "frozenset"), SET)):
        for number in known.list_derived(names):
            kinds[number] |= kind
    return bytes(kinds)


def unused_storage(
    engine: Engine,
    blocks: Blocks,
    pieces: Callable[[], Iterable[Piece]],
    tally: ObjectTally,
    storage: Storage,
    pattern: Callable[[int], int],
) -> list[Range]:
    """Set the patterns of blocks with unused words in `tally`. Return the ranges of the unused
    parts of deques and long lists, and of hashes in dictionaries and sets that are addresses in
    blocks.

    Deques, and lists with at least LAST_WORD items, have no patterns. `pieces` yields the memory of
    all blocks. `pattern` returns the number of the pattern that excludes a mask of words, 0 if
    there are too many. At most MOST_RANGES ranges are returned."""
    if not any(storage.kinds) and not any(storage.buffers):
        return []
    loops = cast(_Loops, import_loops(engine, "findleaks.runtimes.cpython", "storage"))
    claims = array("I", bytes(4 * len(blocks)))
    for piece in pieces():
        loops.claim_storage(engine, blocks, piece, tally, storage, claims)
    tails = bytes(pattern(EVERY_WORD & -(1 << first)) for first in range(LAST_WORD))
    heads = bytearray([NOT_MADE]) * (ROW * (MOST_PREFIX // 4 + 1))
    heads[::ROW] = bytes([0, *(pattern((1 << words) - 1) for words in range(1, MOST_PREFIX // 4 + 1))])

    def exclude(words: int, first: int) -> int:
        return pattern((1 << words) - 1 | EVERY_WORD & -(1 << first)) or heads[words * ROW]

    found: list[Range] = []
    for piece in pieces():
        bounds = loops.unused_storage(engine, blocks, piece, tally, claims, tails, heads)
        if make_wanted(heads, exclude):
            bounds = loops.unused_storage(engine, blocks, piece, tally, claims, tails, heads)
        pairs = islice(zip(bounds[::2], bounds[1::2]), max(MOST_RANGES - len(found), 0))
        found += (Range(*pair) for pair in pairs)
    return found


class _Loops(Protocol):
    """The interface of storage_native.py and of its reference, storage_reference.py.

    `claims` has a number for each block: 0, or what its owners claimed; see cpython_storage.c."""

    def claim_storage(
        self, engine: Any, blocks: Blocks, piece: Piece, tally: ObjectTally, storage: Storage, claims: array[int]
    ) -> None: ...
    def unused_storage(
        self, engine: Any, blocks: Blocks, piece: Piece, tally: ObjectTally, claims: array[int], tails: bytes, heads: bytearray
    ) -> array[int]: ...
